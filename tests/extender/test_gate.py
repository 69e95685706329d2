"""Nodes whose kubelet cannot say who is being admitted: pods that could be confused do not go there together."""

import asyncio
import dataclasses
from typing import Any

import pytest

from extender.gate import BUSY, Gate
from gpuslice.cluster.resources import PODS
from gpuslice.devices.allocation import PodAllocation, SliceShare
from gpuslice.devices.annotations import CARDS, encode_cards
from simulator.apiserver.faults import matching
from simulator.apiserver.server import ApiServer, running
from tests.extender.objects import cards_of, container, node, pod
from tests.extender.stand import Stand, standing

pytestmark = pytest.mark.anyio


def old_node(name: str) -> dict[str, Any]:
    """A node whose plugin says that its kubelet cannot tell who is being admitted."""
    made = node(name, 4)
    cards = dataclasses.replace(cards_of(name, 4), identity_known=False)
    made["metadata"]["annotations"][CARDS] = encode_cards(cards)
    return made


async def admit(stand: Stand, name: str) -> None:
    body = {"status": {"startTime": "2026-01-01T00:00:00Z"}}
    await stand.client.patch(PODS, name, body, namespace="default", subresource="status")


async def make(server: ApiServer, *names: str, gpus: int = 1) -> list[dict[str, Any]]:
    return [await server.create(pod(name, container(gpus=gpus, memory_mib=1000))) for name in names]


async def test_the_second_of_two_alike_waits_until_the_first_is_admitted() -> None:
    async with running() as server:
        await server.create(old_node("n1"))
        first, second = await make(server, "first", "second")
        async with standing(server) as stand:
            assert await stand.bind(first, "n1") == ""
            waiting = asyncio.create_task(stand.bind(second, "n1"))
            await stand.until(lambda: len(stand.ledger.holdings) == 2)
            bound_early = bool(server.get("v1", "Pod", "second")["spec"].get("nodeName"))
            await admit(stand, "first")
            assert (bound_early, await waiting) == (False, "")


async def test_a_pod_of_another_shape_does_not_wait() -> None:
    async with running() as server:
        await server.create(old_node("n1"))
        (first,) = await make(server, "first")
        (second,) = await make(server, "second", gpus=2)
        async with standing(server) as stand:
            assert [await stand.bind(first, "n1"), await stand.bind(second, "n1")] == ["", ""]


async def test_a_node_with_a_newer_kubelet_does_not_wait() -> None:
    async with running() as server:
        await server.create(node("n1", 4))
        first, second = await make(server, "first", "second")
        async with standing(server) as stand:
            assert [await stand.bind(first, "n1"), await stand.bind(second, "n1")] == ["", ""]


async def test_when_the_time_is_up_the_share_is_given_back_and_the_pod_tried_again_later() -> None:
    async with running() as server:
        await server.create(old_node("n1"))
        first, second = await make(server, "first", "second")
        async with standing(server, bind_timeout_seconds=0.4) as stand:
            assert await stand.bind(first, "n1") == ""
            assert (await stand.bind(second, "n1"), len(stand.ledger.holdings)) == (f"node n1: {BUSY}", 1)


async def test_a_pod_that_went_while_the_watch_was_down_holds_nobody_back() -> None:
    async with running() as server:
        await server.create(old_node("n1"))
        first, second = await make(server, "first", "second")
        async with standing(server, bind_timeout_seconds=0.4) as stand:
            assert await stand.bind(first, "n1") == ""
            await stand.until(lambda: stand.ledger.holdings[first["metadata"]["uid"]].seen)
            server.faults.partition(matching(method="GET", path="/api/v1/pods"))
            server.drop_watches("pods")
            await stand.client.delete(PODS, "first", namespace="default", grace_seconds=0)
            server.compact()
            server.faults.clear()
            await stand.until(lambda: not stand.ledger.holdings)
            assert await stand.bind(second, "n1") == ""


async def test_after_a_restart_pods_on_their_way_are_known_again() -> None:
    async with running() as server:
        await server.create(old_node("n1"))
        first, second = await make(server, "first", "second")
        async with standing(server) as stand:
            assert await stand.bind(first, "n1") == ""
        async with standing(server, bind_timeout_seconds=0.4) as stand:
            assert await stand.bind(second, "n1") == f"node n1: {BUSY}"


async def test_a_pod_may_come_again_through_its_own_gate() -> None:
    gate = Gate()
    share = PodAllocation("n1", {"main": (SliceShare("GPU-a::0", 1),)})
    assert await gate.pass_through("a", share, seconds=0.01)
    assert await gate.pass_through("a", share, seconds=0.01)
    assert not await gate.pass_through("b", share, seconds=0.01)
