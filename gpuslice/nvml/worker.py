"""One thread that owns NVML.

NVML calls block, some for seconds when a card is failing, and some versions of the library are not safe against
calls during init and shutdown. All calls run here, one after the other, and NVML stays open: without persistence
mode each first open initialises the cards anew (1 to 3 s each).

What is looked at every second the thread looks at by itself: the event loop sleeps on while there is nothing new.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import ParamSpec, TypeVar

import structlog

log = structlog.get_logger()

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Look:
    """Something to do on the thread again and again, whenever no call is under way."""

    run: Callable[[], None]
    every_seconds: float


@dataclass(frozen=True, slots=True)
class _Job:
    run: Callable[[], None]
    cancel: Callable[[], object]


class NvmlWorker:
    """Runs functions on NVML's thread. `close` waits for the call in progress."""

    def __init__(self) -> None:
        self._look: Look | None = None
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._closed = False

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function` on the thread and wait for it; cancellation leaves the call running to its end."""
        if self._closed:
            raise RuntimeError("NVML's thread has ended")
        if self._thread is None:
            self._thread = Thread(target=self._work, name="nvml", daemon=True)
            self._thread.start()
        done: Future[T] = Future()

        def job() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                done.set_result(function(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001  the caller is told, whatever it is
                done.set_exception(error)

        self._jobs.put(_Job(job, done.cancel))
        return await asyncio.wrap_future(done)

    async def keep_looking(self, look: Look | None) -> None:
        """Replace what the thread looks at; when this returns, the one before does not run any more."""
        await self.call(self._replace, look)

    def _replace(self, look: Look | None) -> None:
        self._look = look

    def _work(self) -> None:
        looked_at = time.monotonic()
        while True:
            look = self._look
            patience = None if look is None else max(0.0, looked_at + look.every_seconds - time.monotonic())
            try:
                job = self._jobs.get(timeout=patience)
            except Empty:
                if look is not None:
                    _run(look)
                looked_at = time.monotonic()
                continue
            if job is None:
                return
            job.run()

    def close(self) -> None:
        """Let the current call end and stop the thread; calls that have not begun are cancelled."""
        self._closed = True
        while not self._jobs.empty():
            if (job := self._jobs.get()) is not None:
                job.cancel()
        self._jobs.put(None)
        if self._thread is not None:
            self._thread.join()


def _run(look: Look) -> None:
    try:
        look.run()
    except Exception:
        # Without its thread nobody would hear of a sick card, and every call would wait for ever.
        log.exception("nvml_look_failed")
