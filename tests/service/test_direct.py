"""Hot paths answered from the parser: any order, any pieces, clients that wait, hang up or never end."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import aiohttp
import pytest

from gpuslice.service.direct import Direct, Flow, Reply
from gpuslice.service.listener import open_socket, serve_http
from gpuslice.service.process import until_stopped
from tests.service.application import answer_ok

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def serving_direct(handlers: dict[bytes, Any], application: Any = answer_ok) -> AsyncIterator[int]:
    stopping, started, listening = asyncio.Event(), asyncio.Event(), open_socket("127.0.0.1:0")
    serving = serve_http(application, listening, stopping, direct=Direct(handlers), on_started=started.set)
    task = asyncio.create_task(until_stopped(stopping, serving=serving))
    await started.wait()
    try:
        yield int(listening.getsockname()[1])
    finally:
        stopping.set()
        await task


def request(path: bytes, body: bytes, *headers: bytes) -> bytes:
    lines = (b"POST %b HTTP/1.1" % path, b"Host: x", b"Content-Length: %d" % len(body), *headers)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


async def conversation(port: int, *pieces: bytes) -> bytes:
    """Send the pieces apart from each other; gives all that comes until the server hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
    found = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    return found


LAST = b"Connection: close"


def echo(body: bytes) -> Reply:
    return Reply(200, b"[" + body + b"]", ((b"x-length", b"%d" % len(body)),))


async def echo_later(body: bytes) -> Reply:
    await asyncio.sleep(0)
    return echo(body)


HANDLERS = {b"/now": echo, b"/later": echo_later}
CONVERSATIONS = {
    "one_request": ([request(b"/now", b"1", LAST)], [b"[1]"]),
    "a_query": ([request(b"/now?timeout=10s", b"1", LAST)], [b"[1]"]),
    "an_empty_body": ([request(b"/now", b"", LAST)], [b"[]"]),
    "two_on_one_connection": ([request(b"/now", b"1"), request(b"/now", b"2", LAST)], [b"[1]", b"[2]"]),
    "every_byte_apart": ([bytes((byte,)) for byte in request(b"/now", b"1", LAST)], [b"[1]"]),
    "sent_while_an_answer_is_worked_out": (
        [
            request(b"/later", b"1"),
            request(b"/later", b"2"),
            request(b"/now", b"3" * 99_999),
            request(b"/now", b"4", LAST),
        ],
        [b"[1]", b"[2]", b"[333", b"333]", b"[4]"],
    ),
    "pipelined_behind_a_later_answer": (
        [
            b"".join(request(b"/later", b"%d" % n) + request(b"/now", b"%d" % n) for n in range(20))
            + request(b"/now", b"x", LAST)
        ],
        [b"[%d]" % (n // 2) for n in range(40)] + [b"[x]"],
    ),
    "the_application_pipelined_behind_a_later_answer_the_connection_ends_before_it": (
        [request(b"/later", b"1") + request(b"/now", b"2") + request(b"/other", b"3")],
        [b"[1]", b"connection: close", b"[2]"],
    ),
    "much_too_large_behind_a_later_answer": (
        [request(b"/later", b"1") + b"POST /now HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n1"],
        [b"[1]", b" 413 "],
    ),
    "pipelined_behind_the_application_the_connection_ends_after_it": (
        [request(b"/other", b"1") + request(b"/now", b"2")],
        [b"ok"],
    ),
    "pipelined_behind_an_answer_at_once": ([request(b"/now", b"1") + request(b"/now", b"2", LAST)], [b"[1]", b"[2]"]),
    "a_client_that_asks_before_it_sends": (
        [request(b"/now", b"1", b"Expect: 100-continue", LAST)],
        [b"HTTP/1.1 100 Continue\r\n\r\n", b"[1]"],
    ),
    "a_body_in_chunks": (
        [b"POST /now HTTP/1.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n1\r\n0\r\n\r\n"],
        [b"[1]"],
    ),
    "more_than_is_read": ([b"POST /now HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n1"], [b" 413 "]),
    "no_http_behind_a_later_answer": ([request(b"/later", b"1") + b"\x16\x03\r\n\r\n"], [b" 200 ", b"close", b"[1]"]),
    "no_http_behind_the_application": ([request(b"/other", b"1") + b"\x16\x03\r\n\r\n"], [b" 200 ", b"ok"]),
    "no_http": ([b"\x16\x03\x01\r\n\r\n"], [b" 400 "]),
}


@pytest.mark.parametrize(("sent", "expected"), CONVERSATIONS.values(), ids=CONVERSATIONS)
async def test_hot_paths_are_answered_from_the_parser(sent: list[bytes], expected: list[bytes]) -> None:
    async with serving_direct(HANDLERS) as port:
        found = await conversation(port, *sent)
    for text in expected:
        before, at, found = found.partition(text)
        assert at, (text, before)
    assert b"[" not in found


async def test_the_application_knows_the_connection_also_after_requests_that_passed_it_by() -> None:
    seen: list[dict[str, Any]] = []

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)
        await answer_ok(scope, receive, send)

    async with serving_direct(HANDLERS, noting) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(b"/now", b"1"))
        await reader.readuntil(b"[1]")
        writer.write(request(b"/other?a=b", b"2", b"X-More: 7", LAST))
        await asyncio.wait_for(reader.read(), 5)
        client = writer.get_extra_info("sockname")
        writer.close()
    (scope,) = seen
    expected = {"scheme": "http", "server": ("127.0.0.1", port), "client": client, "path": "/other"}
    assert {name: scope[name] for name in expected} == expected
    assert scope["query_string"] == b"a=b"
    headers = [(b"host", b"x"), (b"content-length", b"1"), (b"x-more", b"7"), (b"connection", b"close")]
    assert scope["headers"] == headers


async def pour(writer: asyncio.StreamWriter) -> None:
    for _ in range(100):
        writer.write(b"x" * 100_000)
        await writer.drain()
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(b"POST /now HTTP/1.1\r\nA: ", id="a head"),
        pytest.param(b"POST /now HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;", id="a frame"),
        pytest.param(request(b"/later", b"1") + b"POST /", id="a head behind a later answer"),
        pytest.param(request(b"/other", b"1") + b"POST /", id="a head behind the application"),
    ],
)
async def test_what_has_no_end_is_not_read_for_ever(before: bytes) -> None:
    async with serving_direct(HANDLERS) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(before)
        with pytest.raises(ConnectionError):
            await pour(writer)
        del reader
        writer.close()


async def test_a_client_that_will_ask_no_more_is_answered() -> None:
    async with serving_direct(HANDLERS) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(b"/later", b"1") + request(b"/later", b"2"))
        writer.write_eof()
        found = await asyncio.wait_for(reader.read(), 5)
        writer.close()
    assert found.partition(b"[1]")[2].endswith(b"[2]")


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param([], id="nothing"),
        pytest.param([b"\r\n"] * 3, id="empty lines"),
        pytest.param([b"POST /now HTTP/1.1\r\nA: "], id="half a head"),
        pytest.param([request(b"/now", b"12345")[:-2]], id="half a body"),
        pytest.param(
            [request(b"/now", b"1") + request(b"/later", b"1"), request(b"/now", b"1")[:-1]], id="half the third"
        ),
        pytest.param([request(b"/other", b"1") + b"P"], id="half a head behind the application"),
    ],
)
async def test_a_client_that_does_not_ask_in_time_is_not_waited_for(
    sent: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuslice.service.listener.KEEP_ALIVE_SECONDS", 0.05)
    async with serving_direct(HANDLERS) as port:
        await conversation(port, *sent)


async def test_all_ways_take_turns_on_one_connection() -> None:
    found = []
    async with (
        serving_direct(HANDLERS) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=aiohttp.TCPConnector(limit=1)) as session,
    ):
        for path in ("/later", "/other", "/now", "/now", "/other", "/later", "/later"):
            async with session.post(path, data=b"1") as reply:
                found.append(await reply.text())
    assert found == ["[1]", "ok", "[1]", "[1]", "ok", "[1]", "[1]"]


async def test_a_client_that_does_not_read_is_not_read_from_either() -> None:
    asked = 0

    def much(body: bytes) -> Reply:
        nonlocal asked
        asked += 1
        return Reply(200, body * 1_000_000)

    async with serving_direct({b"/much": much}) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        for _ in range(200):
            writer.write(request(b"/much", b"x"))
        writer.write(request(b"/much", b"x", LAST))
        before = -1
        while asked != before:
            before = asked
            await asyncio.sleep(0.05)
        assert 0 < asked < 100
        found = 0
        while part := await asyncio.wait_for(reader.read(1 << 20), 5):
            found += len(part)
        writer.close()
    assert asked == 201
    assert found > 201_000_000


class Valve(asyncio.Transport):
    """A transport that only knows whether it is read."""

    reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return False


@pytest.mark.parametrize(
    "steps", [*permutations(("pause_reading", "resume_reading", "pause_writing", "resume_writing"))]
)
async def test_a_client_is_read_while_nothing_speaks_against_it(steps: tuple[str, ...]) -> None:
    valve = Valve()
    flow = Flow(valve)
    for step in steps:
        getattr(flow, step)()
        assert valve.reading != (flow.read_paused or flow.write_paused)


async def test_a_caller_that_hangs_up_does_not_stop_what_it_asked_for() -> None:
    asked, go_on, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(body: bytes) -> Reply:
        asked.set()
        await go_on.wait()
        done.set()
        return echo(body)

    async with serving_direct({b"/slow": slow}) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(b"/slow", b"1"))
        await asked.wait()
        writer.close()
        await writer.wait_closed()
        go_on.set()
        await asyncio.wait_for(done.wait(), 5)


@dataclass(frozen=True)
class UnderWay:
    """A daemon that works on one answer until told to go on."""

    direct: Direct
    listening: socket.socket
    stopping: asyncio.Event
    go_on: asyncio.Event
    served: asyncio.Task[None]
    reader: asyncio.StreamReader


@asynccontextmanager
async def one_answer_under_way() -> AsyncIterator[UnderWay]:
    asked, go_on, stopping, started = (asyncio.Event() for _ in range(4))

    async def slow(body: bytes) -> Reply:
        asked.set()
        await go_on.wait()
        return echo(body)

    listening, direct = open_socket("127.0.0.1:0"), Direct({b"/slow": slow})
    served = asyncio.create_task(serve_http(answer_ok, listening, stopping, direct=direct, on_started=started.set))
    await started.wait()
    reader, writer = await asyncio.open_connection("127.0.0.1", listening.getsockname()[1])
    writer.write(request(b"/slow", b"1"))
    await asked.wait()
    try:
        yield UnderWay(direct, listening, stopping, go_on, served, reader)
    finally:
        stopping.set()
        go_on.set()
        writer.close()
        await served


async def test_what_is_under_way_when_the_daemon_stops_is_answered_and_the_connection_ends() -> None:
    async with one_answer_under_way() as daemon:
        daemon.stopping.set()
        while daemon.listening.fileno() >= 0:  # noqa: ASYNC110  uvicorn closes it first when it stops
            await asyncio.sleep(0)
        daemon.go_on.set()
        found = await asyncio.wait_for(daemon.reader.read(), 5)
    assert found.endswith(b"[1]")
    assert b"connection: close" in found


async def test_what_is_under_way_goes_on_when_the_daemon_does_not_wait_for_it_any_longer() -> None:
    """A binding cut off after it was written, and before that is known, would give its share away."""
    async with one_answer_under_way() as daemon:
        daemon.stopping.set()
        await daemon.served
        (answering,) = daemon.direct.under_way
        daemon.go_on.set()
        await daemon.direct.finish()
        assert answering.done()
        assert not answering.cancelled()
