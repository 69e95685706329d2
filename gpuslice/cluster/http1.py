"""A client's end of one HTTP/1.1 connection. httptools reads the answers; what they mean for the connection is here."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, cast

import httptools

from gpuslice.cluster.lines import Lines
from gpuslice.cluster.wire import BadAnswer

_UNFRAMED_BYTES = 64 * 1024
"""A longer head, trailer, or beginning of a chunk is no answer."""
_VERSIONS = frozenset({"1.0", "1.1"})
_FRAMES = frozenset({b"content-length", b"transfer-encoding"})
"""An answer without these lasts until the connection ends."""


class Answer(NamedTuple):
    """What the other side said, with its headers as they came."""

    status: int
    fields: Sequence[tuple[bytes, bytes]]
    body: bytes = b""
    lines: Lines | None = None
    """The body of a watch, which goes on."""

    def header(self, name: bytes) -> bytes | None:
        """Return the value of a header, given its name in lower case."""
        return _named(self.fields, name)


class Connection(asyncio.Protocol):
    """One connection, for one exchange at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        """Done when the connection is closed on our side too."""
        self.ended = False
        """The other side has closed, or has spoken out of turn."""
        self.exchanges = 0
        self._idle_since = 0.0
        self.transport: asyncio.Transport
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[Answer] = self._loop.create_future()
        self._busy = False
        """An answer is due, or on its way."""
        self._silence_seconds: float | None = None
        """What a watch may last without a word; None for any other exchange."""
        self._lines: Lines | None = None
        self._status = 0
        """Of the answer whose head is complete; 0 before that."""
        self._fields: list[tuple[bytes, bytes]] = []
        self._parts: list[bytes] = []
        self._keeps_open = False
        self._unframed = 0
        """Bytes since the last head, piece of a body, or end of an answer."""

    @property
    def reusable(self) -> bool:
        """Whether the last exchange was completed and the other side will take another."""
        # An answer may come before the request is read to its end.
        return self._keeps_open and not self.ended and not self.transport.get_write_buffer_size()

    @property
    def idle_seconds(self) -> float:
        """Time since the last exchange."""
        return self._loop.time() - self._idle_since

    async def ask(self, request: bytes, *, silence_seconds: float | None = None) -> Answer:
        """Send a request and wait for its answer. Who stops waiting must :meth:`abort`.

        Given ``silence_seconds``, a good answer has ``lines``, and is given before those come.

        Raises:
            BadAnswer: what came is none, or was cut off.
            OSError: the connection broke.
        """
        if self.ended:
            raise BadAnswer("the connection ended before it was asked")
        self.exchanges += 1
        self._busy, self._keeps_open = True, False
        self._silence_seconds, self._lines = silence_seconds, None
        self._status, self._parts = 0, []
        self._answer = self._loop.create_future()
        # Nothing is gained from waiting until it is sent: the answer is waited for anyhow.
        self.transport.write(request)
        return await self._answer

    def abort(self) -> None:
        """Close at once."""
        self.ended = True
        self.transport.abort()

    def close(self) -> None:
        """Close in order; done when :attr:`lost` is."""
        self.ended = True
        self.transport.close()

    # -- asyncio's callbacks -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; uvloop's is no asyncio.Transport, but does the same."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Read."""
        if not self._busy:
            # Some proxies say 408 before they close; it must not be taken for the answer to what we ask next.
            self.abort()
            return
        self._unframed += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            ours = error.__context__
            self._fail(ours if isinstance(ours, BadAnswer) else BadAnswer(f"not HTTP/1.1: {error}, in {data[:40]!r}"))
            self.abort()
        else:
            if self._unframed > _UNFRAMED_BYTES:
                self._fail(BadAnswer(f"a head, or frame of a chunk, longer than {_UNFRAMED_BYTES} bytes"))
                self.abort()

    def eof_received(self) -> None:
        """The other side will say no more, which may be how it ends an answer."""
        self.ended = True
        if self._busy and self._status >= 200 and all(_named(self._fields, name) is None for name in _FRAMES):
            self._complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing more will come."""
        self.ended = True
        self._fail(exc if isinstance(exc, OSError) else BadAnswer("the connection ended in the middle of an answer"))
        self.lost.set_result(None)

    # -- httptools' callbacks ----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin an answer, perhaps one that nobody asked for."""
        self._status, self._fields = 0, []
        if not self._busy:
            self.ended = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; what follows the body is of no interest."""
        if not self._status:
            self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        """Decide where the body goes."""
        self._unframed = 0
        self._status = self._parser.get_status_code()
        if self._parser.get_http_version() not in _VERSIONS:
            raise BadAnswer("an answer in another version of HTTP")
        if self._silence_seconds is not None and 200 <= self._status < 300:
            self._lines = Lines(self.transport, self._silence_seconds)
            self._settle(Answer(self._status, self._fields, lines=self._lines))

    def on_body(self, data: bytes) -> None:
        """Take a piece of the body."""
        self._unframed = 0
        if self._lines is None:
            self._parts.append(data)
        else:
            self._lines.feed(data)

    def on_message_complete(self) -> None:
        """Complete the answer; 100 Continue and its like only announce it."""
        self._unframed = 0
        if self._status >= 200 and self._busy:
            self._keeps_open = self._parser.should_keep_alive()
            self._complete()

    def _complete(self) -> None:
        self._busy, self._idle_since = False, self._loop.time()
        if self._lines is not None:
            self._lines.end()
        else:
            self._settle(Answer(self._status, self._fields, b"".join(self._parts)))

    def _settle(self, answer: Answer) -> None:
        if not self._answer.done():
            self._answer.set_result(answer)

    def _fail(self, error: Exception) -> None:
        if not self._busy:
            return
        self._busy = False
        if self._lines is not None:
            self._lines.end(error)
        elif not self._answer.done():
            self._answer.set_exception(error)


def _named(fields: Sequence[tuple[bytes, bytes]], wanted: bytes) -> bytes | None:
    """Return the last value of a header; few answers are ever asked for one."""
    return next((value for name, value in reversed(fields) if name.lower() == wanted), None)
