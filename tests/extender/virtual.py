"""An event loop in which time is a number and the network is memory: half a minute of partition takes milliseconds.

Everything else is real: the extender with its transport, watches, elections and back-offs, and the embedded API server.
When nothing is left to do, the clock jumps to the next deadline. So a test says how long things last, in seconds of the
loop, and the same seed gives the same run.
"""

import asyncio
import random
import selectors
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuslice.cluster.timing import Timing

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
DELAY_SECONDS = 0.0005
"""How long bytes are on their way."""


class _JumpingSelector(selectors.SelectSelector):
    """Waits for nothing but what other threads have to say; time that would pass is added to the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            return super().select(1.0)
        self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self._clock_resolution = 1e-9
        self.held_back: list[Callable[[], None]] | None = None
        """Bytes under way while the network is silent; None while it works."""
        self._listeners: dict[int, Callable[[], asyncio.Protocol]] = {}
        self.slow_callback_duration = 60.0

    def time(self) -> float:
        return self._jumping.now

    def deliver(self, callback: Callable[..., None], *args: Any) -> None:
        """Bring something to the other side of a connection."""
        if self.held_back is not None:
            self.held_back.append(lambda: callback(*args))
        else:
            self.call_later(DELAY_SECONDS, callback, *args)

    def fall_silent(self) -> None:
        """Let nothing arrive, as when a cable is pulled: nobody is told."""
        self.held_back = [] if self.held_back is None else self.held_back

    def speak_again(self) -> None:
        """Let everything arrive that was sent meanwhile, as TCP does."""
        held, self.held_back = self.held_back or [], None
        for callback in held:
            self.call_later(DELAY_SECONDS, callback)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        number = 1 + max(self._listeners, default=10_000)
        self._listeners[number] = protocol_factory
        return _Listener(self, number)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        await asyncio.sleep(DELAY_SECONDS)
        while self.held_back is not None:  # noqa: ASYNC110  nobody tells when a network works again
            await asyncio.sleep(0.1)
        if port not in self._listeners:
            raise ConnectionRefusedError(f"nobody listens on {port}")
        ours, theirs = _Pipe(self), _Pipe(self)
        ours.peer, theirs.peer = theirs, ours
        theirs.protocol, ours.protocol = self._listeners[port](), protocol_factory()
        theirs.protocol.connection_made(theirs)
        ours.protocol.connection_made(ours)
        return ours, ours.protocol


class _Listener:
    def __init__(self, loop: VirtualLoop, port: int) -> None:
        self._loop = loop
        self._port = port
        self.sockets = [self]

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self._port

    def close(self) -> None:
        self._loop._listeners.pop(self._port, None)

    async def wait_closed(self) -> None:
        """Nothing to wait for."""


class _Pipe(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop
        self.peer: _Pipe
        self.protocol: Any = None
        self._closing = False
        self._lost = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "socket" else ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def setsockopt(self, *_: Any) -> None:
        """There is no socket."""

    def is_closing(self) -> bool:
        return self._closing

    def write(self, data: Any) -> None:
        if not self._closing and data:
            self._loop.deliver(self.peer._receive, bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Everything fits."""

    def pause_reading(self) -> None:
        """Whoever is slow gets everything all the same."""

    def resume_reading(self) -> None:
        """See above."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._loop.deliver(self.peer._hear_end)
            self._loop.call_soon(self._lose)

    def abort(self) -> None:
        self.close()

    def _receive(self, data: bytes) -> None:
        if not self._lost and not self._closing:
            self.protocol.data_received(data)

    def _hear_end(self) -> None:
        if not self._lost:
            self._closing = True
            self.protocol.eof_received()
            self._lose()

    def _lose(self) -> None:
        if not self._lost:
            self._lost = True
            self.protocol.connection_lost(None)


class Stall:
    """Stops what a process does by itself, as SIGSTOP does; its monotonic clock goes on."""

    def __init__(self) -> None:
        self._running = asyncio.Event()
        self._running.set()

    def pause(self) -> None:
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    async def passed(self) -> None:
        """Wait while the process is stopped."""
        await self._running.wait()


def timing(draw: random.Random, stall: Stall | None = None) -> Timing:
    """Time and chance of a daemon in this loop."""
    loop = asyncio.get_running_loop()

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds)
        if stall is not None:
            await stall.passed()

    return Timing(clock=loop.time, wall=lambda: EPOCH.timestamp() + loop.time(), sleep=sleep, draw=draw.random)


def now() -> datetime:
    """The API server's clock."""
    return EPOCH + timedelta(seconds=asyncio.get_running_loop().time())
