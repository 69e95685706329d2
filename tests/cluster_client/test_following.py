from dataclasses import dataclass

import pytest

from gpuslice.cluster.client import KubeClient
from gpuslice.cluster.following import LeaseFollower
from gpuslice.cluster.lease import ElectionTerms
from gpuslice.cluster.resources import LEASES
from gpuslice.cluster.timing import Timing
from simulator.apiserver.faults import matching
from simulator.apiserver.server import ApiServer

pytestmark = pytest.mark.anyio


@dataclass
class Scene:
    """A kube-scheduler that renews when told to, and a follower with a clock moved by hand."""

    client: KubeClient
    seconds: float = 100.0
    renewals: int = 0

    def follower(self, identity: str) -> LeaseFollower:
        return LeaseFollower(
            self.client, ElectionTerms("default", "s", identity), timing=Timing(clock=lambda: self.seconds)
        )

    async def renew(self, holder: str) -> None:
        self.renewals += 1
        spec = {"holderIdentity": holder, "renewTime": f"2026-01-01T00:00:{self.renewals:02}.000000Z"}
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "s"}, "spec": spec}
        if self.renewals == 1:
            await self.client.create(LEASES, body, namespace="default")
        else:
            await self.client.patch(LEASES, "s", {"spec": spec}, namespace="default")


@pytest.mark.parametrize(
    ("identity", "expected"),
    [
        pytest.param("pod-a", True, id="the scheduler of our pod holds it"),
        pytest.param("pod-a_1f", True, id="we are named in full"),
        pytest.param("pod-b", False, id="another pod holds it"),
        pytest.param("pod", False, id="a name that only begins alike is another pod"),
    ],
)
async def test_who_leads(client: KubeClient, identity: str, expected: bool) -> None:
    scene = Scene(client)
    follower = scene.follower(identity)
    await scene.renew("pod-a_1f")
    await follower.attempt()
    before_any_renewal = follower.leads()
    await scene.renew("pod-a_1f")
    await follower.attempt()
    assert (before_any_renewal, follower.leads()) == (False, expected)


async def test_a_holder_that_renews_no_more_is_believed_only_for_a_while(client: KubeClient) -> None:
    scene = Scene(client)
    follower = scene.follower("a")
    for _ in range(2):
        await scene.renew("a")
        await follower.attempt()
    scene.seconds += 9.9
    await follower.attempt()
    still = follower.leads()
    scene.seconds += 0.2
    assert (still, follower.leads()) == (True, False)


async def test_a_paused_follower_does_not_believe_what_it_saw_long_ago(client: KubeClient) -> None:
    scene = Scene(client)
    follower = scene.follower("a")
    for _ in range(2):
        await scene.renew("a")
        await follower.attempt()
    await scene.renew("a")
    scene.seconds += 60
    await follower.attempt()
    assert not follower.leads()


async def test_a_missing_lease_and_a_failing_server_lead_nowhere(client: KubeClient, server: ApiServer) -> None:
    scene = Scene(client)
    follower = scene.follower("a")
    await follower.attempt()
    server.faults.fail(503, matching(path="/leases"))
    await follower.attempt()
    assert not follower.leads()
