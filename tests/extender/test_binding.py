"""Every way in which a binding can go wrong ends with the truth in the ledger."""

import asyncio
import random
from collections.abc import Callable

import pytest

from extender.binding import Binder
from extender.gate import Gate
from extender.wire import ExtenderBindingArgs
from gpuslice.cluster.client import KubeClient
from gpuslice.cluster.resources import NODES, PODS
from gpuslice.placement.holding import Phase
from gpuslice.placement.rejection import TEXTS, Obstacle
from simulator.apiserver.faults import matching
from simulator.apiserver.server import ApiServer, running
from tests.extender.objects import container, node, pod
from tests.extender.scheduler import findings, node_of
from tests.extender.stand import agrees, standing

pytestmark = pytest.mark.anyio
BINDING = matching(method="POST", path="/binding")
READING = matching(method="GET", path="/pods/a")


def refused(server: ApiServer) -> None:
    server.faults.fail(422, BINDING, times=1)


def throttled(server: ApiServer) -> None:
    server.faults.fail(429, BINDING, times=1)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(refused, id="the API server refuses the binding"),
        pytest.param(throttled, id="the API server is busy"),
    ],
)
async def test_a_binding_that_was_certainly_not_written_gives_the_share_back(
    fault: Callable[[ApiServer], None],
) -> None:
    async with running() as server:
        await server.create(node("n1", 1))
        created = await server.create(pod("a", container(memory_mib=16_384)))
        async with standing(server) as stand:
            fault(server)
            error = await stand.bind(created, "n1")
            held_after_error = len(stand.ledger.holdings)
            again = await stand.bind(created, "n1")
        assert (bool(error), held_after_error, again) == (True, 0, "")


async def test_a_binding_whose_answer_was_lost_is_found_in_the_pod() -> None:
    async with running() as server:
        await server.create(node("n1", 1))
        created = await server.create(pod("a", container(memory_mib=16_384)))
        async with standing(server) as stand:
            server.faults.lose_answer(BINDING, times=1)
            error = await stand.bind(created, "n1")
            assert (error, server.get("v1", "Pod", "a")["spec"]["nodeName"], len(stand.ledger.holdings)) == (
                "",
                "n1",
                1,
            )


async def test_while_nothing_is_known_of_a_binding_its_share_stays_taken_wherever_the_pod_goes() -> None:
    async with running() as server:
        for name in ("n1", "n2"):
            await server.create(node(name, 1))
        created = await server.create(pod("a", container(memory_mib=16_384)))
        other = await server.create(pod("b", container(memory_mib=16_384)))
        async with standing(server) as stand:
            await stand.filter(created, "n1", "n2")
            server.faults.partition(BINDING, times=1)
            server.faults.fail(503, READING, times=1)
            server.faults.fail(503, matching(method="GET", path="/api/v1/pods"))
            server.drop_watches("pods")
            first = await stand.bind(created, "n1")
            second = await stand.bind(created, "n2")
            thief = await stand.bind(other, "n1")
            assert (bool(first), second, thief) == (True, "", f"node n1: {TEXTS[Obstacle.MEMORY]}")
            server.faults.clear()
            await stand.until(lambda: len(stand.ledger.holdings) == 1)
            assert await stand.bind(other, "n1") == ""
        assert findings(server) == []


async def test_a_binding_in_doubt_to_a_node_that_has_gone_does_not_keep_the_pod_from_another() -> None:
    async with running() as server:
        for name in ("n1", "n2"):
            await server.create(node(name, 1))
        created = await server.create(pod("a", container(memory_mib=16_384)))
        async with standing(server) as stand:
            server.faults.partition(BINDING, times=1)
            assert await stand.bind(created, "n1")
            await stand.client.delete(NODES, "n1")
            await stand.until(lambda: "n1" not in stand.ledger.fleet.row_of)
            assert await stand.bind(created, "n2") == ""
            stand.ledger.check_invariants()
        assert findings(server) == []


async def test_a_repeated_call_joins_the_attempt_under_way() -> None:
    async with running() as server:
        await server.create(node("n1", 1))
        created = await server.create(pod("a", container(memory_mib=16_384)))
        async with standing(server) as stand:
            server.faults.delay(0.2, BINDING)
            answers = await asyncio.gather(*(stand.bind(created, "n1") for _ in range(5)))
        assert answers == [""] * 5


async def test_a_pod_that_is_gone_leaves_nothing_behind() -> None:
    async with running() as server:
        await server.create(node("n1", 1))
        created = await server.create(pod("a", container(memory_mib=16_384)))
        async with standing(server) as stand:
            await stand.filter(created, "n1")
            await stand.client.delete(PODS, "a", namespace="default", grace_seconds=0)
            error = await stand.bind(created, "n1")
            assert ("is gone" in error, stand.ledger.holdings) == (True, {})


async def test_a_pod_replaced_by_another_of_its_name_is_not_bound() -> None:
    async with running() as server:
        await server.create(node("n1", 1))
        created = await server.create(pod("a"))
        async with standing(server) as stand:
            await stand.filter(created, "n1")
            await stand.client.delete(PODS, "a", namespace="default", grace_seconds=0)
            await server.create(pod("a"))
            error = await stand.bind(created, "n1")
            assert ("has uid" in error, stand.ledger.holdings) == (True, {})


async def test_a_pod_filtered_for_one_node_is_decided_anew_for_the_node_that_is_bound() -> None:
    async with running() as server:
        await server.create(node("n1", 1))
        await server.create(node("n2", 1))
        created = await server.create(pod("a"))
        async with standing(server) as stand:
            await stand.filter(created, "n1")
            assert await stand.bind(created, "n2") == ""
            (holding,) = stand.ledger.holdings.values()
            assert [share.card for _, share in holding.allocation.shares()] == ["GPU-n2-0"]


async def test_a_pod_that_was_never_filtered_here_is_read_first() -> None:
    async with running() as server:
        await server.create(node("n1", 1))
        created = await server.create(pod("a", container(memory_mib=3000)))
        async with standing(server) as stand:
            assert await stand.bind(created, "n1") == ""
            (holding,) = stand.ledger.holdings.values()
            assert holding.uses[0].memory_mib == 3000


async def test_a_node_whose_plugin_is_not_registered_takes_no_pod() -> None:
    async with running() as server:
        await server.create(node("n1", 1, allocatable=0))
        created = await server.create(pod("a"))
        async with standing(server) as stand:
            found = await stand.filter(created, "n1")
            error = await stand.bind(created, "n1")
        text = TEXTS[Obstacle.NOT_READY]
        assert (found["FailedAndUnresolvableNodes"], error) == ({"n1": text}, f"node n1: {text}")


async def test_a_call_repeated_after_success_says_success_and_changes_nothing() -> None:
    async with running() as server:
        await server.create(node("n1", 1))
        await server.create(node("n2", 1))
        created = await server.create(pod("a", container(memory_mib=16_384)))
        async with standing(server) as stand:
            answers = [await stand.bind(created, name) for name in ("n1", "n1", "n2")]
            (holding,) = stand.ledger.holdings.values()
            assert answers == ["", "", "pod default/a is bound to n1"]
            assert (holding.node, holding.phase) == ("n1", Phase.BOUND)


FAULTS: tuple[Callable[[ApiServer], None], ...] = (
    lambda server: server.faults.fail(500, BINDING, times=1),
    lambda server: server.faults.fail(409, BINDING, times=1),
    lambda server: server.faults.lose_answer(BINDING, times=1),
    lambda server: server.faults.partition(BINDING, times=1),
    lambda server: server.faults.delay(0.01, BINDING, times=2),
    lambda server: server.faults.fail(503, READING, times=1),
)


@pytest.mark.parametrize("seed", range(8))
async def test_calls_that_race_for_one_pod_end_with_one_binding_that_all_agree_on(seed: int) -> None:
    rng = random.Random(seed)
    async with running() as server:
        for name in ("n1", "n2", "n3"):
            await server.create(node(name, 1))
        created = await server.create(pod("a", container(memory_mib=16_384)))
        async with standing(server) as stand:
            for fault in rng.sample(FAULTS, rng.randrange(4)):
                fault(server)
            calls = []
            for _ in range(12):
                where = rng.choice(("n1", "n2", "n3"))
                calls.append((where, asyncio.create_task(stand.bind(created, where))))
                for _ in range(rng.randrange(6)):
                    await asyncio.sleep(0)
            answers = [(where, await call) for where, call in calls]
            bound = node_of(server, "a")
            assert {where for where, error in answers if not error} <= {bound}
            assert await stand.bind(created, bound or "n1") == ""
            await stand.until(lambda: agrees(stand, server))
            assert (len(stand.ledger.holdings), findings(server)) == (1, [])


async def test_what_can_wait_is_done_while_the_api_server_is_at_work() -> None:
    """Two pods of a class: what the binding of the first changes is known before the second is asked about."""
    async with running() as server:
        await server.create(node("n1", 1))
        async with standing(server) as stand:
            order: list[str] = []
            binder = stand.extender.binder
            binder._waiting = lambda: order.append(f"{server.get('v1', 'Pod', 'a')['spec'].get('nodeName')} meanwhile")
            created = await server.create(pod("a", container(memory_mib=1024)))
            error = await stand.bind(created, "n1")
        assert (error, order, node_of(server, "a")) == ("", ["None meanwhile"], "n1")


class NoDesk:
    """Promises nothing: every attempt ends at once."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def bound_to(self, uid: str) -> str:
        return ""

    def knows(self, uid: str) -> bool:
        return True

    def plan(self, uid: str, node: str) -> str:
        self.asked.append(node)
        return f"no room on {node}"


async def test_a_call_for_another_node_right_after_an_attempt_has_ended_does_not_stop_the_process() -> None:
    """The attempt is over, but the loop has not yet told so: waiting for it again and again would never end."""
    desk = NoDesk()
    binder = Binder(KubeClient(None), desk, Gate(), leads=lambda: True, timeout_seconds=1.0)  # type: ignore[arg-type]
    calls = []
    for where in ("n1", "n2", "n3"):
        args = ExtenderBindingArgs(pod_name="p", pod_namespace="default", pod_uid="uid", node=where)
        calls.append(asyncio.create_task(binder.bind(args)))
        await asyncio.sleep(0)
    outcomes = await asyncio.gather(*calls)
    assert [outcome.error for outcome in outcomes] == [f"no room on {node}" for node in ("n1", "n2", "n3")]
    assert sorted(desk.asked) == ["n1", "n2", "n3"]
    assert not binder._running
