"""The cycle of one pod over the real wire, against the embedded API server."""

import json

import pytest

from gpuslice.devices.annotations import ALLOCATION
from gpuslice.placement.rejection import TEXTS, Obstacle
from simulator.apiserver.server import running
from tests.extender.objects import container, node, pod
from tests.extender.stand import standing

pytestmark = pytest.mark.anyio


async def test_a_pod_is_bound_with_its_decision_in_one_write() -> None:
    async with running() as server:
        await server.create(node("n1", 2))
        created = await server.create(pod("a", container(memory_mib=3000, cores=30)))
        async with standing(server) as stand:
            found = await stand.filter(created, "n1")
            scores = await stand.prioritize(created, "n1")
            error = await stand.bind(created, "n1")
        bound = server.get("v1", "Pod", "a")
        notes = bound["metadata"]["annotations"]
        share = {"slice": "GPU-n1-0::0", "memoryMiB": 3000, "cores": 30, "family": "nvidia"}
        assert (found["NodeNames"], scores, error, bound["spec"]["nodeName"]) == (["n1"], {"n1": 10}, "", "n1")
        assert json.loads(notes[ALLOCATION]) == {"v": 1, "node": "n1", "containers": {"main": [share]}}
        assert notes["hami.io/vgpu-devices-allocated"] == "GPU-n1-0,NVIDIA,3000,30:;"
        assert notes["hami.io/vgpu-node"] == "n1"


async def test_every_refusal_is_a_constant_text_among_the_unresolvable() -> None:
    async with running() as server:
        await server.create(node("n1"))
        created = await server.create(pod("a", container(memory_mib=99_999)))
        async with standing(server) as stand:
            found = await stand.filter(created, "n1", "stranger")
        assert found == {
            "Nodes": None,
            "NodeNames": [],
            "FailedNodes": {},
            "FailedAndUnresolvableNodes": {
                "n1": TEXTS[Obstacle.MEMORY],
                "stranger": TEXTS[Obstacle.UNKNOWN_NODE],
            },
            "Error": "",
        }


async def test_three_pods_back_to_back_fill_one_card_twice_and_the_third_waits() -> None:
    async with running() as server:
        await server.create(node("n1", 1, memory_mib=24_576))
        pods = [await server.create(pod(f"p{n}", container(memory_mib=12_288))) for n in range(3)]
        async with standing(server) as stand:
            bound = [await stand.bind(created, "n1") for created in pods]
        assert bound == ["", "", f"node n1: {TEXTS[Obstacle.MEMORY]}"]
