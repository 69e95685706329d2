"""Our own preemption through the Eviction API of the real API server."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.harness import pods
from tests.cluster.harness.api import Json
from tests.cluster.harness.fleet import CARD_MIB, Fleet, running_fleet
from tests.cluster.harness.process import hold, wait_until

pytestmark = pytest.mark.cluster

SCHEDULER = "gpuslice-scheduler"
QUARTER = CARD_MIB // 4
STEADY_SECONDS = 5.0


@pytest.fixture(scope="module")
def whole_fleet() -> Iterator[Fleet]:
    with running_fleet(nodes=10, cards=1) as fleet:
        for name, value, policy in (
            ("low", 10, "PreemptLowerPriority"),
            ("lower", 5, "PreemptLowerPriority"),
            ("high", 1000, "PreemptLowerPriority"),
            ("patient", 1000, "Never"),
        ):
            fleet.create_priority(name, value, policy=policy)
        yield fleet


@pytest.fixture
def fleet(whole_fleet: Fleet) -> Iterator[Fleet]:
    """Return the fleet; a stand-in for kubelets ends pods that are being deleted."""
    kubelets = Kubelets(whole_fleet)
    yield whole_fleet
    kubelets.stop()
    for budget in whole_fleet.admin.list("poddisruptionbudgets", "default"):
        whole_fleet.admin.delete("poddisruptionbudgets", "default", budget["metadata"]["name"])
    whole_fleet.clear()


class Kubelets:
    """Ends the containers of deleted pods after a moment, as the nodes would."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.ended: dict[str, float] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubelets", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(0.1):
            for pod in self._fleet.pods():
                if pod["metadata"].get("deletionTimestamp") and pod["spec"].get("nodeName"):
                    self._fleet.end_pod(pod["metadata"]["name"])

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


def share(name: str, memory_mib: int, priority: str, **spec: Any) -> Json:
    labels = {"app": name.rsplit("-", 1)[0]}
    return pods.card_pod(
        name,
        memory_mib,
        schedulerName=SCHEDULER,
        priorityClassName=priority,
        labels=labels,
        terminationGracePeriodSeconds=1,
        **spec,
    )


def names(fleet: Fleet) -> set[str]:
    return {pod["metadata"]["name"] for pod in fleet.pods() if not pod["metadata"].get("deletionTimestamp")}


def place(fleet: Fleet, manifests: list[Json]) -> None:
    before = len(fleet.bound())
    fleet.create_pods(manifests)
    fleet.wait_bound(before + len(manifests), within_seconds=30)


def on_one_card(name: str, memory_mib: int, priority: str) -> Json:
    return share(name, memory_mib, priority, nodeSelector={"kubernetes.io/hostname": "node-0000"})


def test_exactly_the_cheapest_victim_makes_room(fleet: Fleet) -> None:
    place(
        fleet,
        [
            on_one_card("worker-0", QUARTER, "low"),
            on_one_card("worker-1", QUARTER, "low"),
            on_one_card("cheap-0", QUARTER, "lower"),
            on_one_card("worker-2", QUARTER, "low"),
        ],
    )
    start = time.monotonic()
    fleet.create_pods([on_one_card("urgent-0", QUARTER, "high")])
    wait_until(lambda: "cheap-0" not in names(fleet), what="the cheapest victim evicted", within_seconds=10)
    evicted = time.monotonic()
    wait_until(lambda: fleet.admin.find("pods", "default", "cheap-0") is None, what="victim gone", within_seconds=10)
    ended = time.monotonic()
    fleet.wait_node_of("urgent-0", within_seconds=10)
    bound = time.monotonic()
    print(f"\nevicted after {evicted - start:.2f} s, bound {bound - ended:.2f} s after the victim's end")
    assert bound - ended <= 2.0
    assert names(fleet) == {"worker-0", "worker-1", "worker-2", "urgent-0"}


def test_the_freed_share_goes_to_nobody_else(fleet: Fleet) -> None:
    place(fleet, [on_one_card(f"worker-{n}", QUARTER, "low") for n in range(4)])
    fleet.create_pods([on_one_card(f"queued-{n}", QUARTER, "low") for n in range(5)])
    fleet.create_pods([on_one_card("urgent-0", QUARTER, "high")])
    assert fleet.wait_node_of("urgent-0", within_seconds=15) == "node-0000"
    bound = {pod["metadata"]["name"] for pod in fleet.bound() if not pod["metadata"].get("deletionTimestamp")}
    assert not {name for name in bound if name.startswith("queued")}


def test_many_at_once_take_no_victim_without_a_beneficiary(fleet: Fleet) -> None:
    place(fleet, [share(f"worker-{n}", QUARTER, "low") for n in range(40)])
    fleet.create_pods([share(f"urgent-{n}", QUARTER, "high") for n in range(20)])
    wait_until(
        lambda: sum(pod["metadata"]["name"].startswith("urgent") for pod in fleet.bound()) == 20,
        what="all urgent pods bound",
        within_seconds=60,
        explain=lambda: str(sorted(names(fleet))),
    )
    hold(
        lambda: sum(name.startswith("worker") for name in names(fleet)) == 20,
        what="twenty victims for twenty pods",
        for_seconds=STEADY_SECONDS,
    )


@pytest.mark.parametrize(
    ("priority", "labels"),
    [
        pytest.param("patient", "none", id="a pod that never preempts"),
        pytest.param("low", "none", id="a pod of equal priority"),
        pytest.param("high", "worker", id="victims under a disruption budget that is used up"),
    ],
)
def test_nobody_is_evicted_for(fleet: Fleet, priority: str, labels: str) -> None:
    fleet.admin.create(
        "poddisruptionbudgets",
        "default",
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "all"},
            "spec": {"minAvailable": "100%", "selector": {"matchLabels": {"app": labels}}},
        },
    )
    place(fleet, [on_one_card(f"worker-{n}", QUARTER, "low") for n in range(4)])
    for number in range(4):
        fleet.run_pod(f"worker-{number}")
    fleet.create_pods([on_one_card("urgent-0", QUARTER, priority)])
    everybody = {"worker-0", "worker-1", "worker-2", "worker-3", "urgent-0"}
    hold(lambda: names(fleet) == everybody, what="nobody evicted", for_seconds=STEADY_SECONDS)
    assert not fleet.admin.get("pods", "default", "urgent-0")["spec"].get("nodeName")
