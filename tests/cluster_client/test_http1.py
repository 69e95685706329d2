"""One connection without a socket: the same bytes mean the same in whatever pieces they come."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuslice.cluster.http1 import Connection
from gpuslice.cluster.lines import Lines
from gpuslice.cluster.wire import BadAnswer
from tests.extender.virtual import VirtualLoop

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CLOSING = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"


class Wire(asyncio.Transport):
    """Takes everything and notes what is asked of it."""

    def __init__(self, unsent: int = 0) -> None:
        super().__init__()
        self.notes: list[str] = []
        self.unsent = unsent

    def write(self, data: Any) -> None:
        """Nobody reads."""

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return "abort" in self.notes

    def abort(self) -> None:
        self.notes.append("abort")

    def pause_reading(self) -> None:
        self.notes.append("pause")

    def resume_reading(self) -> None:
        self.notes.append("resume")


async def ask(*pieces: bytes, ends: bool = True, unsent: int = 0) -> tuple[object, bool]:
    """Give status and body, or the error, and whether the connection may be used again."""
    connection = Connection()
    connection.connection_made(Wire(unsent))
    asking = asyncio.create_task(connection.ask(b"?"))
    await asyncio.sleep(0)
    for piece in pieces:
        connection.data_received(piece)
    reusable = connection.reusable
    if ends:
        connection.eof_received()
        connection.connection_lost(None)
    try:
        answer = await asyncio.wait_for(asking, 5)
    except BadAnswer as error:
        return str(error).partition(", in ")[0], reusable
    return (answer.status, answer.body), reusable


async def follow(*pieces: bytes) -> tuple[list[bytes], str]:
    """Give the lines of a watch, and how it ended."""
    connection = Connection()
    connection.connection_made(Wire())
    asking = asyncio.create_task(connection.ask(b"?", silence_seconds=5))
    await asyncio.sleep(0)
    for piece in pieces:
        connection.data_received(piece)
    connection.eof_received()
    connection.connection_lost(None)
    lines = (await asking).lines
    assert lines is not None
    taken = []
    try:
        while some := await lines.take(2):
            assert len(some) <= 2
            taken += some
    except BadAnswer as error:
        return taken, str(error)
    return taken, ""


def cut(content: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(content) + 1) for place in places}), len(content)]
    return [content[start:end] for start, end in pairwise(edges) if start < end]


GOOD = [
    pytest.param(OK, True, id="counted"),
    pytest.param(OK.replace(b" OK", b""), True, id="without a reason"),
    pytest.param(CHUNKED + b"1\r\no\r\n1;x=y\r\nk\r\n0\r\n\r\n", True, id="in chunks, one with an extension"),
    pytest.param(CHUNKED + b"2\r\nok\r\n0\r\nExpires: never\r\n\r\n", True, id="in chunks with a trailer"),
    pytest.param(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + OK, True, id="announced twice"
    ),
    pytest.param(CLOSING, False, id="and closes"),
    pytest.param(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", False, id="from an old proxy"),
    pytest.param(b"HTTP/1.1 200 OK\r\n\r\nok", False, id="to the end of the connection"),
    pytest.param(OK + b"HTTP/1.1 408 Timeout\r\nContent-Length: 4\r\n\r\nlate", False, id="with words of farewell"),
    pytest.param(OK + b"H", False, id="with the beginning of another"),
    pytest.param(OK + b"#", False, id="with garbage behind"),
    pytest.param(CLOSING + OK, False, id="closes and says more"),
]


@pytest.mark.parametrize(("answer", "reusable"), GOOD)
def test_an_answer_is_what_it_is_in_whatever_pieces(answer: bytes, reusable: bool) -> None:
    @settings(deadline=None)
    @given(places=st.lists(st.integers(0, len(answer)), max_size=8))
    def check(places: list[int]) -> None:
        assert asyncio.run(ask(*cut(answer, places))) == ((200, b"ok"), reusable)

    check()
    assert asyncio.run(ask(*(bytes([byte]) for byte in answer))) == ((200, b"ok"), reusable)


BAD = [
    pytest.param(b"", "the connection ended", id="nothing"),
    pytest.param(b"HTTP/1.1 200 OK\r\n", "the connection ended", id="half a head"),
    pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n", "the connection ended", id="no more than an announcement"),
    pytest.param(b"SSH-2.0-OpenSSH\r\n\r\n", "not HTTP/1.1: Expected HTTP/", id="another protocol"),
    pytest.param(b"\x15\x03\x01\x00\x02\x02\x16", "not HTTP/1.1", id="TLS"),
    pytest.param(OK.replace(b"1.1", b"2.0"), "an answer in another version", id="another version"),
    pytest.param(OK.replace(b"1.1", b"1.2"), "not HTTP/1.1: Invalid HTTP version", id="a version of the future"),
    pytest.param(OK.replace(b"200", b"20"), "not HTTP/1.1", id="two figures of a status"),
    pytest.param(OK.replace(b"200", b"2000"), "not HTTP/1.1", id="four figures of a status"),
    pytest.param(b"HTTP/1.1 101 Go\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n", "not HTTP/1.1", id="an upgrade"),
    pytest.param(b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", "not HTTP/1.1", id="line feeds alone"),
    pytest.param(
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "not HTTP/1.1: Invalid header token", id="a header without colon"
    ),
    pytest.param(b"HTTP/1.1 200 OK\r\nA: \0\r\n\r\n", "not HTTP/1.1: Invalid header value", id="a NUL in a header"),
    pytest.param(OK.replace(b"Length:", b"Length :"), "not HTTP/1.1: Invalid header", id="a space before the colon"),
    pytest.param(OK.replace(b": 2", b": -2"), "not HTTP/1.1: Invalid character in Content-Length", id="less than none"),
    pytest.param(OK.replace(b": 2", b": 2, 2"), "not HTTP/1.1: Invalid character in Content-Length", id="two lengths"),
    pytest.param(OK.replace(b": 2", b": 2\r\nContent-Length: 3"), "not HTTP/1.1", id="two headers of length"),
    pytest.param(OK.replace(b": 2", b": 99999999999999999999"), "not HTTP/1.1: Content-Length overflow", id="endless"),
    pytest.param(OK.replace(b": 2", b": 2\r\nTransfer-Encoding: chunked"), "not HTTP/1.1", id="length and chunks"),
    pytest.param(OK.replace(b": 2", b": 3"), "the connection ended", id="cut off"),
    pytest.param(CHUNKED + b"2\r\nok\r\n", "the connection ended", id="without the last chunk"),
    pytest.param(CHUNKED + b"2\r\nok\r\n0\r\n", "the connection ended", id="without the last line"),
    pytest.param(CHUNKED + b"-1\r\nok\r\n", "not HTTP/1.1: Invalid character in chunk size", id="a negative chunk"),
    pytest.param(CHUNKED + b"\r\nok\r\n", "not HTTP/1.1: Invalid character in chunk size", id="a chunk of no size"),
    pytest.param(CHUNKED + b"f" * 17 + b"\r\nok", "not HTTP/1.1: Chunk size overflow", id="an endless chunk"),
    pytest.param(CHUNKED + b"1\r\nok\r\n0\r\n\r\n", "not HTTP/1.1: Expected LF after chunk data", id="a longer chunk"),
    pytest.param(CHUNKED + b"2\nok\n0\n\n", "not HTTP/1.1", id="line feeds alone between chunks"),
]


@pytest.mark.parametrize(("answer", "problem"), BAD)
def test_what_is_no_answer_is_none_in_whatever_pieces(answer: bytes, problem: str) -> None:
    whole, reusable = asyncio.run(ask(answer))
    assert (str(whole)[: len(problem)], reusable) == (problem, False)

    @settings(deadline=None)
    @given(places=st.lists(st.integers(0, len(answer)), max_size=8))
    def check(places: list[int]) -> None:
        assert isinstance(asyncio.run(ask(*cut(answer, places)))[0], str)

    check()


@pytest.mark.parametrize(
    "begin",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nA: ", id="a header"),
        pytest.param(b"HTTP/1.1 200 ", id="a reason"),
        pytest.param(CHUNKED + b"1;", id="an extension of a chunk"),
        pytest.param(CHUNKED + b"1\r\no\r\n0\r\nA: ", id="a trailer"),
    ],
)
def test_what_never_ends_is_not_kept(begin: bytes) -> None:
    said, _ = asyncio.run(ask(begin, *[b"x" * 1000] * 70, ends=False))
    assert said == "a head, or frame of a chunk, longer than 65536 bytes"


def test_an_answer_to_half_a_request_is_the_last_one() -> None:
    assert asyncio.run(ask(OK, unsent=1)) == ((200, b"ok"), False)


@pytest.mark.parametrize("farewell", [b"HTTP/1.1 408 Request Timeout\r\n\r\n", b"\r\n", b"#"])
def test_words_out_of_turn_end_a_connection(farewell: bytes) -> None:
    async def check() -> None:
        connection = Connection()
        connection.connection_made(Wire())
        connection.data_received(farewell)
        assert connection.ended
        with pytest.raises(BadAnswer, match="ended before it was asked"):
            await connection.ask(b"?")

    asyncio.run(check())


@settings(deadline=None)
@given(
    lines=st.lists(st.binary(min_size=1, max_size=20).map(lambda line: line.replace(b"\n", b"-")), max_size=20),
    sizes=st.lists(st.integers(1, 30), min_size=1),
    places=st.lists(st.integers(0, 10_000), max_size=8),
    cut_off=st.booleans(),
)
def test_lines_are_what_they_are_in_whatever_chunks_and_pieces(
    lines: list[bytes], sizes: list[int], places: list[int], cut_off: bool
) -> None:
    body, chunks, number = b"".join(line + b"\n" for line in lines), [], 0
    while body:
        size = sizes[number % len(sizes)]
        chunks.append(b"%x\r\n%b\r\n" % (len(body[:size]), body[:size]))
        body, number = body[size:], number + 1
    content = CHUNKED + b"".join(chunks) + (b"" if cut_off else b"0\r\n\r\n")
    assert asyncio.run(follow(*cut(content, places))) == (
        lines,
        "the connection ended in the middle of an answer" if cut_off else "",
    )


def test_what_follows_the_last_line_feed_is_no_line() -> None:
    assert asyncio.run(follow(CHUNKED + b"6\r\n\na\n\n\nb\r\n0\r\n\r\n")) == ([b"a"], "")


def test_a_line_without_end_ends_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuslice.cluster.lines._LINE_BYTES", 1000)
    taken, end = asyncio.run(follow(CHUNKED + b"f0000\r\na\n", *[b"x" * 600] * 3))
    assert (taken, end) == ([b"a"], "a line longer than 64 MiB")


def test_reading_stops_while_too_much_waits_and_that_is_no_silence() -> None:
    async def check() -> None:
        wire = Wire()
        lines = Lines(wire, 10.0)
        for _ in range(11):
            lines.feed(b"x" * 99_999 + b"\n")
        assert wire.notes == ["pause"]
        await asyncio.sleep(50.0)
        while lines.waiting:
            await lines.take(4)
        assert wire.notes == ["pause", "resume"]
        with pytest.raises(TimeoutError):
            await lines.take(1)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(check())
