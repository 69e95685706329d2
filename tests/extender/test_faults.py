"""Faults: after each, the API server's own record must be sound, by an auditor that shares no code with the ledger."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gpuslice.cluster.resources import PODS
from simulator.apiserver.faults import matching
from simulator.apiserver.server import ApiServer, running
from tests.extender.objects import container, node, pod
from tests.extender.processes import extender_process
from tests.extender.scheduler import findings, node_of, scheduling
from tests.extender.stand import agrees, standing

pytestmark = pytest.mark.anyio
HALF = 8192
FAST_LEASE = ("--lease-seconds", "2", "--renew-deadline-seconds", "1", "--lease-retry-seconds", "0.2")


async def pods(server: ApiServer, count: int, prefix: str = "p") -> list[dict[str, Any]]:
    return [await server.create(pod(f"{prefix}{n}", container(memory_mib=HALF))) for n in range(count)]


def bound_count(server: ApiServer) -> int:
    return sum(bool(found["spec"].get("nodeName")) for found in server.list("v1", "Pod"))


async def test_a_restart_of_the_api_server_loses_and_doubles_nothing() -> None:
    async with running() as server:
        await server.create(node("n1", 4))
        async with standing(server) as stand, scheduling(server, stand):
            await pods(server, 3, "before")
            await stand.until(lambda: bound_count(server) == 3)
            server.faults.partition()
            server.cut_connections()
            await pods(server, 3, "during")
            server.compact()
            server.faults.clear()
            await stand.until(lambda: bound_count(server) == 6, seconds=20)
            await stand.until(lambda: agrees(stand, server))
            assert findings(server) == []


async def test_a_storm_of_410_while_pods_come_and_go() -> None:
    async with running() as server:
        await server.create(node("n1", 4))
        async with standing(server) as stand, scheduling(server, stand):
            for number in range(8):
                await pods(server, 1, f"wave{number}-")
                server.expire_watches()
                if number % 2:
                    await stand.client.delete(PODS, f"wave{number - 1}-0", namespace="default", grace_seconds=0)
            await stand.until(lambda: bound_count(server) == 4, seconds=20)
            await stand.until(lambda: agrees(stand, server), seconds=20)
            assert findings(server) == []


async def test_what_was_deleted_behind_a_partition_is_given_back_after_it() -> None:
    async with running() as server:
        await server.create(node("n1", 1))
        first, second, third = await pods(server, 3)
        async with standing(server) as stand:
            assert [await stand.bind(p, "n1") for p in (first, second)] == ["", ""]
            await stand.until(lambda: all(holding.seen for holding in stand.ledger.holdings.values()))
            server.faults.partition(matching(method="GET", path="/api/v1/pods"))
            server.drop_watches("pods")
            await stand.client.delete(PODS, "p0", namespace="default", grace_seconds=0)
            stale = await stand.filter(third, "n1")
            server.compact()
            server.faults.clear()
            await stand.until(lambda: len(stand.ledger.holdings) == 1)
            agreed = agrees(stand, server)
            fresh = await stand.filter(third, "n1")
            assert (stale["NodeNames"], fresh["NodeNames"], agreed) == ([], ["n1"], True)


async def test_while_the_view_is_stale_no_unconfirmed_share_runs_out() -> None:
    async with running() as server:
        await server.create(node("n1", 1))
        (first,) = await pods(server, 1)
        async with standing(server, assume_seconds=0.0) as stand:
            await stand.filter(first, "n1")
            server.faults.lose_answer(matching(method="POST", path="/binding"), times=1)
            server.faults.partition(matching(method="GET", path="/pods"))
            server.drop_watches("pods")
            assert await stand.bind(first, "n1") != ""
            stand.extender.feed.pods._heard_at = -1000.0
            stand.extender.tick()
            assert len(stand.ledger.holdings) == 1
            server.faults.clear()
            await stand.until(lambda: agrees(stand, server))


async def test_killed_between_assume_and_bind_the_next_process_sees_the_truth(tmp_path: Path) -> None:
    async with running() as server:
        await server.create(node("n1", 1))
        first, second, third = await pods(server, 3)
        async with extender_process(server, tmp_path, "a", "--no-leader-elect") as doomed:
            await doomed.until_ready()
            await doomed.filter(first, "n1")
            late = server.faults.hold(matching(method="POST", path="/binding"), times=1)
            attempt = asyncio.create_task(doomed.bind(first, "n1"))
            await late.arrived.wait()
            doomed.kill()
            with pytest.raises(Exception, match=r"disconnect|reset|Server|closed|refused"):
                await attempt
        async with extender_process(server, tmp_path, "b", "--no-leader-elect") as heir:
            await heir.until_ready()
            late.let_in()
            answers = [await heir.bind(p, "n1") for p in (first, second, third)]
            bound = [node_of(server, name) for name in ("p0", "p1", "p2")]
            assert [status for status, _ in answers] == [200] * 3
            assert (bound.count("n1"), findings(server)) == (2, [])


async def test_a_paused_leader_that_wakes_up_binds_nothing(tmp_path: Path) -> None:
    async with running() as server:
        await server.create(node("n1", 1))
        first, second, third, fourth = await pods(server, 4)
        async with (
            extender_process(server, tmp_path, "a", *FAST_LEASE) as old,
            extender_process(server, tmp_path, "b", *FAST_LEASE, "--lease-retry-seconds", "0.3") as new,
        ):
            await old.until_ready()
            refused_by_standby, _ = await new.filter(first, "n1")
            assert (await old.bind(first, "n1"), refused_by_standby) == ((200, ""), 503)
            old.pause()
            await new.until_ready()
            assert await new.bind(second, "n1") == (200, "")
            old.sent.clear()
            late = asyncio.create_task(old.bind(third, "n1"))
            await old.sent.wait()
            old.resume()
            status, error = await late
            assert (status == 503 or bool(error), node_of(server, "p2")) == (True, "")
            answer = await new.bind(fourth, "n1")
            assert (bool(answer[1]), bound_count(server), findings(server)) == (True, 2, [])


async def test_a_leader_that_stops_hands_over_at_once(tmp_path: Path) -> None:
    async with running() as server:
        await server.create(node("n1", 1))
        (first,) = await pods(server, 1)
        slow = ("--lease-seconds", "30", "--renew-deadline-seconds", "20", "--lease-retry-seconds", "0.2")
        async with (
            extender_process(server, tmp_path, "a", *slow) as old,
            extender_process(server, tmp_path, "b", *slow) as new,
        ):
            await old.until_ready()
            started = asyncio.get_running_loop().time()
            code = await old.stop()
            stopped_after = asyncio.get_running_loop().time() - started
            await new.until_ready(seconds=10)
            assert (code, stopped_after < 2.0, await new.bind(first, "n1")) == (0, True, (200, ""))
