"""A client's end of one HTTP/1.1 connection: as much of RFC 9112 as an API server, or a load balancer, asks for."""

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from gpuslice.cluster.wire import notice_silence

_HEAD_BYTES = 64 * 1024
_CHUNK_BYTES = 64 * 1024
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: |$)")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;.*)?\r\n")
_BODYLESS = frozenset({204, 304})


class BadAnswer(Exception):
    """The other side does not speak HTTP/1.1, or ended in the middle of it."""


@dataclass(frozen=True, slots=True)
class Head:
    """Status and headers (names in lower case) of an answer."""

    status: int
    headers: Mapping[str, str]
    keeps_open: bool


class Connection:
    """One connection, for one exchange at a time: ``send``, ``head``, ``body`` to its end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.idle_since = 0.0
        self.exchanges = 0
        self.reusable = False
        """The last exchange was completed and the other side will take another."""

    @property
    def ended(self) -> bool:
        """Whether the other side has closed, or has spoken out of turn."""
        # Some proxies say 408 before they close; it must not be taken for the answer to what we ask next.
        waiting: bytearray = self._reader._buffer  # type: ignore[attr-defined]  # noqa: SLF001  no other way to see it
        return self._reader.at_eof() or self._writer.is_closing() or bool(waiting)

    async def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> None:
        """Send a request."""
        self.reusable = False
        self.exchanges += 1
        fields = dict(headers)
        if body is not None:
            fields["Content-Length"] = str(len(body))
        head = "".join([f"{method} {target} HTTP/1.1\r\n", *(f"{k}: {v}\r\n" for k, v in fields.items()), "\r\n"])
        self._writer.write(head.encode("latin-1") + (body or b""))
        await self._writer.drain()

    async def head(self) -> Head:
        """Read the head of the answer.

        Raises:
            BadAnswer: there is none.
        """
        while True:
            found = _parse_head(await self._until(b"\r\n\r\n"))
            # 100 Continue and its like announce the answer proper.
            if found.status >= 200:
                return found

    async def body(self, head: Head) -> AsyncIterator[bytes]:
        """Yield the body as it comes; read it to its end, or close the connection.

        Raises:
            BadAnswer: it is cut off, or malformed.
        """
        if head.status in _BODYLESS:
            parts = self._counted(0)
        elif head.headers.get("transfer-encoding", "identity").lower() == "chunked":
            parts = self._chunked()
        elif (length := head.headers.get("content-length")) is not None:
            parts = self._counted(_length(length))
        else:
            parts = self._rest()
        async for part in parts:
            yield part
        self.reusable = head.keeps_open and not self._reader.at_eof()

    async def _counted(self, remaining: int) -> AsyncIterator[bytes]:
        while remaining:
            part = await self._reader.read(min(remaining, _CHUNK_BYTES))
            if not part:
                raise BadAnswer("the connection ended in the middle of an answer")
            remaining -= len(part)
            yield part

    async def _chunked(self) -> AsyncIterator[bytes]:
        while True:
            line = await self._until(b"\r\n")
            found = _CHUNK_SIZE.fullmatch(line)
            if found is None:
                raise BadAnswer(f"a chunk begins with {line[:40]!r}")
            size = int(found[1], 16)
            if not size:
                break
            async for part in self._counted(size):
                yield part
            if await self._until(b"\r\n") != b"\r\n":
                raise BadAnswer("a chunk is longer than it says")
        # Trailers, of no interest to us, up to an empty line.
        while await self._until(b"\r\n") != b"\r\n":
            pass

    async def _rest(self) -> AsyncIterator[bytes]:
        while part := await self._reader.read(_CHUNK_BYTES):
            yield part

    async def _until(self, separator: bytes) -> bytes:
        try:
            return await self._reader.readuntil(separator)
        except asyncio.IncompleteReadError as error:
            raise BadAnswer("the connection ended in the middle of an answer") from error
        except asyncio.LimitOverrunError as error:
            raise BadAnswer(f"a head longer than {_HEAD_BYTES} bytes") from error

    def abort(self) -> None:
        """Close at once."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Close in order."""
        self._writer.close()
        with contextlib.suppress(OSError, ssl.SSLError, TimeoutError):
            async with asyncio.timeout(1.0):
                await self._writer.wait_closed()


async def connect(host: str, port: int, tls: ssl.SSLContext | None, tls_name: str | None) -> Connection:
    """Open a connection; raises OSError (which TLS errors are) where that fails."""
    reader, writer = await asyncio.open_connection(
        host, port, ssl=tls, server_hostname=(tls_name or host) if tls is not None else None, limit=_HEAD_BYTES
    )
    notice_silence(writer.get_extra_info("socket"))
    return Connection(reader, writer)


def _parse_head(content: bytes) -> Head:
    status_line, *rest = content[:-4].split(b"\r\n")
    found = _STATUS_LINE.match(status_line)
    if found is None:
        raise BadAnswer(f"an answer begins with {status_line[:40]!r}")
    headers: dict[str, str] = {}
    for line in rest:
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon:
            raise BadAnswer(f"a header reads {line[:40]!r}")
        headers[name.lower()] = value.strip()
    wishes = {word.strip() for word in headers.get("connection", "").lower().split(",")}
    return Head(int(found[2]), headers, keeps_open=found[1] == b"1" and "close" not in wishes)


def _length(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise BadAnswer(f"Content-Length is {text[:40]!r}")
    return int(text)
