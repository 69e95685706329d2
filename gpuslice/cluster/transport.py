"""HTTP to the API server on aiohttp: several connections at once, proxies too.

One connection would queue a burst of bindings behind each other (median 0.8 s measured), so calls share a pool; watches
live on connections of their own and never take a slot from it.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator
from typing import Self

import aiohttp

from gpuslice.cluster.config import ClusterConfig
from gpuslice.cluster.errors import Unreachable, error_from_answer
from gpuslice.cluster.wire import JSON, SILENCE_SECONDS, BadAnswer, LineSplitter, Query, notice_silence


def _socket_with_keepalive(address: aiohttp.AddrInfoType) -> socket.socket:
    """Open the socket of a connection; see :func:`gpuslice.cluster.wire.notice_silence`."""
    family, kind, protocol, *_ = address
    created = socket.socket(family, kind, protocol)
    if family in (socket.AF_INET, socket.AF_INET6):
        notice_silence(created)
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

    async def __aexit__(self, *_: object) -> None:
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
        """Send one request, see :class:`gpuslice.cluster.wire.ApiTransport`."""
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
    ) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a watch, see :class:`gpuslice.cluster.wire.ApiTransport`."""
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
                splitter = LineSplitter()
                async for chunk in answer.content.iter_any():
                    for line in splitter.feed(chunk):
                        yield line
                    # Nobody's call waits for a hundred changes.
                    await asyncio.sleep(0)
        except TimeoutError as error:
            raise Unreachable(label, f"silent for {silence_seconds:g} s") from error
        except (aiohttp.ClientError, OSError, BadAnswer) as error:
            raise Unreachable(label, str(error) or type(error).__name__) from error

    def _session(self, session: aiohttp.ClientSession | None) -> aiohttp.ClientSession:
        if session is None:
            raise RuntimeError("open the transport first: async with Transport(…)")
        return session
