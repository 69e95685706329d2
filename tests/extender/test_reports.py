"""What people are told of a refused pod."""

import pytest

from simulator.apiserver.server import ApiServer, running
from tests.extender.objects import container, node, pod
from tests.extender.stand import standing

pytestmark = pytest.mark.anyio


def messages(server: ApiServer) -> list[str]:
    found = server.list("v1", "Event", "default")
    return [event["message"] for event in found if event["reason"] == "GpuShareRefused"]


async def test_a_refusal_is_told_once_with_figures_and_again_when_its_cause_changes() -> None:
    async with running() as server:
        await server.create(node("n1", 1))
        holder = await server.create(pod("holder", container(memory_mib=15_000)))
        waiting = await server.create(pod("waiting", container(memory_mib=3000)))
        async with standing(server) as stand:
            assert await stand.bind(holder, "n1") == ""
            for _ in range(5):
                await stand.filter(waiting, "n1")
            await stand.filter(waiting, "n1", "stranger")
            await stand.until(lambda: len(messages(server)) == 2)
            first = messages(server)[0]
            assert first.startswith("0/1 nodes fit: 1 not enough free GPU memory on any card. Closest is n1: ")
            assert "memory mib wanted 3000" in first
            assert "best free memory mib 1384" in first


async def test_the_decision_is_served_with_each_node_and_card() -> None:
    async with running() as server:
        await server.create(node("n1", 2))
        await server.create(node("n2", 1, memory_mib=100))
        created = await server.create(pod("a", container(memory_mib=3000)))
        async with standing(server) as stand:
            await stand.filter(created, "n1", "n2")
            assert await stand.bind(created, "n1") == ""
            async with stand.session.get(f"{stand.url}/decisions/default/a") as answer:
                found = await answer.json()
            async with stand.session.get(f"{stand.url}/decisions/default/unknown") as answer:
                missing = answer.status
        assert missing == 404
        assert (found["chosen"], found["nodes"]) == ("n1", {"considered": 2, "feasible": 1})
        assert [verdict["node"] for verdict in found["verdicts"]] == ["n1", "n2"]
        assert [card["uuid"] for card in found["cards"]["n1"]] == ["GPU-n1-0", "GPU-n1-1"]


async def test_a_pod_whose_request_is_not_valid_is_told_what_to_write() -> None:
    async with running() as server:
        await server.create(node("n1", 1))
        created = await server.create(pod("a", container(gpus=1, cores=101)))
        async with standing(server) as stand:
            found = await stand.filter(created, "n1")
            await stand.until(lambda: messages(server))
        assert found["FailedAndUnresolvableNodes"] == {"n1": "the pod's request for devices is not valid"}
        assert "nvidia.com/gpucores" in messages(server)[0]
