import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from gpuslice.cluster.client import KubeClient, Scope
from gpuslice.cluster.reflector import Changed, Event, Gone, Listed, Reflector
from gpuslice.cluster.resources import PODS
from gpuslice.cluster.timing import Timing
from gpuslice.cluster.transport import Transport
from gpuslice.devices.pods import Pod
from simulator.apiserver.faults import matching
from simulator.apiserver.server import ApiServer
from tests.cluster_client.objects import pod

pytestmark = pytest.mark.anyio


class Follower:
    """A reflector of pod names, its story so far, and a way to wait for it."""

    def __init__(self, client: KubeClient) -> None:
        self.story: list[str] = []
        self._moved = asyncio.Condition()
        self._loop = asyncio.get_running_loop()
        self.delays: list[float] = []
        timing = Timing(sleep=self._sleep, draw=lambda: 0.5)
        self.reflector: Reflector[str] = Reflector(
            client, Scope(PODS), Pod, handle=self._tell, project=lambda p: p.metadata.name, timing=timing
        )

    async def _sleep(self, seconds: float) -> None:
        self.delays.append(seconds)
        await asyncio.sleep(0.001)

    def _tell(self, event: Event[str]) -> None:
        match event:
            case Listed(items, gone):
                self.story.append(f"listed {sorted(items.values())} gone {sorted(gone)}")
            case Changed(item, before):
                self.story.append(f"{'added' if before is None else 'modified'} {item}")
            case Gone(item):
                self.story.append(f"gone {item}")
        self._loop.create_task(self._notify())

    async def _notify(self) -> None:
        async with self._moved:
            self._moved.notify_all()

    async def until(self, true: Callable[[], bool]) -> None:
        async with self._moved:
            await asyncio.wait_for(self._moved.wait_for(true), 5)


@asynccontextmanager
async def following(client: KubeClient) -> AsyncIterator[Follower]:
    follower = Follower(client)
    task = asyncio.create_task(follower.reflector.run())
    try:
        await asyncio.wait_for(follower.reflector.synced.wait(), 5)
        yield follower
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_changes_arrive_in_order(client: KubeClient, server: ApiServer) -> None:
    await server.create(pod("a"))
    async with following(client) as follower:
        await server.create(pod("b"))
        await client.patch(PODS, "b", {"metadata": {"labels": {"x": "y"}}}, namespace="default")
        await client.delete(PODS, "a", namespace="default", grace_seconds=0)
        await follower.until(lambda: len(follower.story) == 4)
        assert follower.story == ["listed ['a'] gone []", "added b", "modified b", "gone a"]
        assert sorted(follower.reflector.items.values()) == ["b"]


async def test_a_dropped_watch_goes_on_where_it_was(client: KubeClient, server: ApiServer) -> None:
    async with following(client) as follower:
        await server.create(pod("a"))
        await follower.until(lambda: "added a" in follower.story)
        server.drop_watches()
        await server.create(pod("b"))
        await follower.until(lambda: "added b" in follower.story)
        assert follower.story == ["listed [] gone []", "added a", "added b"]
        assert follower.reflector.lists == 1


async def test_what_was_deleted_while_history_was_lost_is_gone(client: KubeClient, server: ApiServer) -> None:
    await server.create(pod("a"))
    await server.create(pod("b"))
    async with following(client) as follower:
        server.faults.partition(matching(path="/pods"))
        server.cut_connections()
        server.faults.clear()
        server.faults.fail(503, matching(method="GET", path="/pods"), times=3)
        await client.delete(PODS, "a", namespace="default", grace_seconds=0)
        server.expire_watches()
        await follower.until(lambda: "listed ['b'] gone ['a']" in follower.story or "gone a" in follower.story)
        assert sorted(follower.reflector.items.values()) == ["b"]


async def test_a_storm_of_410_is_answered_with_growing_delays(client: KubeClient, server: ApiServer) -> None:
    async with following(client) as follower:
        for expected in range(2, 6):
            server.expire_watches()
            await follower.until(lambda expected=expected: follower.reflector.lists >= expected)  # type: ignore[misc]
        assert follower.delays
        assert all(0 < delay <= 5 for delay in follower.delays)


async def test_a_pod_replaced_by_another_of_its_name_is_two_events(client: KubeClient, server: ApiServer) -> None:
    await server.create(pod("a"))
    async with following(client) as follower:
        server.drop_watches()
        await client.delete(PODS, "a", namespace="default", grace_seconds=0)
        await server.create(pod("a"))
        await follower.until(lambda: "added a" in follower.story)
        assert follower.story == ["listed ['a'] gone []", "gone a", "added a"]


async def test_a_relist_on_demand_reads_everything_again(client: KubeClient, server: ApiServer) -> None:
    await server.create(pod("a"))
    async with following(client) as follower:
        follower.reflector.relist()
        await follower.until(lambda: follower.reflector.lists == 2)
        await server.create(pod("b"))
        await follower.until(lambda: "added b" in follower.story)
        assert follower.story == ["listed ['a'] gone []", "listed ['a'] gone []", "added b"]
        transport = client.transport
        assert isinstance(transport, Transport)
        assert len(transport._open) - len(transport._idle) == 1  # the watch of before is closed


async def test_a_relist_asked_for_while_listing_is_not_answered_by_that_list(
    client: KubeClient, server: ApiServer
) -> None:
    await server.create(pod("a"))
    server.faults.delay(0.2, matching(method="GET", path="/pods"), times=1)
    follower = Follower(client)
    task = asyncio.create_task(follower.reflector.run())
    await asyncio.sleep(0)
    wanted = follower.reflector.relist()
    await follower.until(lambda: follower.reflector.listed_for >= wanted)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (wanted, follower.reflector.lists) in {(1, 1), (1, 2)}
