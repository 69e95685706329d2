"""One thread for files: nobody's call waits for a disk, and what was asked for first is done first.

An executor would do; each of its jobs takes five times as much of the interpreter, for futures of two kinds.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

import structlog

log = structlog.get_logger(__name__)

T = TypeVar("T")
_Job = Callable[[], None]


class FileThread:
    """Runs functions one after the other. `close` waits for all that it was given."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._done: deque[_Job] = deque()
        """What the event loop is to be told."""
        self._told = False
        """The event loop will look into it."""
        self._thread: Thread | None = None

    async def call(self, work: Callable[[], T]) -> T:
        """Run `work` on the thread and wait for it; cancellation leaves it running to its end."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        self._put(partial(self._work, loop, work, result))
        return await result

    def soon(self, work: Callable[[], None]) -> None:
        """Run `work` some time soon; what fails is logged."""
        self._put(partial(_run, work))

    def close(self) -> None:
        """Finish what there is to do, and stop the thread."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _put(self, job: _Job) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._run_all, name="files", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def _run_all(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _work(self, loop: asyncio.AbstractEventLoop, work: Callable[[], T], result: asyncio.Future[T]) -> None:
        try:
            outcome: Callable[[], None] = partial(result.set_result, work())
        except BaseException as error:  # noqa: BLE001  the caller is told, whatever it is
            outcome = partial(result.set_exception, error)
        self._done.append(partial(_tell, result, outcome))
        if not self._told:
            # One wake for all that ends before the event loop comes to it.
            self._told = True
            loop.call_soon_threadsafe(self._tell_all)

    def _tell_all(self) -> None:
        # First: what ends from here on calls for another look.
        self._told = False
        while self._done:
            self._done.popleft()()


def _tell(result: "asyncio.Future[T]", outcome: Callable[[], None]) -> None:
    if not result.done():
        outcome()


def _run(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:
        log.exception("files_failed")
