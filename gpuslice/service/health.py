"""/livez, /readyz and /metrics of a daemon, on a port of their own.

Served by a few lines on the standard library's streams: a web framework would cost the daemon on every node 10 MiB for
three pages that probes ask for.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Self

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

Check = Callable[[], str | None]
"""Gives None when all is well, else what is wrong, in a few words."""
_TEXT = "text/plain; charset=utf-8"
_HEAD_BYTES = 16 * 1024
_CALL_SECONDS = 10.0
_CALLS_AT_ONCE = 32


@dataclass(slots=True)
class Health:
    """The checks behind the probes; a daemon adds its own before it starts to listen."""

    live: dict[str, Check] = field(default_factory=dict)
    ready: dict[str, Check] = field(default_factory=dict)

    @staticmethod
    def failures(checks: Mapping[str, Check]) -> list[str]:
        """Lines ``name: problem`` of the checks that fail."""
        return [f"{name}: {problem}" for name, check in checks.items() if (problem := check()) is not None]


@dataclass(frozen=True, slots=True)
class _Page:
    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = _TEXT


class HealthServer:
    """Serves the probes; use as an async context manager. ``port`` is the one really bound."""

    def __init__(self, health: Health, registry: CollectorRegistry, *, host: str, port: int) -> None:
        self._health = health
        self._registry = registry
        self._host = host
        self.port = port
        self._server: asyncio.Server | None = None
        self._calls: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self._host, self.port, limit=_HEAD_BYTES)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for writer in tuple(self._calls):
            writer.transport.abort()
        # What is aborted is closed in the loop's next round.
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request and close: probes come seconds apart."""
        self._calls.add(writer)
        try:
            # Nobody may keep a connection, or many, without saying what for.
            if len(self._calls) <= _CALLS_AT_ONCE:
                async with asyncio.timeout(_CALL_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(_encode(await self._page(head), with_body=not head.startswith(b"HEAD ")))
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._calls.discard(writer)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _page(self, head: bytes) -> _Page:
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            return _Page(b"not an HTTP/1 request\n", HTTPStatus.BAD_REQUEST)
        if words[0] not in (b"GET", b"HEAD"):
            return _Page(b"only GET is served here\n", HTTPStatus.METHOD_NOT_ALLOWED)
        match words[1].partition(b"?")[0]:
            case b"/livez" | b"/healthz":
                return _verdict(self._health.failures(self._health.live))
            case b"/readyz":
                return _verdict(self._health.failures(self._health.live | self._health.ready))
            case b"/metrics":
                # Rendering tens of thousands of series takes long enough to delay a scheduling call.
                body = await asyncio.to_thread(generate_latest, self._registry)
                return _Page(body, content_type=CONTENT_TYPE_LATEST)
            case _:
                return _Page(b"there are /livez, /readyz and /metrics\n", HTTPStatus.NOT_FOUND)


def _verdict(failures: list[str]) -> _Page:
    if not failures:
        return _Page(b"ok\n")
    return _Page(("\n".join(failures) + "\n").encode(), HTTPStatus.SERVICE_UNAVAILABLE)


def _encode(page: _Page, *, with_body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {page.status.value} {page.status.phrase}\r\nContent-Type: {page.content_type}\r\n"
        f"Content-Length: {len(page.body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (page.body if with_body else b"")
