"""The lines of a watch, between the socket that brings them and whoever takes them."""

import asyncio
from collections import deque
from collections.abc import Callable

from gpuslice.cluster.wire import BadAnswer

_LINE_BYTES = 64 * 1024 * 1024
_WAITING_BYTES = 1024 * 1024


class LineSplitter:
    """Splits a body that comes in pieces into lines of any length up to 64 MiB; empty lines are left out."""

    def __init__(self) -> None:
        self._begun = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Give the lines that ``data`` completes.

        Raises:
            BadAnswer: a line is longer.
        """
        *ends, rest = data.split(b"\n")
        if ends and self._begun:
            ends[0] = bytes(self._begun + ends[0])
            self._begun.clear()
        self._begun += rest
        if len(self._begun) > _LINE_BYTES:
            raise BadAnswer("a line longer than 64 MiB")
        return [line for line in ends if line]


class Lines:
    """Lines in the order of coming.

    While more than 1 MiB of them waits, nothing more is read. What brings nothing for ``silence_seconds`` is over.
    """

    def __init__(self, transport: asyncio.Transport, silence_seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = transport
        self._silence_seconds = silence_seconds
        self._splitter = LineSplitter()
        self._ready: deque[bytes] = deque()
        self._ready_bytes = 0
        self._paused = False
        self._arrival: asyncio.Future[None] | None = None
        self._ended = False
        self._error: Exception | None = None
        self.put_off: Callable[[Callable[[], None]], None] | None = None
        """Tells when lines that have come are handed over; None for at once."""
        self._heard_at = self._loop.time()
        # One timer for all lines: it looks at the clock when it goes off.
        self._timer = self._loop.call_later(silence_seconds, self._look_for_silence)

    @property
    def waiting(self) -> bool:
        """Whether there is a line to take right now."""
        return bool(self._ready)

    def feed(self, data: bytes) -> None:
        """Take what the socket has brought.

        Raises:
            BadAnswer: a line is too long.
        """
        self._heard_at = self._loop.time()
        found = self._splitter.feed(data)
        if not found:
            return
        self._ready.extend(found)
        self._ready_bytes += sum(map(len, found))
        if self._ready_bytes > _WAITING_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        if self.put_off is None or self._arrival is None:
            self._wake()
        else:
            self.put_off(self._wake)

    def end(self, error: Exception | None = None) -> None:
        """Note that nothing more will come."""
        if not self._ended:
            self._ended, self._error = True, error
            self._timer.cancel()
            self._wake()

    async def take(self, most: int) -> list[bytes]:
        """Wait until there are lines, and give up to ``most`` of them; none at the end of the watch.

        Raises:
            BadAnswer, OSError: the watch broke off.
            TimeoutError: it was silent for too long.
        """
        if not self._ready and not self._ended:
            self._arrival = self._loop.create_future()
            try:
                await self._arrival
            finally:
                self._arrival = None
        if not self._ready and self._error is not None:
            raise self._error
        taken = [self._ready.popleft() for _ in range(min(most, len(self._ready)))]
        if not self._ready:
            self._ready_bytes = 0
            self._read_on()
        return taken

    def _read_on(self) -> None:
        if self._paused and not self._transport.is_closing():
            self._paused = False
            self._heard_at = self._loop.time()
            self._transport.resume_reading()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _look_for_silence(self) -> None:
        now = self._loop.time()
        over_at = (now if self._paused else self._heard_at) + self._silence_seconds
        if now < over_at:
            self._timer = self._loop.call_at(over_at, self._look_for_silence)
        else:
            self.end(TimeoutError())
