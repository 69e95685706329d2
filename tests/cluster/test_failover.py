"""Two scheduler pods: the one that holds the Lease works, the other takes over with what the first has promised."""

import json
import signal
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from simulator.audit import audit
from tests.cluster.harness import chart, pods
from tests.cluster.harness.api import Json
from tests.cluster.harness.daemons import Daemon
from tests.cluster.harness.fleet import CARD_MIB, Fleet
from tests.cluster.harness.node import check_machine
from tests.cluster.harness.process import Supervised, wait_until

pytestmark = pytest.mark.cluster

SCHEDULER = "gpuslice-scheduler"
NODES, CARDS = 5, 2
LEASE_SECONDS = {"leaseDuration": "3s", "renewDeadline": "2s", "retryPeriod": "500ms"}
"""Shorter than the default 15 s, so that the test is."""


class Replica:
    """One scheduler pod: kube-scheduler and its extender, which only it can reach."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        self.name = name
        self._fleet = fleet
        self.extender = Daemon(
            "extender",
            [
                "--listen=127.0.0.1:0", "--metrics-port=0", f"--kubeconfig={fleet.scheduler_kubeconfig()}",
                f"--namespace={chart.NAMESPACE}", f"--lease-name={SCHEDULER}", f"--identity={name}", "--follow-lease",
            ],
            folder=fleet.folder / name,
            name=f"extender-{name}",
        )  # fmt: skip
        self.scheduler: Supervised | None = None

    def start(self) -> None:
        self.extender.start()
        wait_until(
            lambda: self.extender.ports, what="extender's ports", within_seconds=30, watched=[self.extender.process]
        )
        configuration = chart.scheduler_configuration(self._fleet.admin)
        configuration["extenders"][0]["urlPrefix"] = f"http://127.0.0.1:{self.extender.ports['listen']}"
        configuration["leaderElection"] |= LEASE_SECONDS
        self.scheduler = self._fleet.plane.start_scheduler(
            f"kube-scheduler-{self.name}", configuration, kubeconfig=self._fleet.scheduler_kubeconfig(), host=self.name
        )

    def kill(self) -> None:
        self.extender.kill()
        if self.scheduler is not None:
            self.scheduler.kill()

    def pause(self) -> None:
        """Stop both processes where they stand, as a frozen machine would."""
        for process in self._processes():
            process.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let both go on, with everything that they knew then."""
        for process in self._processes():
            process.signal(signal.SIGCONT)

    def _processes(self) -> list[Supervised]:
        return [self.extender.process, *([self.scheduler] if self.scheduler else [])]

    def is_ready(self) -> bool:
        with suppress(OSError):
            return self.extender.fetch("readyz")[0] == 200
        return False


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    check_machine()
    fleet = Fleet(nodes=NODES, cards=CARDS)
    try:
        fleet.plane.start()
        fleet.plane.start_controller_manager("serviceaccount-controller,garbage-collector-controller")
        fleet.install_chart()
        fleet.create_nodes()
        yield fleet
    finally:
        fleet.stop()


def holder(fleet: Fleet) -> str:
    lease = fleet.admin.find("leases", chart.NAMESPACE, SCHEDULER)
    return str((lease or {}).get("spec", {}).get("holderIdentity", ""))


def half_card(name: str) -> Json:
    return pods.card_pod(name, CARD_MIB // 2, schedulerName=SCHEDULER)


def wait_bound(fleet: Fleet, count: int, *, within_seconds: float) -> None:
    wait_until(
        lambda: len(fleet.bound()) == count,
        what=f"{count} pods bound",
        within_seconds=within_seconds,
        explain=lambda: json.dumps([pod["status"] for pod in fleet.pods() if not pod["spec"].get("nodeName")])[:2000],
    )


@pytest.fixture
def replicas(fleet: Fleet) -> Iterator[tuple[Replica, Replica]]:
    """Return two running replicas, the leading one first."""
    both = [Replica(fleet, name) for name in ("scheduler-a", "scheduler-b")]
    try:
        for replica in both:
            replica.start()
        wait_until(lambda: sum(r.is_ready() for r in both) == 1, what="one leads", within_seconds=30)
        first = next(replica for replica in both if replica.is_ready())
        assert holder(fleet).startswith(f"{first.name}_")
        yield first, next(replica for replica in both if replica is not first)
    finally:
        for replica in both:
            replica.kill()


def test_the_other_pod_takes_over_when_one_dies(fleet: Fleet, replicas: tuple[Replica, Replica]) -> None:
    first, other = replicas
    fleet.create_pods([half_card(f"before-{number}") for number in range(NODES * CARDS)])
    wait_bound(fleet, NODES * CARDS, within_seconds=30)

    first.kill()
    died = time.monotonic()
    fleet.create_pods([half_card(f"after-{number}") for number in range(NODES * CARDS + 1)])
    wait_bound(fleet, 2 * NODES * CARDS, within_seconds=60)
    print(f"\nall pods bound {time.monotonic() - died:.1f} s after the leader died; lease of 3 s")
    assert holder(fleet).startswith(f"{other.name}_")
    assert not audit(fleet.bound(), fleet.admin.list("nodes"))
    assert len(fleet.bound()) == 2 * NODES * CARDS, "the one pod too many waits"


def test_a_leader_that_was_paused_gives_nothing_away_again(fleet: Fleet, replicas: tuple[Replica, Replica]) -> None:
    first, other = replicas
    first.pause()
    fleet.create_pods([half_card(f"early-{number}") for number in range(NODES * CARDS)])
    wait_bound(fleet, NODES * CARDS, within_seconds=60)
    assert holder(fleet).startswith(f"{other.name}_")
    first.resume()
    # kube-scheduler ends itself when it finds its Lease lost; its extender lives and must not believe that it leads.
    fleet.create_pods([half_card(f"late-{number}") for number in range(NODES * CARDS + 5)])
    wait_bound(fleet, 2 * NODES * CARDS, within_seconds=60)
    wait_until(lambda: not first.is_ready(), what="the paused one knows", within_seconds=15)
    assert not audit(fleet.bound(), fleet.admin.list("nodes"))
    assert len(fleet.bound()) == 2 * NODES * CARDS
