"""HTTP/1.1 on asyncio: requests in, responses or endless chunked streams out.

A web framework is not used: at 5,000 watches and thousands of writes a second its per-request layers cost more than
everything the API server does. httptools parses, asyncio transports write.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import cast
from urllib.parse import parse_qsl, unquote

import httptools

log = logging.getLogger(__name__)

BODY_LIMIT_BYTES = 3 * 1024 * 1024
"""The real API server's limit for a resource request (k8s.io/apiserver: MaxRequestBodyBytes)."""

SLOW_WATCH_LIMIT_BYTES = 64 * 1024 * 1024
"""A watch whose client leaves this much unread is cut, as the real server ends watches that cannot keep up."""


@dataclass(slots=True, eq=False)
class Request:
    """One parsed request; header names are lower-case."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    connection: "Connection"
    user: str = ""
    groups: tuple[str, ...] = ()
    warnings: list[str] = field(default_factory=list)
    keep_alive: bool = True

    def flag(self, name: str) -> bool:
        """Read a boolean query parameter as Go's ParseBool with present-but-empty meaning true."""
        value = self.query.get(name)
        return value is not None and value.lower() not in {"false", "0", "f"}


@dataclass(slots=True, eq=False)
class Response:
    """A complete answer; body parts are joined on the wire."""

    status: int
    body: Sequence[bytes] = ()
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


Handler = Callable[[Request], Awaitable[Response | None]]
"""Answers a request; None means that it took over the connection with `Connection.start_stream`."""


class Stream:
    """A chunked response that stays open; frames are gathered and written once per turn of the event loop."""

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._pending: list[bytes] = []
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def send(self, line: bytes) -> None:
        """Queue one chunk."""
        if self.closed.done():
            return
        if not self._pending:
            asyncio.get_running_loop().call_soon(self._flush)
        self._pending.append(b"%x\r\n%b\r\n" % (len(line), line))

    def _flush(self) -> None:
        pending, self._pending = self._pending, []
        transport = self._connection.transport
        if self.closed.done() or transport is None or not pending:
            return
        transport.write(b"".join(pending))
        if transport.get_write_buffer_size() > SLOW_WATCH_LIMIT_BYTES:
            log.warning("watch cut: its client leaves %d bytes unread", transport.get_write_buffer_size())
            transport.abort()

    def finish(self) -> None:
        """End the response cleanly; the connection can carry further requests."""
        if self.closed.done():
            return
        self._flush()
        if self._connection.transport is not None:
            self._connection.transport.write(b"0\r\n\r\n")
        self.closed.set_result(None)

    def abort(self) -> None:
        """Cut the connection in the middle of the response."""
        if self._connection.transport is not None:
            self._connection.transport.abort()
        self.lost()

    def lost(self) -> None:
        """Note that the client is gone."""
        if not self.closed.done():
            self.closed.set_result(None)


class Connection(asyncio.Protocol):
    """One client connection; its requests are answered in order."""

    def __init__(self, handler: Handler, live: set["Connection"]) -> None:
        self.transport: asyncio.Transport | None = None
        self.stream: Stream | None = None
        self._handler = handler
        self._live = live
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._body_size = 0
        self._waiting: list[Request] = []
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's TLS transport is no subclass
        self._live.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel what was being answered."""
        del exc
        self._live.discard(self)
        self.transport = None
        if self.stream is not None:
            self.stream.lost()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Feed the parser; garbage gets a bare 400."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(400, b"upgrade is not supported")
        except httptools.HttpParserError:
            self._refuse(400, b"malformed HTTP request")

    def _refuse(self, status: int, text: bytes) -> None:
        if self.transport is not None:
            self.transport.write(_head(Response(status, (text,), "text/plain"), len(text), close=True) + text)
            self.transport.close()

    def on_message_begin(self) -> None:
        """Start collecting a request (httptools callback)."""
        self._url, self._headers, self._body, self._body_size = b"", {}, [], 0

    def on_url(self, url: bytes) -> None:
        """Collect the request target (httptools callback)."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header; repeated ones are joined (httptools callback)."""
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1")
        self._headers[key] = f"{self._headers[key]},{text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        """Let clients that wait for it send their body (httptools callback)."""
        if self._headers.get("expect", "").lower() == "100-continue" and self.transport is not None:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """Collect the body up to the limit (httptools callback)."""
        self._body_size += len(body)
        if self._body_size <= BODY_LIMIT_BYTES:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """Queue the finished request (httptools callback)."""
        if self._body_size > BODY_LIMIT_BYTES:
            self._refuse(413, b"Request entity too large: limit is 3145728")
            return
        path, _, query = self._url.decode("latin-1").partition("?")
        request = Request(
            self._parser.get_method().decode(),
            path,
            dict(parse_qsl(query, keep_blank_values=True)) if query else {},
            self._headers,
            b"".join(self._body),
            self,
            keep_alive=self._parser.should_keep_alive(),
        )
        self._waiting.append(request)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._answer())

    async def _answer(self) -> None:
        try:
            while self._waiting and self.transport is not None:
                request = self._waiting.pop(0)
                response = await self._handler(request)
                if response is not None:
                    self._send(request, response)
        finally:
            self._task = None

    def _send(self, request: Request, response: Response) -> None:
        if self.transport is None:
            return
        size = sum(map(len, response.body))
        head = _head(response, size, close=not request.keep_alive)
        if size < 65536:
            self.transport.write(head + b"".join(response.body))
        else:
            self.transport.writelines([head, *response.body])
        if not request.keep_alive:
            self.transport.close()

    def start_stream(self, status: int, headers: Sequence[tuple[str, str]]) -> Stream:
        """Answer with an endless chunked response; the caller sends frames and finishes it."""
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "Transfer-Encoding: chunked"]
        lines += [f"{name}: {value}" for name, value in headers]
        self.stream = Stream(self)
        if self.transport is not None:
            self.transport.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        return self.stream

    def cut(self) -> None:
        """Drop the connection without a word."""
        if self.transport is not None:
            self.transport.abort()


def _head(response: Response, size: int, *, close: bool) -> bytes:
    phrase = HTTPStatus(response.status).phrase
    lines = [f"HTTP/1.1 {response.status} {phrase}", f"Content-Type: {response.content_type}"]
    lines += [f"Content-Length: {size}"]
    lines += [f"{name}: {value}" for name, value in response.headers]
    if close:
        lines.append("Connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def decoded_path(path: str) -> str:
    """Undo percent-encoding for messages."""
    return unquote(path)
