"""What people are told of a pod that is refused, or placed."""

from functools import partial
from itertools import count, islice

import pytest

from extender.reports import Reports
from gpuslice.cluster.events import Subject
from gpuslice.placement.events import PodKey
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
            assert first == (
                "0/1 nodes fit: 1 not enough free GPU memory on any card. Closest: node n1: "
                "the pod wants 3000 MiB on one card; its only card has 1384 MiB free"
            )


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


async def test_a_placement_is_told_with_its_cards_and_how_many_nodes_fitted() -> None:
    async with running() as server:
        await server.create(node("n1", 2))
        await server.create(node("n2", 1, memory_mib=100))
        created = await server.create(pod("a", container(memory_mib=3000, cores=30)))
        unfiltered = await server.create(pod("b", container(memory_mib=3000)))
        async with standing(server, node_policy="spread") as stand:
            await stand.filter(created, "n1", "n2")
            assert await stand.bind(created, "n1") == ""
            assert await stand.bind(unfiltered, "n1") == ""
            stand.extender.reports.tick()
            await stand.until(lambda: len(placements(server)) == 2)
        assert placements(server) == [
            "GPU-n1-0 (3000 MiB, 30 % of compute) on node n1: 1 of 2 nodes fit, best by policy spread/binpack",
            "GPU-n1-0 (3000 MiB) on node n1",
        ]


async def test_placements_need_not_be_told() -> None:
    async with running() as server:
        await server.create(node("n1", 2))
        created = await server.create(pod("a", container(memory_mib=3000)))
        async with standing(server, placement_events=False) as stand:
            assert await stand.bind(created, "n1") == ""
            stand.extender.reports.tick()
            await stand.extender.recorder.drain()
        assert placements(server) == []


def placements(server: ApiServer) -> list[str]:
    found = [event for event in server.list("v1", "Event", "default") if event["reason"] == "GpuSharePlaced"]
    return [event["message"] for event in sorted(found, key=lambda event: event["involvedObject"]["name"])]


@pytest.mark.parametrize(
    ("placed", "told"),
    [
        pytest.param([1], [[0], []], id="one pod is told at the next tick"),
        pytest.param([2, 2], [[0, 1], [2, 3]], id="a few a second are all told"),
        pytest.param([12], [[0, 1], [*range(2, 12)]], id="a small burst is told when it is over"),
        pytest.param(
            [1000, 1000], [[900, 901], [1900, 1901], [*range(1902, 1922)]], id="of a large one no more than the last"
        ),
    ],
)
def test_placements_that_come_thick_and_fast_wait(placed: list[int], told: list[list[int]]) -> None:
    """A thousand pods within a second cost two Events; the texts of those not told are not even put together."""
    written: list[str] = []
    made: list[int] = []

    class Recorder:
        def record(self, subject: Subject, kind: str, reason: str, message: str) -> None:
            written.append(message)

    def text(at: int) -> str:
        made.append(at)
        return str(at)

    reports, numbers = Reports(Recorder()), count()
    for tick, expected in enumerate(told):
        written.clear()
        for at in islice(numbers, placed[tick] if tick < len(placed) else 0):
            reports.placed(PodKey(f"uid-{at}"), partial(text, at))
        reports.tick()
        assert written == [str(at) for at in expected]
    assert made == [at for expected in told for at in expected]
