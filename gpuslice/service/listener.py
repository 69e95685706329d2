"""The HTTP(S) server of a daemon: uvicorn on uvloop and httptools, stopped by us and not by its own signal handlers."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, cast

import uvicorn

from gpuslice.devices.errors import BadConfiguration
from gpuslice.service.direct import Direct, DirectProtocol

# uvicorn and starlette describe the same ASGI callable by types that mypy holds to be different.
Application = Callable[[Any, Any, Any], Awaitable[None]]

KEEP_ALIVE_SECONDS = 75
"""Longer than kube-scheduler's and the API server's own pauses between calls, so that connections are reused."""


class _Server(uvicorn.Server):
    on_started: Callable[[], None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, then tell who wants to know."""
        await super().startup(sockets)
        if self.on_started is not None:
            self.on_started()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to :mod:`gpuslice.service.process`."""
        yield


def open_socket(listen: str, flag: str = "--listen") -> socket.socket:
    """Bind ``HOST:PORT`` (``[::1]:0`` for IPv6; port 0 picks a free one) so that the port is known before serving.

    Raises:
        BadConfiguration: the text is not HOST:PORT, or the address cannot be bound.
    """
    host, separator, port = listen.rpartition(":")
    host = host.strip("[]")
    if not separator or not port.isdigit() or int(port) > 65535:
        raise BadConfiguration("command line", flag, f"{listen!r} is not HOST:PORT", "write for example 127.0.0.1:8080")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((host, int(port)))
    except OSError as error:
        opened.close()
        raise BadConfiguration("command line", flag, f"{listen}: {error}", "choose a free address") from error
    opened.set_inheritable(False)
    return opened


async def serve_http(
    app: Application,
    listening: socket.socket,
    stopping: asyncio.Event,
    *,
    direct: Direct | None = None,
    tls: ssl.SSLContext | None = None,
    on_started: Callable[[], None] | None = None,
) -> None:
    """Serve ``app`` on an open socket until ``stopping`` is set; calls in progress get one second to end.

    POSTs to the paths in ``direct`` do not go through ``app``; see :mod:`gpuslice.service.direct`.
    """
    config = uvicorn.Config(
        app,
        loop="none",
        http="httptools" if direct is None else cast("type[asyncio.Protocol]", partial(DirectProtocol, direct)),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        backlog=4096,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=1,
        ssl_context_factory=None if tls is None else lambda _config, _default: tls,
    )
    server = _Server(config)
    server.on_started = on_started
    stopper = asyncio.create_task(_stop(server, stopping))
    try:
        await server.serve(sockets=[listening])
    finally:
        stopper.cancel()
        # Cancelled halfway, uvicorn leaves its socket with the event loop; closing the server takes it out of there.
        for started in getattr(server, "servers", ()):
            started.close()
        listening.close()


async def _stop(server: uvicorn.Server, stopping: asyncio.Event) -> None:
    await stopping.wait()
    server.should_exit = True
