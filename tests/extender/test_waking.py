"""A refused pod is tried again when a share that it needs is released, and at no other time."""

from typing import Any

import pytest

from extender.waking import CONDITION
from gpuslice.cluster.resources import PODS
from gpuslice.placement.events import PodKey
from simulator.apiserver.faults import matching
from simulator.apiserver.server import ApiServer, running
from tests.extender.objects import container, node, pod, priority_classes
from tests.extender.scheduler import findings, node_of, scheduling
from tests.extender.stand import Stand, standing

pytestmark = pytest.mark.anyio


async def delete(stand: Stand, name: str) -> None:
    await stand.client.delete(PODS, name, namespace="default", grace_seconds=0)


def whole_card(name: str, **spec: Any) -> dict[str, Any]:
    return pod(name, container(memory_mib=16_384), **spec)


async def bound(stand: Stand, server: ApiServer, *names: str) -> None:
    await stand.until(lambda: all(node_of(server, name) for name in names))


async def test_the_pod_that_fits_into_the_released_share_is_bound() -> None:
    async with running() as server:
        await server.create(node("n1", 1))
        await server.create(whole_card("first"))
        async with standing(server) as stand, scheduling(server, stand) as loop:
            await bound(stand, server, "first")
            waiting = await server.create(whole_card("second"))
            uid = waiting["metadata"]["uid"]
            await stand.until(lambda: uid in stand.ledger.waiting)
            await delete(stand, "first")
            await bound(stand, server, "second")
            assert loop.filter_calls[uid] <= 4
            assert findings(server) == []


async def test_of_many_waiting_pods_only_the_most_urgent_that_fit_are_patched() -> None:
    async with running() as server:
        await server.create(node("n1", 1))
        holder = await server.create(whole_card("holder"))
        async with standing(server, preemption=False) as stand:
            await stand.filter(holder, "n1")
            assert await stand.bind(holder, "n1") == ""
            for made in priority_classes():
                await server.create(made)
            for number in range(20):
                name = ("", "p1", "p2")[number % 3]
                waiting = await server.create(whole_card(f"w{number:02}", priorityClassName=name))
                assert (await stand.filter(waiting, "n1"))["NodeNames"] == []
            await delete(stand, "holder")
            await stand.until(lambda: stand.extender.waker.patches)
            woken = [p["metadata"]["name"] for p in server.list("v1", "Pod") if _was_woken(p)]
            most_urgent = {f"w{number:02}" for number in range(2, 20, 3)}
            assert (len(woken), most_urgent.issuperset(woken), stand.extender.waker.patches) == (1, True, 1)


async def test_a_scheduler_that_asks_before_our_watch_has_told_us_is_corrected_by_the_wake_up() -> None:
    async with running() as server:
        await server.create(node("n1", 1))
        holder = await server.create(whole_card("holder"))
        waiting = await server.create(whole_card("waiting"))
        async with standing(server) as stand:
            assert await stand.bind(holder, "n1") == ""
            await stand.filter(waiting, "n1")
            server.faults.fail(503, matching(method="GET", path="/api/v1/pods"))
            server.drop_watches("pods")
            await delete(stand, "holder")
            early = await stand.filter(waiting, "n1")
            server.faults.clear()
            await stand.until(lambda: stand.extender.waker.patches)
            late = await stand.filter(waiting, "n1")
            assert (early["NodeNames"], late["NodeNames"]) == ([], ["n1"])


async def test_a_quiet_cluster_wakes_nobody() -> None:
    async with running() as server:
        await server.create(node("n1", 1))
        waiting = await server.create(pod("big", container(memory_mib=99_999)))
        async with standing(server) as stand, scheduling(server, stand) as loop:
            uid = waiting["metadata"]["uid"]
            await stand.until(lambda: uid in stand.ledger.waiting)
            await server.create(pod("small", container(memory_mib=100)))
            await bound(stand, server, "small")
            assert (stand.extender.waker.patches, loop.filter_calls[uid] <= 3) == (0, True)


async def test_a_new_leader_wakes_the_pods_that_the_last_one_refused() -> None:
    async with running() as server:
        await server.create(node("n1", 1))
        created = await server.create(whole_card("waiting"))
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        async with standing(server) as stand:
            body = {"status": {"conditions": [condition]}}
            await stand.client.patch(PODS, "waiting", body, namespace="default", subresource="status")
            await stand.until(lambda: stand.extender.feed.pods.items["default", "waiting"].refused)
            stand.extender.tick()
            await stand.until(lambda: stand.extender.waker.patches == 1)
            assert _was_woken(server.get("v1", "Pod", created["metadata"]["name"]))


def _was_woken(found: dict[str, Any]) -> bool:
    conditions = found["status"].get("conditions", [])
    return any(condition["type"] == "gpuslice.io/SchedulingRetried" for condition in conditions)


async def test_a_waiting_pod_that_is_not_there_keeps_no_room_from_the_others() -> None:
    """kube-scheduler may ask about a pod a moment after its deletion; nobody tells us again that it is gone."""
    async with running() as server:
        await server.create(node("n1", 1))
        for made in priority_classes():
            await server.create(made)
        holder, waiting = [await server.create(whole_card(name)) for name in ("holder", "waiting")]
        ghost = await server.create(whole_card("ghost", priorityClassName="p2"))
        async with standing(server, preemption=False) as stand:
            assert await stand.bind(holder, "n1") == ""
            await delete(stand, "ghost")
            await stand.until(lambda: stand.extender.feed.pods.get("default", "ghost") is None)
            for each in (ghost, waiting):
                assert (await stand.filter(each, "n1"))["NodeNames"] == []
            assert len(stand.ledger.waiting) == 2
            await delete(stand, "holder")
            await stand.until(lambda: was_woken(server, "waiting"))
            assert ghost["metadata"]["uid"] not in stand.ledger.waiting


async def test_a_wake_up_in_conflict_with_other_writes_costs_a_bound_pod_nothing() -> None:
    async with running() as server:
        await server.create(node("n1", 1))
        holder = await server.create(whole_card("holder"))
        uid = holder["metadata"]["uid"]
        async with standing(server) as stand:
            assert await stand.bind(holder, "n1") == ""
            server.faults.fail(409, matching(method="PATCH", path="/holder/status"), times=1, reason="Conflict")
            for _ in range(2):
                stand.extender.waker.wake([PodKey(uid, "default", "holder")], "a test")
                await stand.until(lambda: not stand.extender.waker._queue)
            await stand.until(lambda: stand.extender.waker.patches == 1)
            assert stand.ledger.holdings[uid].node == "n1"


def was_woken(server: ApiServer, name: str) -> bool:
    conditions = server.get("v1", "Pod", name).get("status", {}).get("conditions") or []
    return any(condition["type"] == CONDITION for condition in conditions)
