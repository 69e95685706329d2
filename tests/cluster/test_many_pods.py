"""Many pods at once on the real API server: nothing granted twice, nothing lost."""

import json
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from simulator.audit import audit
from tests.cluster.harness import pods
from tests.cluster.harness.api import Json
from tests.cluster.harness.fleet import CARD_MIB, Fleet, running_fleet
from tests.cluster.harness.process import hold, wait_until

pytestmark = pytest.mark.cluster

NODES, CARDS, PODS = 100, 8, 500
SCHEDULER = "gpuslice-scheduler"
PARTITION_SECONDS = 30.0


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with running_fleet(nodes=NODES, cards=CARDS) as fleet:
        yield fleet


def mixed(number: int) -> Json:
    """Return pod number N of a mix: shares of several sizes, two cards, two containers."""
    if number % 10 == 9:
        containers = [pods.container("main", cards=2, memory_mib=CARD_MIB)]
    elif number % 10 == 8:
        containers = [pods.container(name, cards=1, memory_mib=CARD_MIB // 2) for name in ("left", "right")]
    else:
        containers = [pods.container("main", cards=1, memory_mib=2000 * (1 + number % 5), cores=10 * (number % 4))]
    return pods.pod(f"pod-{number:04d}", *containers, schedulerName=SCHEDULER)


def slices(found: list[Json]) -> Counter[str]:
    """Count how often each slice is given away, by a plain reading of the annotations."""
    counted: Counter[str] = Counter()
    for pod in found:
        for shares in json.loads(pod["metadata"]["annotations"]["gpuslice.io/allocation"])["containers"].values():
            counted.update(share["slice"] for share in shares)
    return counted


def assert_books_agree(fleet: Fleet) -> None:
    found = fleet.bound()
    assert not audit(found, fleet.admin.list("nodes"))
    assert max(slices(found).values()) == 1


def test_five_hundred_pods_at_once(fleet: Fleet) -> None:
    created: dict[str, float] = {}
    placed: dict[str, float] = {}

    def all_bound() -> bool:
        now = time.monotonic()
        for pod in fleet.bound():
            placed.setdefault(pod["metadata"]["name"], now)
        return len(placed) == PODS

    manifests = [mixed(number) for number in range(PODS)]
    start = time.monotonic()
    created.update({manifest["metadata"]["name"]: start for manifest in manifests})
    fleet.create_pods(manifests)
    wait_until(all_bound, what=f"{PODS} pods bound", within_seconds=120, explain=lambda: f"{len(placed)} bound")
    waits = sorted(placed[name] - created[name] for name in placed)
    p50, p99 = waits[PODS // 2], waits[int(PODS * 0.99)]
    print(f"\n{PODS} pods on {NODES} nodes: p50 {p50:.2f} s, p99 {p99:.2f} s after the first was created")
    assert_books_agree(fleet)


def test_churn_with_the_extender_killed_and_the_api_server_restarted(fleet: Fleet) -> None:
    for number in range(0, PODS, 2):
        fleet.end_pod(f"pod-{number:04d}")
    fleet.create_pods([mixed(number) for number in range(PODS, PODS + 100)])
    fleet.extender.kill()
    fleet.create_pods([mixed(number) for number in range(PODS + 100, PODS + 200)])
    fleet.start_extender()
    fleet.plane.stop_api_server()
    fleet.plane.start_api_server()
    wait_until(
        lambda: len(fleet.bound()) == PODS // 2 + 200,
        what="every pod bound",
        within_seconds=120,
        explain=lambda: f"{len(fleet.bound())} of {len(fleet.pods())} bound",
    )
    assert_books_agree(fleet)


def test_killed_between_decision_and_binding(fleet: Fleet) -> None:
    before = len(fleet.bound())
    binding: list[str] = []

    def note(verb: str, pod: str) -> None:
        if verb == "bind":
            binding.append(pod)

    fleet.observer.before = note
    # The extender decides and writes, but never learns what the API server made of it.
    fleet.relay.silence()
    fleet.create_pods([mixed(number) for number in range(1000, 1020)])
    wait_until(lambda: len(binding) >= 5, what="bindings under way", within_seconds=30)
    fleet.extender.kill()
    fleet.relay.speak()
    fleet.start_extender()
    wait_until(
        lambda: len(fleet.bound()) == before + 20,
        what="every pod bound",
        within_seconds=120,
        explain=lambda: f"{len(fleet.bound())} of {len(fleet.pods())} bound",
    )
    assert_books_agree(fleet)


@pytest.mark.slow
def test_after_a_partition_the_books_still_agree(fleet: Fleet) -> None:
    before = len(fleet.bound())
    fleet.create_pods([mixed(number) for number in range(1900, 1950)])
    wait_until(lambda: len(fleet.bound()) == before + 50, what="50 pods bound", within_seconds=120)
    before += 50
    fleet.relay.silence()
    fleet.create_pods([mixed(number) for number in range(2000, 2050)])
    for number in range(1900, 1950):
        fleet.end_pod(f"pod-{number:04d}")
    # Nothing that the extender was not told may reach the API server while the line is silent.
    hold(
        lambda: len(fleet.bound()) <= before + 50,
        what="no more pods bound than there are",
        for_seconds=PARTITION_SECONDS,
    )
    fleet.relay.speak()
    wait_until(
        lambda: len(fleet.bound()) == before - 50 + 50,
        what="every pod bound",
        within_seconds=120,
        explain=lambda: f"{len(fleet.bound())} of {len(fleet.pods())} bound",
    )
    assert_books_agree(fleet)
