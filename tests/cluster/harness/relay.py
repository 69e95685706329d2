"""A TCP relay between a client and the API server that can fall silent: late watch events, and partitions."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from tests.cluster.harness.control_plane import LOOPBACK

CHUNK = 65536


class Relay:
    """Forwards connections to a port on loopback; TLS passes through untouched.

    While it is silenced, what the server says stays in the relay; nothing is lost.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._open = threading.Event()
        self._open.set()
        self._closing = False
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def silence(self) -> None:
        """Hold back everything that the server says from now on."""
        self._open.clear()

    def speak(self) -> None:
        """Deliver what was held back, and go on."""
        self._open.set()

    def close(self) -> None:
        """Stop accepting and end every connection."""
        self._closing = True
        self._open.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in self._ends:
            _end(end)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection((LOOPBACK, self._target))
            except OSError:
                client.close()  # the API server is down: so says the relay
                continue
            self._ends += [client, server]
            self._start(self._forward, client, server, None)
            self._start(self._forward, server, client, self._open)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name="relay", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _forward(self, source: socket.socket, sink: socket.socket, gate: threading.Event | None) -> None:
        try:
            while data := source.recv(CHUNK):
                if gate is not None:
                    gate.wait()
                sink.sendall(data)
        except OSError:
            return  # the peer has gone; ending both sides tells the other one
        finally:
            _end(source)
            _end(sink)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
