"""Pods that fit nowhere: they cost nothing while they wait, and the right one is tried at once when a share is free."""

import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.cluster.harness import pods
from tests.cluster.harness.api import Json
from tests.cluster.harness.fleet import CARD_MIB, Fleet, running_fleet
from tests.cluster.harness.process import wait_until

pytestmark = pytest.mark.cluster

SCHEDULER = "gpuslice-scheduler"
NODES, CARDS = 10, 2
QUIET_SECONDS = 10.0
QUIET_AFTERWARDS_SECONDS = 5.0
WAITING = 300


@pytest.fixture(scope="module")
def whole_fleet() -> Iterator[Fleet]:
    with running_fleet(nodes=NODES, cards=CARDS) as fleet:
        yield fleet


@pytest.fixture
def fleet(whole_fleet: Fleet) -> Iterator[Fleet]:
    yield whole_fleet
    whole_fleet.observer.before = lambda verb, pod: None
    whole_fleet.clear()


def whole_card(name: str, **spec: str) -> Json:
    return pods.card_pod(name, CARD_MIB, schedulerName=SCHEDULER, **spec)


def fill(fleet: Fleet) -> None:
    """Give every card of the fleet away."""
    count = NODES * CARDS
    fleet.create_pods([whole_card(f"holder-{number}") for number in range(count)])
    fleet.wait_bound(count, within_seconds=60)


def wait_refused(fleet: Fleet, *names: str) -> None:
    def refused() -> bool:
        found = {pod["metadata"]["name"]: pod for pod in fleet.pods()}
        return all(is_unschedulable(found[name]) for name in names)

    wait_until(refused, what=f"{len(names)} pods refused", within_seconds=60)


def is_unschedulable(pod: Json) -> bool:
    return any(c.get("reason") == "Unschedulable" for c in pod["status"].get("conditions", []))


def wait_quiet(fleet: Fleet, *, seconds: float = 1.5, within_seconds: float = 60.0) -> None:
    """Wait until the scheduler has not called for a while."""
    start = time.monotonic()
    wait_until(
        lambda: (
            not fleet.observer.calls("filter", since=max(start, time.monotonic() - seconds))
            and time.monotonic() - start > seconds
        ),
        what="no more filter calls",
        within_seconds=within_seconds,
    )


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({}, id="among equals"),
        pytest.param({"priorityClassName": "patient"}, id="among pods of lower priority that it may not evict"),
    ],
)
def test_one_refused_pod_is_asked_about_at_most_three_times_in_ten_seconds(fleet: Fleet, spec: Json) -> None:
    fleet.create_priority("patient", 1000, policy="Never")
    fill(fleet)
    start = time.monotonic()
    fleet.create_pods([whole_card("refused", **spec)])
    wait_refused(fleet, "refused")
    time.sleep(max(0.0, QUIET_SECONDS - (time.monotonic() - start)))
    assert 1 <= len(fleet.observer.calls("filter", since=start, pod="refused")) <= 3


@pytest.mark.parametrize(
    "scheduler_first",
    [
        pytest.param(False, id="as it comes", marks=pytest.mark.slow),
        pytest.param(True, id="the scheduler asks before our watch"),
    ],
)
def test_of_many_waiting_pods_the_one_that_fits_is_bound_at_once(fleet: Fleet, *, scheduler_first: bool) -> None:
    fill(fleet)
    names = [f"waiting-{number:03d}" for number in range(WAITING)]
    fleet.create_pods([whole_card(name) for name in names])
    wait_refused(fleet, *names)
    wait_quiet(fleet)
    if scheduler_first:
        fleet.relay.silence()
    start = time.monotonic()
    fleet.end_pod("holder-3")
    if scheduler_first:
        asked = wait_until(lambda: fleet.observer.calls("filter", since=start), what="asked", within_seconds=5)
        assert asked[0].seconds < 1
        fleet.relay.speak()
    wait_until(
        lambda: len(fleet.bound()) == NODES * CARDS,
        what="a waiting pod bound",
        within_seconds=10,
        explain=lambda: f"{len(fleet.bound())} bound",
    )
    took = time.monotonic() - start
    # Fails if the scheduler never stops asking.
    wait_quiet(fleet, seconds=QUIET_AFTERWARDS_SECONDS)
    calls = Counter(call.pod for call in fleet.observer.calls("filter", since=start) if call.pod.startswith("waiting"))
    print(f"\nbound after {took:.3f} s; filter calls a pod: max {max(calls.values())}, sum {sum(calls.values())}")
    assert took <= 1.0
    assert max(calls.values()) <= 2
