"""A few hot paths served straight from the HTTP parser; everything else goes through the ASGI application.

kube-scheduler calls its extender three times for each pod and waits for every answer; the API server asks a webhook on
every write. A task, a scope and the messages of ASGI cost more than most of those decisions, so such paths are answered
from the protocol's own callbacks: one call of a function, one write. The application may have the same paths as routes,
for documentation.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar, cast

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl

T = TypeVar("T")
Headers = tuple[tuple[bytes, bytes], ...]

_MOST_WAITING: Final = 8
HEAD_BYTES: Final = 64 * 1024
"""A longer head, or frame of a chunk, is answered with 431, and the connection ends."""


class Reply(NamedTuple):
    """An HTTP answer."""

    status: int
    body: bytes
    headers: Headers = ()
    content_type: bytes = b"application/json"


Later = Coroutine[Any, Any, Reply]
Handler = Callable[[bytes], Reply | Later]
"""Answers a body, now or later. It must not raise."""


@dataclass(frozen=True, slots=True)
class Direct:
    """What is answered straight from the parser."""

    handlers: Mapping[bytes, Handler] = field(default_factory=dict)
    """By path."""
    max_body_bytes: int = 64 * 1024 * 1024
    """A larger body is answered with 413, and the connection ends."""
    under_way: set[asyncio.Task[Any]] = field(default_factory=set)
    """Answers that are worked out now."""

    def start(self, answering: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Work an answer out; that goes on whatever becomes of the connection, and of the server."""
        task = asyncio.create_task(answering)
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)
        return task

    async def finish(self) -> None:
        """Wait for the answers under way; for a clean stop."""
        while self.under_way:
            await asyncio.wait(self.under_way)

    def too_large(self, _body: bytes = b"") -> Reply:
        """Answer a body that is larger than we read."""
        return Reply(413, b'{"Error":"the body is larger than the %d bytes that are read"}' % self.max_body_bytes)


class _Asked(NamedTuple):
    handler: Handler
    body: bytes
    last: bool
    """The connection ends with the answer."""


class Flow(FlowControl):
    """Reads only while nothing speaks against it: neither too much that waits here, nor a client that does not read."""

    def resume_reading(self) -> None:
        """There is room for more."""
        if self.read_paused:
            self.read_paused = False
            self._read_if_free()

    def pause_writing(self) -> None:
        """The client does not read."""
        super().pause_writing()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The client has read."""
        super().resume_writing()
        self._read_if_free()

    def _read_if_free(self) -> None:
        if not (self.read_paused or self.write_paused or self._transport.is_closing()):
            self._transport.resume_reading()


class DirectProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with a short way for POSTs to some paths."""

    def __init__(self, direct: Direct, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **kwargs)
        self._direct = direct
        self._handler: Handler | None = None
        """Of the request that is being read, when it goes the short way."""
        self._chunks: list[bytes] = []
        self._size = 0
        self._answering: asyncio.Task[None] | None = None
        self._waiting: deque[_Asked] = deque()
        """What was asked while an answer was being worked out."""
        self._stopping = False
        """The answer under way is the last one."""
        self._deaf = False
        """What still comes is not answered; the client sends it again (RFC 9112, 9.3.2)."""
        self._unframed = 0
        """Bytes since the last head, piece of a body, or end of a request."""
        self._patience: asyncio.TimerHandle | None = None
        """Runs while a request is coming in."""
        self._last_chance = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve a connection. kube-scheduler opens one for every second pod."""
        self.transport = made = cast("asyncio.Transport", transport)
        self.connections.add(self)
        self.flow = Flow(made)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        if made.get_extra_info("sslcontext") is None:
            # uvloop keeps what is written until its callbacks have run, unless it may keep nothing.
            made.set_write_buffer_limits(high=0)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._unset_patience()

    def data_received(self, data: bytes) -> None:
        """Read. The time that a client has to ask goes on until it has asked, however slowly it does."""
        if self.timeout_keep_alive_task is not None:
            self._unset_patience()
            self._patience, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
        self._unframed += len(data)
        super().data_received(data)
        if self._unframed > HEAD_BYTES and not self._deaf:
            if self._application_answers:
                self._end_with_answer_under_way()
            else:
                self._refuse(_head_too_large)

    def timeout_keep_alive_handler(self) -> None:
        """End a connection that has nothing to ask; one that has begun to ask gets the same time again, once."""
        if self._patience is not None and not self._last_chance:
            self._last_chance = True
            self._patience = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()

    def _unset_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        self._last_chance = False

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, unless it follows a request whose answer is under way: it would be taken for that."""
        if self._answering is not None or self._application_answers:
            self._end_with_answer_under_way()
        else:
            super().send_400_response(msg)

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio asks for it, uvicorn never answers
        """Give what is asked for already to a client that will ask no more."""
        self._stopping = self._deaf = True
        return self._answering is not None and self.transport.get_extra_info("sslcontext") is None

    def on_message_begin(self) -> None:
        """Begin a request; the scope that the application needs is made when it is the one to answer."""
        self.url, self.headers, self.expect_100_continue = b"", [], False

    def on_headers_complete(self) -> None:
        """Choose the way."""
        self._unframed = 0
        if self._deaf:
            return
        path = self.url.partition(b"?")[0]
        handler = self._direct.handlers.get(path) if self.parser.get_method() == b"POST" else None
        if handler is not None and not self._application_answers:
            self._handler = handler
            self._expect_body()
        elif handler is None and self._answering is None:
            self._set_scope()
            super().on_headers_complete()
        else:
            # One way behind the other in one go: they could not be kept in order.
            self._end_with_answer_under_way()

    def _set_scope(self) -> None:
        """Do what uvicorn does when a connection and a request begin."""
        if self.scheme is None:
            self.server, self.client = get_local_addr(self.transport), get_remote_addr(self.transport)
            self.scheme = "https" if is_ssl(self.transport) else "http"
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expects
        self.headers += headers

    @property
    def _application_answers(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _end_with_answer_under_way(self) -> None:
        self._deaf = True
        if self._answering is not None:
            self._stopping = True
        else:
            self.cycle.keep_alive = False

    def _expect_body(self) -> None:
        for name, value in self.headers:
            if name == b"content-length" and int(value) > self._direct.max_body_bytes:
                self._refuse(self._direct.too_large)
                return
        if self.expect_100_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _refuse(self, refusal: Handler) -> None:
        self._handler, self._deaf = None, True
        self._chunks.clear()
        self._ask(refusal, b"", last=True)

    def on_body(self, body: bytes) -> None:
        """Gather the body."""
        self._unframed = 0
        if self._handler is None:
            if not self._deaf:
                super().on_body(body)
            return
        self._size += len(body)
        if self._size > self._direct.max_body_bytes:
            self._refuse(self._direct.too_large)
        else:
            self._chunks.append(body)

    def on_message_complete(self) -> None:
        """Ask the handler."""
        self._unframed = 0
        if self.timeout_keep_alive_task is not None:
            self._unset_keepalive_if_required()
        if self._patience is not None:
            self._unset_patience()
        handler, self._handler = self._handler, None
        if handler is None:
            if not self._deaf:
                super().on_message_complete()
            return
        chunks, self._chunks, self._size = self._chunks, [], 0
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._ask(handler, body, last=not self.parser.should_keep_alive())

    def _ask(self, handler: Handler, body: bytes, *, last: bool) -> None:
        if self._answering is not None:
            self._waiting.append(_Asked(handler, body, last))
            if len(self._waiting) > _MOST_WAITING:
                self.flow.pause_reading()
            return
        found = handler(body)
        if isinstance(found, Reply):
            self._answer(found, last=last)
            return
        self._answering = self._direct.start(self._answer_later(found, last=last))

    async def _answer_later(self, found: Later, *, last: bool) -> None:
        try:
            self._answer(await found, last=last)
        finally:
            self._answering = None
        while self._waiting and self._answering is None and not self.transport.is_closing():
            asked = self._waiting.popleft()
            self._ask(asked.handler, asked.body, last=asked.last)

    def _answer(self, reply: Reply, *, last: bool) -> None:
        if self.transport.is_closing():
            return
        last = last or (self._stopping and not self._waiting)
        parts = [STATUS_LINE[reply.status], b"content-type: %b\r\n" % reply.content_type]
        parts += [b"%b: %b\r\n" % header for header in reply.headers]
        if last:
            parts.append(b"connection: close\r\n")
        parts += (b"content-length: %d\r\n\r\n" % len(reply.body), reply.body)
        self.transport.write(b"".join(parts))
        if last:
            self.transport.close()
        self.on_response_complete()

    def shutdown(self) -> None:
        """Let what was asked be answered, and no more."""
        if self._answering is None and self._handler is None:
            super().shutdown()
        else:
            self._stopping = True


def _head_too_large(_body: bytes) -> Reply:
    return Reply(431, b'{"Error":"the head of a request is larger than the %d bytes that are read"}' % HEAD_BYTES)
