"""HTTP to the API server in little memory: the standard library's streams, a few connections, no proxies.

aiohttp costs a daemon 10 MiB, and each call half as much again as this.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Self
from urllib.parse import quote, urlencode, urlsplit

from gpuslice.cluster.config import ClusterConfig
from gpuslice.cluster.errors import ApiError, Unreachable, error_from_answer
from gpuslice.cluster.http1 import BadAnswer, Connection, Head, connect
from gpuslice.cluster.timing import REAL_TIME
from gpuslice.cluster.wire import JSON, SILENCE_SECONDS, Query, lines
from gpuslice.devices.errors import BadConfiguration

_IDLE_SECONDS = 60.0
_CONNECT_SECONDS = 10.0
# Sent twice, these do what they do once, so that a connection found dead may be replaced.
_IDEMPOTENT = frozenset({"GET", "PUT", "DELETE"})


async def next_round() -> None:
    """Give everybody else one round of the event loop."""
    await asyncio.sleep(0)


class LeanTransport:
    """An open door to one API server; use it as an async context manager, from one event loop."""

    def __init__(
        self,
        config: ClusterConfig,
        *,
        connections: int = 4,
        user_agent: str = "gpuslice",
        between_lines: Callable[[], Awaitable[None]] = next_round,
        clock: Callable[[], float] = REAL_TIME.clock,
    ) -> None:
        """Prepare; ``connections`` bounds the calls at one time, watches do not count.

        What a watch brings at once is handed over line by line; ``between_lines`` gives others a turn.

        Raises:
            BadConfiguration: the cluster is reached through a proxy, which only the other transport can do.
        """
        if config.proxy:
            raise BadConfiguration("cluster", "proxy-url", "is not supported here", "connect without a proxy")
        self._config = config
        where = urlsplit(config.server)
        self._host = where.hostname or ""
        self._port = where.port or (443 if where.scheme == "https" else 80)
        self._prefix = where.path
        self._tls = (config.tls or ssl.create_default_context()) if where.scheme == "https" else None
        self._headers = {"Host": where.netloc.rpartition("@")[2], "User-Agent": user_agent, "Accept": JSON}
        self._between_lines = between_lines
        self._clock = clock
        self._turns = asyncio.Semaphore(connections)
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(connection.close() for connection in self._open))
        self._open.clear()
        self._idle.clear()
        # What was aborted lately is closed in the loop's next round.
        await asyncio.sleep(0)

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
        label, target = f"{method} {path}", self._target(path, query)
        extra = {"Content-Type": content_type} if body is not None else {}
        with _explained(label, f"timed out after {timeout_seconds:g} s"):
            async with asyncio.timeout(timeout_seconds), self._turns:
                head, content = await self._exchange(method, target, extra, body)
                if head.status == 401:
                    self._config.credentials.forget()
                    head, content = await self._exchange(method, target, extra, body)
        if head.status >= 400:
            raise _refusal(label, head, content)
        return content

    async def _exchange(
        self, method: str, target: str, extra: Mapping[str, str], body: bytes | None
    ) -> tuple[Head, bytes]:
        headers = {**self._headers, **await self._config.credentials.headers(), **extra}
        while True:
            async with self._connection(reuse=True) as connection:
                try:
                    await connection.send(method, target, headers, body)
                    head = await connection.head()
                    if head.status == 408 and connection.exchanges > 1:
                        raise BadAnswer("the connection lay idle for too long")
                except (BadAnswer, OSError):
                    # It lay idle, and the other side may have closed it just now.
                    if connection.exchanges == 1 or method not in _IDEMPOTENT:
                        raise
                    connection.abort()
                    continue
                return head, b"".join([part async for part in connection.body(head)])

    async def stream(
        self, path: str, *, query: Query, silence_seconds: float = SILENCE_SECONDS
    ) -> AsyncIterator[bytes]:
        """Yield the lines of a watch, see :class:`gpuslice.cluster.wire.ApiTransport`."""
        label = f"WATCH {path}"
        headers = {**self._headers, **await self._config.credentials.headers()}
        with _explained(label, f"silent for {silence_seconds:g} s"):
            async with self._connection(reuse=False) as connection:
                async with asyncio.timeout(silence_seconds):
                    await connection.send("GET", self._target(path, query), headers, None)
                    head = await connection.head()
                chunks = _bounded(connection.body(head), silence_seconds)
                if head.status == 401:
                    self._config.credentials.forget()
                if head.status >= 400:
                    raise _refusal(label, head, b"".join([part async for part in chunks]))
                async for line in lines(chunks, label):
                    yield line
                    # Nobody's call waits for a hundred changes.
                    await self._between_lines()

    def _target(self, path: str, query: Query | None) -> str:
        encoded = self._prefix + quote(path, safe="/:@!$&'()*+,;=~")
        return f"{encoded}?{urlencode(query)}" if query else encoded

    @asynccontextmanager
    async def _connection(self, *, reuse: bool) -> AsyncIterator[Connection]:
        connection = (self._take_idle() if reuse else None) or await self._connect()
        try:
            yield connection
        finally:
            if connection.reusable and reuse:
                connection.idle_since = self._clock()
                self._idle.append(connection)
            else:
                self._open.discard(connection)
                connection.abort()

    def _take_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.ended and self._clock() - connection.idle_since < _IDLE_SECONDS:
                return connection
            self._open.discard(connection)
            connection.abort()
        return None

    async def _connect(self) -> Connection:
        async with asyncio.timeout(_CONNECT_SECONDS):
            connection = await connect(self._host, self._port, self._tls, self._config.tls_server_name)
        self._open.add(connection)
        return connection


class _explained:  # noqa: N801  used as a statement
    """Turns what goes wrong on a connection into Unreachable."""

    def __init__(self, label: str, on_timeout: str) -> None:
        self._label = label
        self._on_timeout = on_timeout

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, TimeoutError):
            raise Unreachable(self._label, self._on_timeout) from error
        if isinstance(error, OSError | BadAnswer):
            raise Unreachable(self._label, str(error) or type(error).__name__) from error


def _refusal(label: str, head: Head, content: bytes) -> ApiError:
    return error_from_answer(label, head.status, content, head.headers.get("retry-after"))


async def _bounded(chunks: AsyncIterator[bytes], silence_seconds: float) -> AsyncIterator[bytes]:
    """Pass chunks on; each must come in time."""
    while True:
        async with asyncio.timeout(silence_seconds):
            chunk = await anext(chunks, None)
        if chunk is None:
            return
        yield chunk
