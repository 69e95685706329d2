"""A record that cannot be read: said on the pod, counted in a metric, and never taken for a free card."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from extender.metrics import LedgerCollector
from extender.reports import CARDS_UNREADABLE, UNREADABLE
from gpuslice.cluster.resources import NODES, PODS
from gpuslice.devices.allocation import PodAllocation, SliceShare
from gpuslice.devices.annotations import ALLOCATION, CARDS, HAMI_ALLOCATED, HAMI_NODE, encode_allocation
from gpuslice.placement.rejection import TEXTS, Obstacle
from simulator.apiserver.server import ApiServer, running
from tests.extender.objects import container, node, pod
from tests.extender.stand import Stand, standing

pytestmark = pytest.mark.anyio
GOOD = encode_allocation(PodAllocation("n1", {"main": (SliceShare("GPU-n1-0::0", 8192, 30),)}))
MANY = '{"v":1,"node":"n1","containers":{"main":[' + ",".join(['{"slice":"GPU-n1-0::1"}'] * 4200) + "]}}"


def bound(text: str, **more: str) -> dict[str, Any]:
    return pod("old", container(memory_mib=8192), annotations={ALLOCATION: text, **more}, nodeName="n1")


def told(server: ApiServer) -> list[str]:
    return [e["message"] for e in server.list("v1", "Event", "default") if e["reason"] == UNREADABLE]


def unreadable_pods(stand: Stand) -> float | None:
    registry = CollectorRegistry()
    registry.register(LedgerCollector(stand.ledger, dict, dict))
    return registry.get_sample_value("gpuslice_scheduler_unreadable_allocations")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("{", id="cut off"),
        pytest.param('{"v":2,"node":"n1","containers":{}}', id="written by a later version"),
        pytest.param(MANY, id="more shares than a pod can have"),
    ],
)
async def test_a_record_that_cannot_be_read_closes_its_node_until_the_pod_has_ended(text: str) -> None:
    """Whichever card it is on: nobody knows, so nobody may be put on any."""
    async with running() as server:
        await server.create(node("n1", 2))
        await server.create(node("n2", 1))
        await server.create(bound(text))
        created = await server.create(pod("new", container(memory_mib=1000)))
        async with standing(server) as stand:
            stand.ledger.check_invariants()
            answer = await stand.filter(created, "n1", "n2")
            assert answer["FailedAndUnresolvableNodes"] == {"n1": TEXTS[Obstacle.UNCLEAR]}
            assert answer["NodeNames"] == ["n2"]
            assert unreadable_pods(stand) == 1.0
            await stand.until(lambda: told(server))
            (message,) = told(server)
            assert all(words in message for words in (ALLOCATION, "node n1 takes no more pods", "delete the pod"))
            await stand.client.delete(PODS, "old", namespace="default", grace_seconds=0)
            await stand.until(lambda: not stand.ledger.holdings)
            assert sorted((await stand.filter(created, "n1", "n2"))["NodeNames"]) == ["n1", "n2"]
            assert unreadable_pods(stand) == 0.0
            stand.ledger.check_invariants()


async def test_the_same_decision_in_hamis_grammar_tells_the_cards() -> None:
    """Every binding writes both; one that survived is enough to know what is free."""
    async with running() as server:
        await server.create(node("n1", 2))
        await server.create(bound("{", **{HAMI_NODE: "n1", HAMI_ALLOCATED: "GPU-n1-0,NVIDIA,16384,100:;"}))
        created = await server.create(pod("new", container(memory_mib=16384)))
        async with standing(server) as stand:
            assert (await stand.filter(created, "n1"))["NodeNames"] == ["n1"]
            assert await stand.bind(created, "n1") == ""
            held = stand.ledger.holdings[created["metadata"]["uid"]]
            assert [share.card for _, share in held.allocation.shares()] == ["GPU-n1-1"]
            assert unreadable_pods(stand) == 1.0
            await stand.until(lambda: told(server))
            assert "goes on to count" in told(server)[0]


async def test_what_was_read_before_goes_on_to_count_when_the_record_is_spoilt() -> None:
    async with running() as server:
        await server.create(node("n1", 1))
        await server.create(bound(GOOD))
        created = await server.create(pod("new", container(memory_mib=8192, cores=60)))
        async with standing(server) as stand:
            spoilt = {"metadata": {"annotations": {ALLOCATION: "spoilt"}}}
            await stand.client.patch(PODS, "old", spoilt, namespace="default")
            await stand.until(lambda: unreadable_pods(stand) == 1.0)
            stand.ledger.check_invariants()
            assert (await stand.filter(created, "n1"))["NodeNames"] == ["n1"]
            too_much = await server.create(pod("large", container(memory_mib=8193)))
            assert (await stand.filter(too_much, "n1"))["NodeNames"] == []
            healed = {"metadata": {"annotations": {ALLOCATION: GOOD}}}
            await stand.client.patch(PODS, "old", healed, namespace="default")
            await stand.until(lambda: unreadable_pods(stand) == 0.0)
            stand.ledger.check_invariants()


async def test_cards_that_cannot_be_read_are_told_on_their_node_and_hide_no_others() -> None:
    async with running() as server:
        made = node("n1", 1)
        made["metadata"]["annotations"]["hami.io/node-dcu-register"] = "DCU-0,4:"
        await server.create(made)
        created = await server.create(pod("new", container(memory_mib=1000)))
        async with standing(server) as stand:
            assert (await stand.filter(created, "n1"))["NodeNames"] == ["n1"]
            assert stand.extender.gauges()["nodes_unreadable"] == 1.0
            spoilt = {"metadata": {"annotations": {CARDS: "{"}}}
            await stand.client.patch(NODES, "n1", spoilt)
            await stand.until(lambda: not stand.ledger.book("n1").cards.cards)  # type: ignore[union-attr]
            refused = await stand.filter(created, "n1")
            await stand.until(lambda: len(cards_told(server)) == 2)
        assert refused["FailedAndUnresolvableNodes"] == {"n1": TEXTS[Obstacle.UNKNOWN_NODE]}
        first, second = cards_told(server)
        assert "hami.io/node-dcu-register" in first
        assert CARDS in second
        assert "remove the annotation" in second


def cards_told(server: ApiServer) -> list[str]:
    found = [e for e in server.list("v1", "Event", "default") if e["reason"] == CARDS_UNREADABLE]
    return sorted((e["message"] for e in found), key=len)
