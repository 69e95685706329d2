"""NVML's thread: one call after the other, and what it looks at in between."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from gpuslice.nvml.worker import Look, NvmlWorker

pytestmark = pytest.mark.anyio


@pytest.fixture
def worker() -> NvmlWorker:
    return NvmlWorker()


def _raise() -> None:
    raise ValueError("as the card does")


async def test_all_calls_run_on_one_thread_that_is_not_the_callers(worker: NvmlWorker) -> None:
    threads = [await worker.call(threading.get_ident) for _ in range(3)]
    worker.close()
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()


async def test_what_a_call_raises_reaches_its_caller_and_the_thread_goes_on(worker: NvmlWorker) -> None:
    with pytest.raises(ValueError, match="as the card does"):
        await worker.call(_raise)
    assert await worker.call(int, "7") == 7
    worker.close()


async def test_the_thread_looks_again_and_again_without_being_called(worker: NvmlWorker) -> None:
    looked: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    look = Look(lambda: _tell(loop, looked.put_nowait), 0.001)
    await worker.keep_looking(look)
    threads = {await looked.get() for _ in range(3)}
    assert threads == {await worker.call(threading.get_ident)}
    worker.close()


async def test_a_look_that_fails_does_not_end_the_thread(worker: NvmlWorker) -> None:
    failed: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def look() -> None:
        _tell(loop, failed.put_nowait)
        _raise()

    await worker.keep_looking(Look(look, 0.001))
    threads = {await failed.get() for _ in range(2)}
    assert threads == {await asyncio.wait_for(worker.call(threading.get_ident), 10)}
    worker.close()


def _tell(loop: asyncio.AbstractEventLoop, heard: Callable[[int], None]) -> None:
    loop.call_soon_threadsafe(heard, threading.get_ident())


async def test_a_look_that_was_replaced_does_not_run_any_more(worker: NvmlWorker) -> None:
    running = True
    after: list[bool] = []
    await worker.keep_looking(Look(lambda: after.append(True) if not running else None, 0.0))
    await worker.keep_looking(None)
    running = False
    await worker.call(int)
    worker.close()
    assert after == []


async def test_at_the_end_the_call_in_progress_ends_and_others_are_cancelled(worker: NvmlWorker) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> str:
        begun.set()
        go_on.wait()
        return "done"

    first = asyncio.ensure_future(worker.call(slow))
    second = asyncio.ensure_future(worker.call(int))
    await asyncio.to_thread(begun.wait)
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(asyncio.to_thread(worker.close))
    await asyncio.wait({second})
    go_on.set()
    await closing
    assert (await first, second.cancelled()) == ("done", True)
    with pytest.raises(RuntimeError):
        await worker.call(int)
