"""Long faults in virtual time: half a minute without the API server, storms of 410, leaders that stop and wake up.

Beside each story an auditor that shares no code with the ledger looks at the API server's own record ten times a
second. In the end every replica's ledger holds what the API server has, and what fits is bound.
"""

import asyncio
from typing import Any

import msgspec
import pytest

from extender.sweeping import SWEEP_SECONDS
from gpuslice.devices.annotations import ALLOCATION
from gpuslice.devices.pods import Pod
from simulator.apiserver.faults import matching
from tests.extender.scheduler import findings
from tests.extender.virtual import VirtualLoop
from tests.extender.world import World, meanwhile, world

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]
SEEDS = (1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 9)))


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualLoop}


def virtual_loop() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


async def settle(here: World, *, seconds: float = 90.0) -> None:
    """Wait until all replicas know the truth and nothing is left that could be bound."""
    await here.until(lambda: any(replica.leads() for replica in here.replicas), seconds=seconds)
    for replica in here.replicas:
        await here.until(lambda replica=replica: here.agrees(replica), seconds=seconds)  # type: ignore[misc]
    assert findings(here.server) == []
    before = len(here.bound())
    await here.create_pod(memory_mib=1)
    await here.until(lambda: len(here.bound()) == before + 1, seconds=seconds)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", ["refused", "silent"])
async def test_half_a_minute_without_the_api_server(kind: str, seed: int) -> None:
    """Pods come and go meanwhile; kube-scheduler goes on asking, and gets answers from what was known last."""
    async with world(seed) as here:
        await here.add_replica("a", leader_elect=False)
        async with meanwhile(here.schedule(), here.watch_over()):
            async with meanwhile(here.churn(most=12)):
                await asyncio.sleep(20)
                assert here.bindings > 5
                if kind == "silent":
                    virtual_loop().fall_silent()
                else:
                    here.server.faults.partition(matching(user="a"))
                    here.server.cut_connections()
                await asyncio.sleep(30)
                virtual_loop().speak_again()
                here.server.faults.clear()
                await asyncio.sleep(20)
            await settle(here)


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_minute_of_410(seed: int) -> None:
    async with world(seed) as here:
        replica = await here.add_replica("a", leader_elect=False)
        async with meanwhile(here.schedule(), here.watch_over()):
            async with meanwhile(here.churn(most=12)):
                for _ in range(90):
                    await asyncio.sleep(here.draw.uniform(0.2, 1.2))
                    here.server.expire_watches(here.draw.choice(("", "pods", "nodes")))
            await settle(here)
        assert replica.extender.feed.pods.lists > 20


@pytest.mark.parametrize("seed", SEEDS)
async def test_leaders_that_stop_and_wake_up(seed: int) -> None:
    """Each leader in turn is stopped in the middle of its bindings until another one has taken over, then goes on."""
    async with world(seed) as here:
        for name in ("a", "b"):
            await here.add_replica(name)
        async with meanwhile(here.schedule(), here.watch_over()):
            async with meanwhile(here.churn(most=12, pause_seconds=0.2)):
                for _ in range(4):
                    await here.until(lambda: any(replica.leads() for replica in here.replicas), seconds=60)
                    await asyncio.sleep(here.draw.uniform(1, 5))
                    (leader,) = [replica for replica in here.replicas if replica.leads()]
                    (other,) = [replica for replica in here.replicas if replica is not leader]
                    leader.stall.pause()
                    await here.until(other.leads, seconds=60)
                    await asyncio.sleep(here.draw.uniform(0, 5))
                    assert not leader.leads()
                    leader.stall.resume()
            await settle(here)
        assert here.bindings > 20


@pytest.mark.parametrize("seed", SEEDS)
async def test_answers_lost_delayed_and_refused_at_random(seed: int) -> None:
    async with world(seed) as here:
        await here.add_replica("a", leader_elect=False, assume_seconds=10.0)
        bindings = matching(method="POST", path="/binding")
        async with meanwhile(here.schedule(), here.watch_over()):
            async with meanwhile(here.churn(most=12)):
                for _ in range(40):
                    await asyncio.sleep(here.draw.uniform(0, 2))
                    match here.draw.randrange(5):
                        case 0:
                            here.server.faults.lose_answer(bindings, times=here.draw.randint(1, 3))
                        case 1:
                            here.server.faults.fail(here.draw.choice((409, 429, 500, 503)), bindings, times=2)
                        case 2:
                            here.server.faults.delay(here.draw.uniform(0, 8), bindings, times=2)
                        case 3:
                            here.server.drop_watches()
                        case _:
                            here.server.faults.clear()
                here.server.faults.clear()
            await settle(here)


async def test_the_same_seed_is_the_same_story() -> None:
    """So that what went wrong once can be looked at again."""
    stories = []
    for _ in range(2):
        async with world(7) as here:
            await here.add_replica("a", leader_elect=False)
            async with meanwhile(here.schedule(), here.churn(most=8)):
                await asyncio.sleep(15)
            slices = [(p["metadata"]["uid"], p["metadata"].get("annotations", {}).get(ALLOCATION)) for p in here.pods()]
            stories.append((here.bindings, slices))
    assert stories[0] == stories[1]
    assert stories[0][0] > 5


async def test_an_answer_older_than_the_watch_does_not_keep_a_share_for_ever() -> None:
    """A pod is read, then the watch tells of its end, and only then what was read is taken in."""
    async with world(1) as here:
        replica = await here.add_replica("a", leader_elect=False)
        await here.until(replica.leads, seconds=10)
        living, ghost = await here.create_pod(nodeName="n0"), await here.create_pod(nodeName="n1")
        shares = '{"v":1,"node":"%s","containers":{"main":[{"slice":"GPU-%s-0::0","memoryMiB":8192}]}}'
        for each in (living, ghost):
            node = each["spec"]["nodeName"]
            each["metadata"]["annotations"] = {ALLOCATION: shares % (node, node)}
            await here.server.apply(each)
        await here.until(lambda: len(replica.extender.engine.ledger.holdings) == 2, seconds=10)
        await here.delete_pod(ghost["metadata"]["name"])
        await here.until(lambda: len(replica.extender.engine.ledger.holdings) == 1, seconds=10)
        replica.extender.promises.observe_pod(msgspec.convert(ghost, Pod))
        assert len(replica.extender.engine.ledger.holdings) == 2
        await asyncio.sleep(3 * SWEEP_SECONDS)
        assert set(replica.extender.engine.ledger.holdings) == {living["metadata"]["uid"]}
        assert here.agrees(replica)
        assert not replica.extender.gate._released.keys() - {living["metadata"]["uid"]}
