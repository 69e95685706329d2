from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from gpuslice.cluster.client import KubeClient
from gpuslice.cluster.lease import ElectionTerms, LeaderElector, Lease
from gpuslice.cluster.resources import LEASES
from gpuslice.cluster.timing import Timing
from simulator.apiserver.faults import matching
from simulator.apiserver.server import ApiServer

pytestmark = pytest.mark.anyio


@dataclass
class Clock:
    """One machine's clock, moved by hand."""

    seconds: float = 100.0
    changes: list[bool] = field(default_factory=list)

    def elector(self, client: KubeClient, identity: str) -> LeaderElector:
        timing = Timing(
            clock=lambda: self.seconds,
            wall=lambda: datetime(2026, 1, 1, tzinfo=UTC).timestamp() + self.seconds,
        )
        terms = ElectionTerms("default", "scheduler", identity)
        return LeaderElector(client, terms, on_change=self.changes.append, timing=timing)


async def test_the_first_candidate_leads_and_the_second_waits(client: KubeClient) -> None:
    clock = Clock()
    first, second = clock.elector(client, "a"), clock.elector(client, "b")
    await first.attempt()
    await second.attempt()
    assert (first.leads(), second.leads(), second.holder) == (True, False, "a")


async def test_a_silent_leader_is_succeeded_after_the_lease_and_not_before(client: KubeClient) -> None:
    clock = Clock()
    first, second = clock.elector(client, "a"), clock.elector(client, "b")
    await first.attempt()
    await second.attempt()
    clock.seconds += 14.9
    await second.attempt()
    assert not second.leads()
    clock.seconds += 0.2
    await second.attempt()
    lease = await client.get(LEASES, "scheduler", Lease, namespace="default")
    assert (second.leads(), lease.spec.holder_identity, lease.spec.lease_transitions) == (True, "b", 1)


async def test_a_paused_leader_stops_believing_before_anybody_may_succeed(client: KubeClient) -> None:
    clock = Clock()
    first = clock.elector(client, "a")
    await first.attempt()
    clock.seconds += 10.0
    assert not first.leads()


async def test_a_leader_that_cannot_renew_stops_at_its_deadline(client: KubeClient, server: ApiServer) -> None:
    clock = Clock()
    first = clock.elector(client, "a")
    await first.attempt()
    server.faults.fail(503, matching(path="/leases"))
    clock.seconds += 9.0
    await first.attempt()
    still = first.leads()
    clock.seconds += 2.0
    await first.attempt()
    assert (still, first.leads(), clock.changes) == (True, False, [True, False])


async def test_a_stale_write_does_not_make_two_leaders(client: KubeClient) -> None:
    clock = Clock()
    first, second, third = (clock.elector(client, name) for name in "abc")
    await first.attempt()
    await second.attempt()
    await third.attempt()
    clock.seconds += 20.0
    await second.attempt()
    await third.attempt()
    assert [elector.leads() for elector in (first, second, third)] == [False, True, False]


async def test_a_leader_that_stops_hands_the_lease_over(client: KubeClient) -> None:
    clock = Clock()
    first, second = clock.elector(client, "a"), clock.elector(client, "b")
    await first.attempt()
    await second.attempt()
    await first.release()
    await second.attempt()
    assert (first.leads(), second.leads()) == (False, True)
