"""A stand-in between kube-scheduler and an extender: passes every call on, notes it, and can hold it back."""

import http.client
import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.cluster.harness.control_plane import LOOPBACK


@dataclass(frozen=True, slots=True)
class Call:
    """One call of kube-scheduler.

    Attributes:
        at: Monotonic seconds.
        verb: filter, prioritize, bind or preempt.
        pod: Name of the pod.
        seconds: Time until the extender had answered.
    """

    at: float
    verb: str
    pod: str
    seconds: float


class Observer:
    """Listens on a port of its own and forwards to `target`, a port on loopback.

    `before` is called with verb and pod name before a call is passed on; it may wait.
    """

    def __init__(self) -> None:
        self.target = 0
        self.before: Callable[[str, str], None] = lambda verb, pod: None
        self._calls: list[Call] = []
        self._lock = threading.Lock()
        self._server = _Server((LOOPBACK, 0), _handler_for(self))
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="observer", daemon=True).start()

    def calls(self, verb: str, *, since: float = 0.0, pod: str | None = None) -> list[Call]:
        """Return the calls of a verb since a monotonic time, on request of one pod."""
        with self._lock:
            return [c for c in self._calls if c.verb == verb and c.at >= since and pod in (None, c.pod)]

    def note(self, call: Call) -> None:
        """Keep a call."""
        with self._lock:
            self._calls.append(call)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 1024

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._connections: set[socket.socket] = set()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a scheduler that hung up; everything else is printed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def server_close(self) -> None:
        """End idle keep-alive connections, then wait for their threads."""
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        super().server_close()


def _handler_for(observer: Observer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            verb, pod = self.path.strip("/"), _pod_name(body)
            observer.before(verb, pod)
            started = time.monotonic()
            status, answer = self._forward(body)
            observer.note(Call(started, verb, pod, time.monotonic() - started))
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def _forward(self, body: bytes) -> tuple[int, bytes]:
            connection = http.client.HTTPConnection(LOOPBACK, observer.target, timeout=30)
            try:
                connection.request("POST", self.path, body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                return response.status, response.read()
            except (OSError, http.client.HTTPException):
                return 503, b'{"message": "the extender is down"}'
            finally:
                connection.close()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class names it so
            """Say nothing: calls are noted."""

    return Handler


def _pod_name(body: bytes) -> str:
    decoded = json.loads(body)
    if "PodName" in decoded:
        return str(decoded["PodName"])
    return str(decoded["Pod"]["metadata"]["name"])
