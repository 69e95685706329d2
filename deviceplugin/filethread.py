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

from gpuslice.devices.errors import GpusliceError

log = structlog.get_logger(__name__)

T = TypeVar("T")
_Job = Callable[[], None]


class FilesClosed(GpusliceError):
    """Files are not written any more: the daemon is about to end."""


class FileThread:
    """Runs functions one after the other, for callers on one event loop. `close` waits for all that it was given."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._done: deque[_Job] = deque()
        """What the event loop is to be told."""
        self._told = False
        """The event loop will look into it."""
        self._thread: Thread | None = None
        self._closed = False

    async def call(self, work: Callable[[], T]) -> T:
        """Run `work` on the thread and wait for it; cancellation leaves it running to its end.

        Raises:
            FilesClosed: It does not run, since the thread was stopped.
        """
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()
        if not self._put(partial(self._work, loop, work, result)):
            raise FilesClosed("the device plugin is stopping; its next process does this")
        return await result

    def soon(self, work: Callable[[], None]) -> None:
        """Run `work` some time soon; what fails is logged, and so is what comes after `close`."""
        if not self._put(partial(_run, work)):
            log.warning("files_closed", work=repr(work))

    def close(self) -> None:
        """Finish what there is to do, and stop the thread for good."""
        self._closed = True
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _put(self, job: _Job) -> bool:
        if self._closed:
            return False
        if self._thread is None:
            self._thread = Thread(target=self._run_all, name="files", daemon=True)
            self._thread.start()
        self._jobs.put(job)
        return True

    def _run_all(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _work(self, loop: asyncio.AbstractEventLoop, work: Callable[[], T], result: asyncio.Future[T]) -> None:
        try:
            outcome: Callable[[], None] = partial(result.set_result, work())
        except BaseException as error:  # noqa: BLE001  the caller is told, whatever it is
            outcome = partial(result.set_exception, error)
        self._done.append(partial(_tell, result, outcome))
        if self._told:
            return
        # One wake for all that ends before the event loop comes to it.
        self._told = True
        try:
            loop.call_soon_threadsafe(self._tell_all)
        except RuntimeError:
            # The event loop is closed, and nobody waits any more; there may be more to write and remove.
            self._done.clear()
            self._told = False

    def _tell_all(self) -> None:
        # First: what ends from here on calls for another look.
        self._told = False
        while self._done:
            self._done.popleft()()


def _tell(result: "asyncio.Future[T]", outcome: Callable[[], None]) -> None:
    if result.done():
        return
    try:
        outcome()
    except Exception as error:  # noqa: BLE001  no future takes a StopIteration, and others wait behind this one
        result.set_exception(error)


def _run(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:
        log.exception("files_failed")
