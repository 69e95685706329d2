"""Preemption by reservation and eviction: minimal victims, budgets, never, and no victim without a beneficiary."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpuslice.cluster.resources import PODS
from simulator.apiserver.server import ApiServer, running
from tests.extender.objects import container, node, pod, priority_classes
from tests.extender.scheduler import findings, node_of, scheduling
from tests.extender.stand import Stand, standing

pytestmark = pytest.mark.anyio
CARD = 16_384


@asynccontextmanager
async def cluster() -> AsyncIterator[ApiServer]:
    async with running() as server:
        for made in priority_classes():
            await server.create(made)
        yield server


def names(server: ApiServer) -> list[str]:
    return sorted(found["metadata"]["name"] for found in server.list("v1", "Pod"))


async def fill(server: ApiServer, stand: Stand, *pods: dict[str, Any]) -> None:
    for wanted in pods:
        created = await server.create(wanted)
        assert await stand.bind(created, "n1") == ""
    await stand.until(lambda: all(holding.seen for holding in stand.ledger.holdings.values()))


def low(name: str, memory_mib: int = CARD, **spec: Any) -> dict[str, Any]:
    return pod(name, container(memory_mib=memory_mib), terminationGracePeriodSeconds=0, **spec)


def high(name: str, memory_mib: int = CARD, **spec: Any) -> dict[str, Any]:
    return pod(name, container(memory_mib=memory_mib), **({"priorityClassName": "high"} | spec))


async def test_a_full_card_is_cleared_for_a_pod_of_higher_priority() -> None:
    async with cluster() as server:
        await server.create(node("n1", 1))
        async with standing(server) as stand, scheduling(server, stand):
            await fill(server, stand, low("victim"))
            await server.create(high("urgent"))
            await stand.until(lambda: node_of(server, "urgent") == "n1")
            assert (names(server), findings(server)) == (["urgent"], [])


async def test_of_two_victims_one_is_enough() -> None:
    async with cluster() as server:
        await server.create(node("n1", 1))
        async with standing(server) as stand, scheduling(server, stand):
            await fill(server, stand, low("a", CARD // 2), low("b", CARD // 2))
            await server.create(high("urgent", CARD // 2))
            await stand.until(lambda: node_of(server, "urgent") == "n1")
            assert len(names(server)) == 2
            assert stand.extender.preemption.evictions == 1


async def test_a_budget_of_zero_in_another_namespace_protects_its_pods() -> None:
    async with cluster() as server:
        await server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "guarded"}})
        await server.create(node("n1", 1))
        budget = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "keep", "namespace": "guarded"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "db"}}},
            "status": {"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1},
        }
        await server.create(budget)
        async with standing(server) as stand, scheduling(server, stand):
            await fill(server, stand, low("kept", namespace="guarded", labels={"app": "db"}))
            created = await server.create(high("urgent"))
            await stand.until(lambda: created["metadata"]["uid"] in stand.ledger.waiting)
            await stand.until(lambda: not stand.extender.preemption.queued)
            assert (stand.ledger.reservations, stand.extender.preemption.evictions) == ({}, 0)
            assert node_of(server, "kept", "guarded") == "n1"


async def test_a_pod_that_never_preempts_waits() -> None:
    async with cluster() as server:
        await server.create(node("n1", 1))
        async with standing(server) as stand, scheduling(server, stand):
            await fill(server, stand, low("safe"))
            created = await server.create(high("patient", priorityClassName="never"))
            await stand.until(lambda: created["metadata"]["uid"] in stand.ledger.waiting)
            await stand.until(lambda: not stand.extender.preemption.queued)
            assert (names(server), stand.ledger.reservations) == (["patient", "safe"], {})


async def test_the_freed_share_goes_to_nobody_else() -> None:
    async with cluster() as server:
        await server.create(node("n1", 1))
        async with standing(server) as stand:
            victim = low("victim")
            victim["spec"]["terminationGracePeriodSeconds"] = 30
            await fill(server, stand, victim)
            urgent = await server.create(high("urgent"))
            assert (await stand.filter(urgent, "n1"))["NodeNames"] == []
            uid = urgent["metadata"]["uid"]
            await stand.until(lambda: uid in stand.ledger.reservations and stand.extender.preemption.evictions)
            await stand.client.delete(PODS, "victim", namespace="default", grace_seconds=0)
            await stand.until(lambda: not stand.ledger.reservations[uid].victims)
            thief = await server.create(low("thief", 1000))
            stolen = await stand.filter(thief, "n1")
            assert stolen["NodeNames"] == []
            assert "n1: " in await stand.bind(thief, "n1")
            assert (await stand.filter(urgent, "n1"))["NodeNames"] == ["n1"]
            assert await stand.bind(urgent, "n1") == ""
            await stand.until(lambda: server.get("v1", "Pod", "urgent")["spec"].get("nodeName") == "n1")


async def test_twenty_urgent_pods_evict_nobody_without_a_beneficiary() -> None:
    async with cluster() as server:
        await server.create(node("n1", 8))
        async with standing(server) as stand, scheduling(server, stand):
            await fill(server, stand, *(low(f"low{n}") for n in range(8)))
            for number in range(20):
                await server.create(high(f"high{number:02}"))
            await stand.until(lambda: sum(bool(node_of(server, f"high{n:02}")) for n in range(20)) == 8, seconds=15)
            bound = [name for name in names(server) if node_of(server, name)]
            assert (len(bound), stand.extender.preemption.evictions) == (8, 8)
            assert findings(server) == []


async def test_preempt_of_kube_scheduler_reserves_and_is_not_refused_afterwards() -> None:
    async with cluster() as server:
        await server.create(node("n1", 1))
        async with standing(server, preemption=True) as stand:
            await fill(server, stand, low("victim"))
            victim = server.get("v1", "Pod", "victim")["metadata"]["uid"]
            urgent = await server.create(high("urgent"))
            await stand.until(lambda: stand.extender.feed.budgets.lists)
            args = {
                "Pod": urgent,
                "NodeNameToVictims": None,
                "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": victim}]}},
            }
            status, answer = await stand.post("preempt", args)
            chosen = {"n1": {"Pods": [{"UID": victim}], "NumPDBViolations": 0}}
            assert (status, answer) == (200, {"NodeNameToMetaVictims": chosen})
            await stand.client.delete(PODS, "victim", namespace="default", grace_seconds=0)
            uid = urgent["metadata"]["uid"]
            await stand.until(lambda: not stand.ledger.reservations[uid].victims)
            assert (await stand.filter(urgent, "n1"))["NodeNames"] == ["n1"]


async def test_preempt_adds_our_victims_to_those_that_are_not_enough() -> None:
    async with cluster() as server:
        await server.create(node("n1", 1))
        async with standing(server) as stand:
            await fill(server, stand, low("victim"))
            victim = server.get("v1", "Pod", "victim")["metadata"]["uid"]
            urgent = await server.create(high("urgent"))
            await stand.until(lambda: stand.extender.feed.budgets.lists)
            args = {"Pod": urgent, "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "cpu-hog"}]}}}
            _, answer = await stand.post("preempt", args)
            assert [p["UID"] for p in answer["NodeNameToMetaVictims"]["n1"]["Pods"]] == ["cpu-hog", victim]


async def test_a_reservation_on_a_node_that_others_refuse_is_dropped() -> None:
    async with cluster() as server:
        await server.create(node("n1", 1))
        await server.create(node("n2", 1, memory_mib=CARD // 2))
        async with standing(server) as stand:
            await fill(server, stand, low("victim"))
            urgent = await server.create(high("urgent"))
            await stand.filter(urgent, "n1")
            uid = urgent["metadata"]["uid"]
            await stand.until(lambda: uid in stand.ledger.reservations)
            for _ in range(3):
                await stand.filter(urgent, "n2")
            assert uid not in stand.ledger.reservations
