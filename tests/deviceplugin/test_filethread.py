"""Files are written one after the other on a thread, and whoever waits for one is told."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial

import pytest
from structlog.testing import capture_logs

from deviceplugin.filethread import FilesClosed, FileThread

pytestmark = pytest.mark.anyio


def failing(error: BaseException) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


async def test_what_is_asked_for_first_is_done_first_and_each_gets_its_own_result() -> None:
    files, done = FileThread(), list[int]()

    def work(number: int) -> int:
        done.append(number)
        return -number

    files.soon(lambda: done.append(100))
    results = await asyncio.gather(*(files.call(partial(work, number)) for number in range(50)))
    files.close()
    assert (done, results) == ([100, *range(50)], [-number for number in range(50)])


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        pytest.param(OSError("disk"), OSError, id="a disk that fails"),
        pytest.param(StopIteration(), (TypeError, RuntimeError), id="what no future takes"),
    ],
)
async def test_who_asked_is_told_of_a_failure_and_its_neighbours_are_served(
    raised: BaseException, told: type[BaseException] | tuple[type[BaseException], ...]
) -> None:
    files, gate = FileThread(), threading.Event()
    files.soon(failing(OSError()))
    waiting = [asyncio.ensure_future(files.call(work)) for work in (gate.wait, failing(raised), lambda: 7)]
    await asyncio.sleep(0)
    gate.set()
    async with asyncio.timeout(5):
        results = await asyncio.gather(*waiting, return_exceptions=True)
    files.close()
    assert (results[0], results[2]) == (True, 7)
    assert isinstance(results[1], told)


async def test_who_is_cancelled_leaves_its_work_to_be_done() -> None:
    files, gate, done = FileThread(), threading.Event(), list[int]()
    waiting = [asyncio.ensure_future(files.call(work)) for work in (gate.wait, lambda: done.append(1))]
    await asyncio.sleep(0)
    waiting[1].cancel()
    gate.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    files.close()
    assert (done, isinstance(results[1], asyncio.CancelledError)) == ([1], True)


async def test_close_waits_for_all_there_is_to_do() -> None:
    files, done = FileThread(), list[int]()
    for number in range(100):
        files.soon(partial(done.append, number))
    files.close()
    assert done == list(range(100))


@pytest.mark.parametrize("used", [True, False])
async def test_after_close_nothing_is_done_and_that_is_said(used: bool) -> None:
    files, done = FileThread(), list[int]()
    if used:
        await files.call(lambda: None)
    files.close()
    with pytest.raises(FilesClosed):
        await files.call(lambda: done.append(1))
    with capture_logs() as logs:
        files.soon(lambda: done.append(2))
    files.close()
    assert (done, [line["event"] for line in logs]) == ([], ["files_closed"])
    assert "files" not in [thread.name for thread in threading.enumerate()]


def test_an_event_loop_that_is_closed_meanwhile_does_not_keep_the_rest_from_being_done() -> None:
    files, gate, done = FileThread(), threading.Event(), list[int]()
    loop = asyncio.new_event_loop()
    asked = list[asyncio.Future[bool]]()

    async def ask() -> None:
        asked.append(asyncio.ensure_future(files.call(gate.wait)))
        await asyncio.sleep(0)

    loop.run_until_complete(ask())
    asked[0].cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    files.soon(lambda: done.append(1))
    gate.set()
    files.close()
    assert done == [1]
