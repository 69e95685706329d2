"""The transport against servers that follow a script: what HTTP/1.1 allows, and what it does not."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from gpuslice.cluster.config import ClusterConfig
from gpuslice.cluster.credentials import FixedHeaders
from gpuslice.cluster.errors import ApiError, Unreachable
from gpuslice.cluster.http1 import Connection
from gpuslice.cluster.moments import SpareMoments
from gpuslice.cluster.transport import Transport

pytestmark = pytest.mark.anyio
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


class Script:
    """Answers the n-th request with the n-th text; ``!`` before it: close after that."""

    def __init__(self, answers: Sequence[bytes]) -> None:
        self._answers = iter(answers)
        self.requests: list[bytes] = []
        self.connections = 0
        self.asked = asyncio.Semaphore(0)
        self.closed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = [line for line in head.split(b"\r\n") if line.startswith(b"Content-Length: ")]
                body = await reader.readexactly(int(length[0].split()[1])) if length else b""
                self.requests.append(head + body)
                self.writer = writer
                self.asked.release()
                answer = next(self._answers)
                writer.write(answer.removeprefix(b"!"))
                if answer.startswith(b"!"):
                    break
        except (asyncio.IncompleteReadError, StopIteration, ConnectionResetError):
            pass
        finally:
            writer.close()
            self.closed.set()

    async def say(self, more: bytes) -> None:
        """Go on with the last answer."""
        self.writer.write(more)
        await self.writer.drain()


class Renewed(FixedHeaders):
    """Credentials that are renewed when the API server does not know them."""

    def __init__(self) -> None:
        super().__init__("Bearer old")

    def forget(self) -> None:
        self._headers = {"Authorization": "Bearer new"}


@asynccontextmanager
async def talking(*answers: bytes, **options: Any) -> AsyncIterator[tuple[Transport, Script]]:
    script = Script(answers)
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        async with Transport(ClusterConfig(f"http://127.0.0.1:{port}/prefix", Renewed()), **options) as transport:
            yield transport, script
        # Our end is closed; let the script's end see it.
        if script.connections:
            await script.closed.wait()
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        pytest.param(OK, b"ok", id="counted"),
        pytest.param(CHUNKED + b"1\r\no\r\n1;x=y\r\nk\r\n0\r\n\r\n", b"ok", id="in chunks, one with an extension"),
        pytest.param(CHUNKED + b"2\r\nok\r\n0\r\nExpires: never\r\n\r\n", b"ok", id="in chunks with a trailer"),
        pytest.param(b"!HTTP/1.1 200 OK\r\n\r\nok", b"ok", id="to the end of the connection"),
        pytest.param(b"!HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok", id="from an old proxy"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"ok", id="after a provisional answer"),
        pytest.param(b"!" + OK.replace(b"OK\r\n", b"OK\r\nConnection: TE, Close\r\n"), b"ok", id="and closes"),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", b"", id="none"),
    ],
)
async def test_a_body_is_read_however_it_is_framed(answer: bytes, body: bytes) -> None:
    async with talking(answer, answer) as (transport, script):
        assert await transport.request("GET", "/a") == body
        assert await transport.request("GET", "/a") == body
        assert script.connections == (2 if answer.startswith(b"!") else 1)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        pytest.param(b"!", "ended in the middle", id="nothing"),
        pytest.param(b"!SSH-2.0-OpenSSH\r\n\r\n", "Expected HTTP/.*SSH-2.0", id="another protocol"),
        pytest.param(b"!HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", "ended in the middle", id="cut off"),
        pytest.param(b"!HTTP/1.1 200 OK\r\nA: " + b"x" * 70_000, "a head, or frame", id="an endless head"),
    ],
)
async def test_what_is_no_answer_is_no_answer(answer: bytes, problem: str) -> None:
    async with talking(answer) as (transport, _):
        with pytest.raises(Unreachable, match=problem):
            await transport.request("POST", "/a", body=b"{}")


async def test_a_request_says_what_it_must() -> None:
    async with talking(OK) as (transport, script):
        await transport.request("PATCH", "/a b", query={"fieldSelector": "x=y"}, body=b"{}", content_type="t/j")
    head = script.requests[0].decode()
    assert head.startswith("PATCH /prefix/a%20b?fieldSelector=x%3Dy HTTP/1.1\r\nHost: 127.0.0.1:")
    assert head.endswith("Content-Type: t/j\r\nContent-Length: 2\r\n\r\n{}")
    assert "Authorization: Bearer old\r\n" in head


async def test_a_connection_that_died_idle_is_replaced_for_what_may_be_repeated() -> None:
    async with talking(OK, b"!", OK) as (transport, script):
        await transport.request("GET", "/a")
        assert await transport.request("GET", "/a") == b"ok"
        assert script.connections == 2


async def test_what_may_not_be_repeated_is_not() -> None:
    async with talking(OK, b"!", OK) as (transport, script):
        await transport.request("GET", "/a")
        with pytest.raises(Unreachable):
            await transport.request("POST", "/a", body=b"{}")
        assert [request.split()[0] for request in script.requests] == [b"GET", b"POST"]


async def test_what_may_be_repeated_is_repeated_once() -> None:
    async with talking(OK, OK, OK, b"!", b"!", OK) as (transport, script):
        assert await asyncio.gather(*(transport.request("GET", "/a") for _ in range(3))) == [b"ok"] * 3
        with pytest.raises(Unreachable, match="ended in the middle"):
            await transport.request("DELETE", "/a")
        assert [request.split()[0] for request in script.requests] == [b"GET"] * 3 + [b"DELETE"] * 2
        assert script.connections == 4


async def test_who_ends_every_connection_at_once_is_not_called_again_and_again() -> None:
    async def hang_up(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        """Say nothing."""

    async with served_by(hang_up) as transport:
        made = []
        connect = transport._route.connect

        async def connect_and_dawdle() -> Connection:
            made.append(await connect())
            await made[-1].lost
            return made[-1]

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(transport._route, "connect", connect_and_dawdle)
            with pytest.raises(Unreachable, match="ended before it was asked"):
                await transport.request("GET", "/a")
        assert len(made) == 1


async def test_words_of_farewell_are_not_the_next_answer() -> None:
    farewell = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    async with talking(b"!" + OK + farewell, OK) as (transport, script):
        assert await transport.request("GET", "/a") == b"ok"
        await script.closed.wait()
        assert await transport.request("GET", "/a") == b"ok"


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_words_of_farewell_that_cross_the_next_request_are_not_its_answer(method: str) -> None:
    farewell = b"!HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    async with talking(OK, farewell, OK) as (transport, script):
        await transport.request("GET", "/a")
        if method == "GET":
            assert await transport.request(method, "/a") == b"ok"
        else:
            with pytest.raises(Unreachable, match="idle for too long"):
                await transport.request(method, "/a", body=b"{}")
        assert script.connections == (2 if method == "GET" else 1)


async def test_credentials_are_renewed_once() -> None:
    refused = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
    async with talking(refused, OK, refused, refused) as (transport, script):
        assert await transport.request("GET", "/a") == b"ok"
        with pytest.raises(ApiError, match="401"):
            await transport.request("GET", "/a")
    tokens = [request.partition(b"Bearer ")[2].split()[0] for request in script.requests]
    assert tokens == [b"old", b"new", b"new", b"new"]


async def test_a_watch_yields_lines_across_chunks_and_ends_with_the_server() -> None:
    async with talking(CHUNKED + b"3\r\none\r\n5\r\n\ntwo\n\r\n6\r\nthree\n\r\n0\r\n\r\n") as (transport, _):
        assert [line async for line in transport.stream("/w", query={})] == [b"one", b"two", b"three"]


async def test_a_silent_watch_is_given_up() -> None:
    async with talking(CHUNKED + b"4\r\none\n\r\n") as (transport, _):
        lines = aiter(transport.stream("/w", query={}, silence_seconds=0.05))
        assert await anext(lines) == b"one"
        with pytest.raises(Unreachable, match=r"silent for 0\.05 s"):
            await anext(lines)


async def test_an_answer_that_does_not_come_is_not_waited_for() -> None:
    async with talking(b"HTTP/1.1 200 OK\r\n") as (transport, _):
        with pytest.raises(Unreachable, match=r"timed out after 0\.05 s"):
            await transport.request("GET", "/a", timeout_seconds=0.05)


async def test_a_redirection_is_a_refusal() -> None:
    async with talking(b"HTTP/1.1 302 Found\r\nLocation: /b\r\nContent-Length: 0\r\n\r\n") as (transport, _):
        with pytest.raises(ApiError, match="302"):
            await transport.request("GET", "/a")


async def test_calls_share_no_more_connections_than_agreed() -> None:
    async with talking(*[OK] * 9, connections=2) as (transport, script):
        assert await asyncio.gather(*(transport.request("GET", "/a") for _ in range(9))) == [b"ok"] * 9
        assert script.connections == 2


NUMBERS = b"".join(b"%d\n" % number for number in range(10))
TEN_LINES = CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (len(NUMBERS), NUMBERS)


async def test_others_have_a_round_after_every_few_lines() -> None:
    seen: list[bytes] = []
    rounds: set[int] = set()

    async def others() -> None:
        while True:
            rounds.add(len(seen))
            await asyncio.sleep(0)

    async with talking(TEN_LINES) as (transport, _):
        watching = asyncio.create_task(others())
        async for line in transport.stream("/w", query={}):
            seen.append(line)  # noqa: PERF401  others look at it meanwhile
        watching.cancel()
    assert rounds - {10} == {0, 4, 8}


async def test_what_a_watch_brings_waits_for_a_spare_moment() -> None:
    class Noted(SpareMoments):
        """Has no other moments than the test's."""

        def __init__(self) -> None:
            self.came = asyncio.Event()

        def put_off(self, work: Callable[[], None]) -> None:
            self.work = work
            self.came.set()

    moments = Noted()
    async with (
        talking(CHUNKED + b"4\r\none\n\r\n", moments=moments) as (transport, script),
        aclosing(transport.stream("/w", query={})) as lines,
    ):
        first = await anext(lines)
        second = asyncio.create_task(anext(lines))
        await asyncio.sleep(0)
        await script.say(b"4\r\ntwo\n\r\n")
        await moments.came.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        before = second.done()
        moments.work()
        assert (first, before, await second) == (b"one", False, b"two")


async def test_the_end_of_a_watch_waits_for_nothing() -> None:
    async with talking(b"!" + CHUNKED, moments=SpareMoments()) as (transport, _):
        with pytest.raises(Unreachable, match="ended in the middle"):
            await anext(transport.stream("/w", query={}))


async def test_a_call_that_is_given_up_ends_its_connection() -> None:
    async with talking(b"HTTP/1.1 200 OK\r\n", OK) as (transport, script):
        call = asyncio.create_task(transport.request("GET", "/a"))
        await script.asked.acquire()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await script.closed.wait()
        assert await transport.request("GET", "/a") == b"ok"


async def test_a_watch_that_is_left_ends_its_connection() -> None:
    async with talking(CHUNKED + b"8\r\none\ntwo\n\r\n") as (transport, script):
        async with aclosing(transport.stream("/w", query={})) as lines:
            assert await anext(lines) == b"one"
        await script.closed.wait()


async def test_closing_the_door_ends_what_is_under_way() -> None:
    async with talking(b"HTTP/1.1 200 OK\r\n", CHUNKED) as (transport, script):
        call = asyncio.create_task(transport.request("GET", "/a"))
        watch = asyncio.create_task(anext(transport.stream("/w", query={})))
        for _ in range(2):
            await script.asked.acquire()
    for task in (call, watch):
        with pytest.raises(Unreachable, match="ended in the middle"):
            await task


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def served_by(handler: Handler) -> AsyncIterator[Transport]:
    """A transport towards a server that does as it likes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except OSError:
            pass
        finally:
            writer.close()
            done.release()

    done = asyncio.Semaphore(0)
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    config = ClusterConfig(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", FixedHeaders())
    async with server:
        async with Transport(config) as transport:
            yield transport
        await done.acquire()
        await asyncio.sleep(0)


async def test_an_answer_may_come_before_the_request_is_read() -> None:
    sizes = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sizes.append(len(await reader.readuntil(b"\r\n\r\n")))
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await reader.read()

    async with served_by(refuse) as transport:
        for _ in range(2):
            with pytest.raises(ApiError, match="413"):
                await transport.request("PUT", "/a", body=b"x" * 32 * 1024 * 1024)
    assert len(sizes) == 2


async def test_who_will_say_no_more_is_asked_no_more() -> None:
    connections = []

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        writer.write_eof()
        await reader.read()

    async with served_by(answer_once) as transport:
        for number in range(1, 4):
            assert await transport.request("GET", "/a") == b"ok"
            assert len(connections) == number


async def test_a_slow_follower_holds_the_server_up() -> None:
    line = b"x" * 65_535 + b"\n"
    sent = []

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED)
        for number in range(600):
            writer.write(b"10000\r\n%b\r\n" % line)
            await writer.drain()
            sent.append(number)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async with served_by(flood) as transport:
        lines = transport.stream("/w", query={})
        await anext(lines)
        rounds_at_rest = 0
        while rounds_at_rest < 200:
            before = len(sent)
            await asyncio.sleep(0)
            rounds_at_rest = 0 if len(sent) > before else rounds_at_rest + 1
        assert before < 500
        assert len([None async for _ in lines]) == 599
