"""Pods that HAMi's scheduler placed keep their shares when ours takes over."""

from typing import Any

import msgspec
import pytest

from extender.foreign import ForeignShares
from gpuslice.cluster.resources import PODS
from gpuslice.devices.families import load_builtin
from gpuslice.devices.pods import Pod
from gpuslice.placement.rejection import TEXTS, Obstacle
from simulator.apiserver.server import running
from tests.extender.objects import container, node, pod
from tests.extender.stand import standing

pytestmark = pytest.mark.anyio


def placed_by_hami(name: str, text: str) -> dict[str, Any]:
    notes = {"hami.io/vgpu-node": "n1", "hami.io/vgpu-devices-allocated": text}
    return pod(name, container(memory_mib=8192), annotations=notes, nodeName="n1")


async def test_a_share_that_hami_gave_away_is_not_given_again() -> None:
    async with running() as server:
        await server.create(node("n1", 1))
        for name in ("old-1", "old-2"):
            await server.create(placed_by_hami(name, "GPU-n1-0,NVIDIA,8192,30:;"))
        created = await server.create(pod("new", container(memory_mib=8192)))
        async with standing(server) as stand:
            stand.ledger.check_invariants()
            refused = await stand.filter(created, "n1")
            await stand.client.delete(PODS, "old-1", namespace="default", grace_seconds=0)
            await stand.until(lambda: len(stand.ledger.holdings) == 1)
            accepted = await stand.filter(created, "n1")
        assert refused["FailedAndUnresolvableNodes"] == {"n1": TEXTS[Obstacle.MEMORY]}
        assert (accepted["NodeNames"], stand.ledger.conflicts) == (["n1"], {})


@pytest.mark.parametrize("text", ["", ";", ":;"])
async def test_a_record_without_devices_holds_nothing(text: str) -> None:
    async with running() as server:
        await server.create(node("n1", 1))
        await server.create(placed_by_hami("old", text))
        created = await server.create(pod("new", container(memory_mib=16_384)))
        async with standing(server) as stand:
            assert (await stand.filter(created, "n1"))["NodeNames"] == ["n1"]


@pytest.mark.parametrize("text", ["nonsense", "GPU-n1-0,NVIDIA,many,30:;", "a,b:c;d", "GPU-n1-0,NVIDIA,٣,30:;"])
async def test_a_record_that_cannot_be_read_closes_its_node(text: str) -> None:
    async with running() as server:
        await server.create(node("n1", 1))
        await server.create(placed_by_hami("old", text))
        created = await server.create(pod("new", container(memory_mib=16_384)))
        async with standing(server) as stand:
            refused = await stand.filter(created, "n1")
            await stand.client.delete(PODS, "old", namespace="default", grace_seconds=0)
            await stand.until(lambda: not stand.ledger.holdings)
            assert (await stand.filter(created, "n1"))["NodeNames"] == ["n1"]
        assert refused["FailedAndUnresolvableNodes"] == {"n1": TEXTS[Obstacle.UNCLEAR]}


def test_numbers_of_pods_that_are_gone_are_not_kept() -> None:
    shares = ForeignShares(load_builtin())
    for at in range(100):
        made = placed_by_hami(f"p{at}", f"GPU-{at},NVIDIA,10,1:GPU-x,NVIDIA,10,1:;")
        made["metadata"]["uid"] = f"uid-{at}"
        found = shares.allocation(msgspec.convert(made, Pod))
        assert found is not None
        assert [share.slice for _, share in found.shares()] == [f"GPU-{at}::1024", f"GPU-x::{1024 + at}"]
    for at in range(100):
        shares.release(f"uid-{at}")
    assert (len(shares), len(shares._taken)) == (0, 0)
