"""Measure the CPU time of our end of the API server's connections: a call, and a change from socket to reflector.

The server answers in a process of its own. The baseline is a protocol that reads nothing of what comes: what event loop
and kernel take in the same run, on the same machine, for the same bytes.
"""

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine
from typing import Final

import uvloop

from bench.harness import Figure, report
from gpuslice.cluster.client import KubeClient, Scope
from gpuslice.cluster.config import ClusterConfig
from gpuslice.cluster.credentials import FixedHeaders
from gpuslice.cluster.reflector import Changed, Event, Reflector
from gpuslice.cluster.resources import PODS
from gpuslice.cluster.transport import Transport
from gpuslice.devices.pods import Pod

BURST: Final = 100
WARM_UP: Final = 100
TOKEN: Final = "Bearer " + "t" * 900
PATH: Final = "/api/v1/namespaces/default/pods/pod-000123/binding"
BODY: Final = b'{"x":"%b"}' % (b"y" * 500)
_ANSWER: Final = b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","code":201}\n'
_ANSWERED: Final = (
    b"HTTP/1.1 201 Created\r\nAudit-Id: 9c3e7a49-08a4-4b6c-b0fb-1e6dbd6c7f3f\r\nCache-Control: no-cache, private\r\n"
    b"Content-Type: application/json\r\nX-Kubernetes-Pf-Flowschema-Uid: 8c6a1f5e-3c5e-4d3f-a8b6-5d1f6f7a8b9c\r\n"
    b"X-Kubernetes-Pf-Prioritylevel-Uid: 1c6a1f5e-3c5e-4d3f-a8b6-5d1f6f7a8b9d\r\n"
    b"Date: Mon, 30 Nov 2026 01:48:20 GMT\r\nContent-Length: %d\r\n\r\n%b" % (len(_ANSWER), _ANSWER)
)
_LISTED: Final = b'{"metadata":{"resourceVersion":"1"},"items":[]}'


def _change(number: int) -> bytes:
    metadata = {"name": f"p{number}", "namespace": "default", "uid": f"u{number}", "resourceVersion": str(number)}
    pod = {
        "metadata": metadata | {"annotations": {"a": "b" * 200}},
        "spec": {"nodeName": "n", "containers": [{"name": "main", "image": "x" * 60}]},
        "status": {"conditions": [{"type": kind, "status": "True"} for kind in ("Ready", "PodScheduled")]},
    }
    line = json.dumps({"type": "MODIFIED", "object": pod}).encode() + b"\n"
    return b"%x\r\n%b\r\n" % (len(line), line)


def serve() -> None:
    """Answer on a free port, which is printed, until the process is ended."""
    listener = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    while True:
        opened, _ = listener.accept()
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_answer, args=(opened,), daemon=True).start()


def _answer(opened: socket.socket) -> None:
    with opened:
        try:
            while request := opened.recv(65536):
                if b"watch=true" in request:
                    _tell(opened, alone=b"alone" in request)
                elif request.startswith(b"GET"):
                    opened.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(_LISTED), _LISTED))
                else:
                    opened.sendall(_ANSWERED)
        except OSError:
            return


def _tell(opened: socket.socket, *, alone: bool) -> None:
    changes = [_change(number) for number in range(BURST)]
    opened.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        # So long that the client goes to sleep in between.
        for content in changes if alone else [b"".join(changes)]:
            time.sleep(0.0002 if alone else 0.004)
            opened.sendall(content)


class _Meter:
    """CPU microseconds of this process for each of ``count`` things, after a few that do not count."""

    def __init__(self, count: int) -> None:
        self._left = count + WARM_UP
        self._count = count
        self._began_at = 0.0
        self.done = asyncio.Event()
        self.microseconds = 0.0

    def tick(self, things: int = 1) -> None:
        before, self._left = self._left, self._left - things
        if before >= self._count > self._left and not self._began_at:
            self._began_at = time.process_time()
        if self._left <= 0 and not self.done.is_set():
            self.microseconds = (time.process_time() - self._began_at) / self._count * 1e6
            self.done.set()


async def calls(config: ClusterConfig, count: int) -> float:
    """Call one after the other."""
    meter = _Meter(count)
    async with Transport(config) as transport:
        while not meter.done.is_set():
            await transport.request("POST", PATH, body=BODY)
            meter.tick()
    return meter.microseconds


async def changes(config: ClusterConfig, count: int, how: str) -> float:
    """Follow a watch."""
    meter = _Meter(count)

    def handle(event: Event[Pod]) -> None:
        if isinstance(event, Changed):
            meter.tick()

    async with Transport(config) as transport:
        scope = Scope(PODS, label_selector=how)
        following = Reflector(KubeClient(transport), scope, Pod, handle=handle, project=lambda pod: pod)
        task = asyncio.create_task(following.run())
        await meter.done.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return meter.microseconds


class _Deaf(asyncio.Protocol):
    """Writes, wakes who waits, and looks at nothing."""

    def __init__(self) -> None:
        self.heard: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        if not self.heard.done():
            self.heard.set_result(len(data))


async def deaf(config: ClusterConfig, count: int, how: str = "") -> float:
    """Do the same without reading what comes."""
    loop, meter = asyncio.get_running_loop(), _Meter(count)
    port = int(config.server.rpartition(":")[2])
    transport, protocol = await loop.create_connection(_Deaf, "127.0.0.1", port)
    head = f"Authorization: {TOKEN}\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
    call = f"POST {PATH} HTTP/1.1\r\n".encode() + head + BODY
    transport.write(call if not how else f"GET /?watch=true&{how} HTTP/1.1\r\n\r\n".encode())
    while not meter.done.is_set():
        await protocol.heard
        meter.tick(BURST if how == "burst" else 1)
        protocol.heard = loop.create_future()
        if not how:
            transport.write(call)
    transport.close()
    return meter.microseconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--changes", type=int, default=20_000)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
    server = subprocess.Popen([sys.executable, "-m", "bench.transport", "--serve"], stdout=subprocess.PIPE, text=True)
    try:
        port = server.stdout.readline().strip() if server.stdout else ""
        config = ClusterConfig(f"http://127.0.0.1:{port}", FixedHeaders(TOKEN))

        def run(measured: Coroutine[None, None, float]) -> float:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(measured)

        figures = [
            Figure.compared("call", "µs", run(calls(config, options.calls)), run(deaf(config, options.calls)))
        ] + [
            Figure.compared(
                f"change_{how}",
                "µs",
                run(changes(config, options.changes, how)),
                run(deaf(config, options.changes, how)),
            )
            for how in ("alone", "burst")
        ]
    finally:
        server.kill()
        server.wait()
    report("CPU time of the API server's client", figures)


if __name__ == "__main__":
    main()
