"""The embedded scheduler wakes refused pods exactly when kube-scheduler does."""

from collections.abc import Callable

import pytest

from simulator.scheduler.queue import FLUSH_SECONDS, SchedulingQueue


def queue_of(*uids: str) -> SchedulingQueue:
    queue = SchedulingQueue()
    for uid in uids:
        queue.add(uid, name=f"default/{uid}", priority=0)
    return queue


def test_priority_goes_before_arrival() -> None:
    queue = queue_of("early")
    queue.add("urgent", name="default/urgent", priority=100)
    assert queue.pop(0.0) == "urgent"


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        pytest.param(lambda queue: None, None, id="nothing happens: the pod stays parked"),
        pytest.param(lambda queue: queue.wake("a"), "a", id="its own annotation changes"),
        pytest.param(lambda queue: queue.wake("b"), None, id="another pod's annotation changes"),
        pytest.param(lambda queue: queue.wake_all(), "a", id="a scheduled pod ends"),
    ],
)
def test_what_wakes_a_refused_pod(event: Callable[[SchedulingQueue], None], expected: str | None) -> None:
    queue = queue_of("a")
    queue.refused("a", 0.0, wakes_before=queue.wakes)
    event(queue)
    assert queue.pop(1.0) == expected


def test_a_parked_pod_is_flushed_in_the_end() -> None:
    queue = queue_of("a")
    queue.refused("a", 0.0, wakes_before=queue.wakes)
    assert queue.next_time() == FLUSH_SECONDS
    assert queue.pop(FLUSH_SECONDS) == "a"


def test_an_event_during_the_attempt_is_not_lost() -> None:
    queue = queue_of("a")
    wakes = queue.wakes
    queue.wake_all()
    queue.refused("a", 0.0, wakes_before=wakes)
    assert queue.pop(0.0) == "a"


def test_failed_calls_back_off_and_events_do_not_shorten_it() -> None:
    queue = queue_of("a")
    starts = []
    now = 0.0
    for _ in range(6):
        queue.failed("a", now)
        queue.wake_all()
        assert queue.pop(now) is None
        now = queue.next_time() or 0.0
        starts.append(now)
    assert starts == [1.0, 3.0, 7.0, 15.0, 25.0, 35.0]
