"""HTTP to the API server: raw bytes in, raw bytes out, several connections at once.

One connection would queue a burst of bindings behind each other (median 0.8 s measured), so calls share a pool; watches
live on connections of their own and never take a slot from it.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Self

import aiohttp

from gpuslice.cluster.config import ClusterConfig
from gpuslice.cluster.errors import Unreachable, error_from_answer

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
JSON = "application/json"

SILENCE_SECONDS = 90.0
"""A watch without a single byte for this long is taken for dead: the API server sends a bookmark every minute."""
_MAX_LINE_BYTES = 64 * 1024 * 1024
Query = Mapping[str, str]


def _socket_with_keepalive(address: aiohttp.AddrInfoType) -> socket.socket:
    """Let the kernel notice a peer that vanished without a word within about half a minute."""
    family, kind, protocol, *_ = address
    created = socket.socket(family, kind, protocol)
    created.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if family in (socket.AF_INET, socket.AF_INET6):
        created.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
        created.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        created.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    return created


class Transport:
    """An open door to one API server; use it as an async context manager, from one event loop."""

    def __init__(self, config: ClusterConfig, *, connections: int = 16, user_agent: str = "gpuslice") -> None:
        self._config = config
        self._connections = connections
        self._agent = {"User-Agent": user_agent, "Accept": JSON}
        self._calls: aiohttp.ClientSession | None = None
        self._streams: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._calls = self._open(self._connections)
        self._streams = self._open(0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for session in (self._calls, self._streams):
            if session is not None:
                await session.close()

    def _open(self, limit: int) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=limit, ssl=self._config.tls or True, keepalive_timeout=60, socket_factory=_socket_with_keepalive
        )
        return aiohttp.ClientSession(connector=connector, headers=self._agent, auto_decompress=True, trust_env=False)

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        timeout_seconds: float = 10.0,
    ) -> bytes:
        """Send one request and give the body of its answer.

        Raises:
            ApiError: the API server refused; the subclass says how.
            Unreachable: no answer within ``timeout_seconds``, or none at all.
        """
        session, label = self._session(self._calls), f"{method} {path}"
        for attempt in (1, 2):
            headers = dict(await self._config.credentials.headers())
            if body is not None:
                headers["Content-Type"] = content_type
            try:
                async with session.request(
                    method,
                    self._config.server + path,
                    params=query,
                    data=body,
                    headers=headers,
                    proxy=self._config.proxy,
                    server_hostname=self._config.tls_server_name,
                    timeout=aiohttp.ClientTimeout(total=timeout_seconds),
                ) as answer:
                    content = await answer.read()
                    if answer.status == 401 and attempt == 1:
                        self._config.credentials.forget()
                        continue
                    if answer.status >= 400:
                        raise error_from_answer(label, answer.status, content, answer.headers.get("Retry-After"))
                    return content
            except TimeoutError as error:
                raise Unreachable(label, f"timed out after {timeout_seconds:g} s") from error
            except (aiohttp.ClientError, OSError) as error:
                raise Unreachable(label, str(error) or type(error).__name__) from error
        raise AssertionError("the second attempt returns or raises")

    async def stream(
        self, path: str, *, query: Query, silence_seconds: float = SILENCE_SECONDS
    ) -> AsyncIterator[bytes]:
        """Yield the lines of a watch until the API server ends it.

        Raises:
            ApiError: the watch was refused.
            Unreachable: it broke, or was silent for ``silence_seconds``.
        """
        session, label = self._session(self._streams), f"WATCH {path}"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=silence_seconds)
        try:
            async with session.get(
                self._config.server + path,
                params=query,
                headers=dict(await self._config.credentials.headers()),
                proxy=self._config.proxy,
                server_hostname=self._config.tls_server_name,
                timeout=timeout,
            ) as answer:
                if answer.status == 401:
                    self._config.credentials.forget()
                if answer.status >= 400:
                    raise error_from_answer(
                        label, answer.status, await answer.read(), answer.headers.get("Retry-After")
                    )
                async for line in _lines(answer.content, label):
                    yield line
        except TimeoutError as error:
            raise Unreachable(label, f"silent for {silence_seconds:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(label, str(error) or type(error).__name__) from error

    def _session(self, session: aiohttp.ClientSession | None) -> aiohttp.ClientSession:
        if session is None:
            raise RuntimeError("open the transport first: async with Transport(…)")
        return session


async def _lines(content: aiohttp.StreamReader, label: str) -> AsyncIterator[bytes]:
    """Split into lines of any length up to 64 MiB (the reader's own splitter stops at its buffer size)."""
    pending = bytearray()
    async for chunk in content.iter_any():
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            pending += chunk[start:end]
            if pending:
                yield bytes(pending)
                pending.clear()
            start = end + 1
        pending += chunk[start:]
        if len(pending) > _MAX_LINE_BYTES:
            raise Unreachable(label, "a line longer than 64 MiB")
        await asyncio.sleep(0)
