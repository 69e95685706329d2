"""HTTP to the API server: a few connections that calls share; each watch has one of its own."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Self
from urllib.parse import quote, urlencode

from gpuslice.cluster.config import ClusterConfig
from gpuslice.cluster.errors import ApiError, Unreachable, error_from_answer
from gpuslice.cluster.http1 import Answer, Connection
from gpuslice.cluster.moments import SpareMoments
from gpuslice.cluster.route import Route
from gpuslice.cluster.wire import JSON, SILENCE_SECONDS, BadAnswer, Query

_IDLE_SECONDS = 60.0
_CONNECT_SECONDS = 10.0
_CLOSE_SECONDS = 1.0
_LINES_AT_ONCE = 4
# Sent twice, these do what they do once, so that a connection found dead may be replaced.
_IDEMPOTENT = frozenset({"GET", "PUT", "DELETE"})


class Transport:
    """An open door to one API server; use it as an async context manager, from one event loop."""

    def __init__(
        self,
        config: ClusterConfig,
        *,
        connections: int = 4,
        user_agent: str = "gpuslice",
        moments: SpareMoments | None = None,
    ) -> None:
        """Prepare; ``connections`` bounds the calls at one time, watches do not count.

        What a watch brings at once is handed over a few lines at a time, with a round of the event loop for others in
        between. With ``moments`` it waits for a spare one.

        Raises:
            BadConfiguration: the cluster is reached through a proxy of a kind that we do not know.
        """
        self._credentials = config.credentials
        self._route = Route(config)
        headers = {"Host": self._route.authority, "User-Agent": user_agent, "Accept": JSON, **self._route.headers}
        self._headers = _fields(headers)
        self._put_off = None if moments is None else moments.put_off
        self._turns = asyncio.Semaphore(connections)
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._idle.clear()
        closing = list(self._open)
        for connection in closing:
            connection.close()
        if closing:
            await asyncio.wait([connection.lost for connection in closing], timeout=_CLOSE_SECONDS)
        for connection in self._open:
            connection.abort()

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
        target, end = self._target(path, query), _end_of_request(body, content_type)
        try:
            async with asyncio.timeout(timeout_seconds), self._turns:
                answer = await self._exchange(method, target, end)
                if answer.status == 401:
                    self._credentials.forget()
                    answer = await self._exchange(method, target, end)
        except (BadAnswer, OSError) as error:
            raise _unreachable(f"{method} {path}", error, f"timed out after {timeout_seconds:g} s") from error
        if not 200 <= answer.status < 300:
            raise _refusal(f"{method} {path}", answer)
        return answer.body

    async def _exchange(self, method: str, target: str, end: bytes) -> Answer:
        request = await self._beginning(method, target) + end
        idle = self._take_idle()
        if idle is not None:
            try:
                return await self._ask(idle, request)
            except (BadAnswer, OSError):
                # The other side may have closed it just now.
                if method not in _IDEMPOTENT:
                    raise
        return await self._ask(await self._connect(), request)

    async def _ask(self, connection: Connection, request: bytes) -> Answer:
        try:
            answer = await connection.ask(request)
            if answer.status == 408 and connection.exchanges > 1:
                connection.abort()
                raise BadAnswer("the connection lay idle for too long")
            return answer
        finally:
            self._put_back(connection)

    async def stream(
        self, path: str, *, query: Query, silence_seconds: float = SILENCE_SECONDS
    ) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a watch, see :class:`gpuslice.cluster.wire.ApiTransport`."""
        label = f"WATCH {path}"
        try:
            request = await self._beginning("GET", self._target(path, query)) + _end_of_request(None)
            connection = await self._connect()
            try:
                async with asyncio.timeout(silence_seconds):
                    answer = await connection.ask(request, silence_seconds=silence_seconds)
                lines = answer.lines
                if lines is None:
                    if answer.status == 401:
                        self._credentials.forget()
                    raise _refusal(label, answer)
                lines.put_off = self._put_off
                while some := await lines.take(_LINES_AT_ONCE):
                    for line in some:
                        yield line
                    if lines.waiting:
                        # Nobody's call waits for a hundred changes.
                        await asyncio.sleep(0)
            finally:
                connection.abort()
        except (BadAnswer, OSError) as error:
            raise _unreachable(label, error, f"silent for {silence_seconds:g} s") from error

    def _target(self, path: str, query: Query | None) -> str:
        encoded = self._route.prefix + quote(path, safe="/:@!$&'()*+,;=~")
        return f"{encoded}?{urlencode(query)}" if query else encoded

    async def _beginning(self, method: str, target: str) -> bytes:
        credentials = _fields(await self._credentials.headers())
        return f"{method} {target} HTTP/1.1\r\n{self._headers}{credentials}".encode("latin-1")

    def _take_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.ended and connection.idle_seconds < _IDLE_SECONDS:
                return connection
            connection.abort()
        return None

    def _put_back(self, connection: Connection) -> None:
        if connection.reusable:
            self._idle.append(connection)
        else:
            connection.abort()

    async def _connect(self) -> Connection:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                connection = await self._route.connect()
        except TimeoutError as error:
            raise ConnectionError(f"no connection within {_CONNECT_SECONDS:g} s") from error
        self._open.add(connection)
        connection.lost.add_done_callback(lambda _: self._open.discard(connection))
        return connection


def _fields(headers: Mapping[str, str]) -> str:
    return "".join([f"{name}: {value}\r\n" for name, value in headers.items()])


def _end_of_request(body: bytes | None, content_type: str = JSON) -> bytes:
    if body is None:
        return b"\r\n"
    return b"Content-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (content_type.encode("latin-1"), len(body), body)


def _unreachable(label: str, error: BadAnswer | OSError, on_timeout: str) -> Unreachable:
    return Unreachable(label, on_timeout if isinstance(error, TimeoutError) else str(error) or type(error).__name__)


def _refusal(label: str, answer: Answer) -> ApiError:
    retry_after = answer.header(b"retry-after")
    return error_from_answer(
        label, answer.status, answer.body, None if retry_after is None else retry_after.decode("latin-1")
    )
