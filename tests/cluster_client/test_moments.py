"""Work that is put off is done once: in the next spare moment, or soon after."""

import asyncio
from collections.abc import Callable

import pytest

from gpuslice.cluster.moments import AT_MOST_SECONDS, SpareMoments

pytestmark = pytest.mark.anyio


class Timers:
    """Takes the place of the loop's timers: they go off when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.set: list[tuple[float, Callable[[], None]]] = []
        self.cancelled = 0
        monkeypatch.setattr(asyncio.get_running_loop(), "call_later", self.call_later)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> "Timers":
        self.set.append((seconds, callback))
        return self

    def cancel(self) -> None:
        self.cancelled += 1


async def test_a_spare_moment_does_all_that_was_put_off_in_order_and_needs_no_timer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timers, moments, done = Timers(monkeypatch), SpareMoments(), list[str]()
    moments.put_off(lambda: done.append("first"))
    moments.put_off(lambda: done.append("second"))
    before = list(done)
    moments.use()
    moments.use()
    assert (before, done, len(timers.set), timers.cancelled) == ([], ["first", "second"], 1, 1)


async def test_without_a_spare_moment_a_timer_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    timers, moments, done = Timers(monkeypatch), SpareMoments(), list[str]()
    moments.put_off(lambda: done.append("first"))
    [(seconds, goes_off)] = timers.set
    goes_off()
    moments.put_off(lambda: done.append("second"))
    assert (seconds, done, len(timers.set)) == (AT_MOST_SECONDS, ["first"], 2)


async def test_work_that_is_put_off_by_work_waits_for_the_next_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    timers, moments, done = Timers(monkeypatch), SpareMoments(), list[str]()
    moments.put_off(lambda: moments.put_off(lambda: done.append("later")))
    moments.use()
    before = list(done)
    moments.use()
    assert (before, done, len(timers.set)) == ([], ["later"], 2)
