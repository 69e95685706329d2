"""Whole Node objects: the Cluster Autoscaler's templates, and a scheduler without node cache."""

import copy
from typing import Any

import pytest

from gpuslice.placement.rejection import TEXTS, Obstacle
from simulator.apiserver.server import running
from tests.extender.objects import container, node, pod
from tests.extender.stand import standing

pytestmark = pytest.mark.anyio


def template(like: dict[str, Any], name: str) -> dict[str, Any]:
    """What the autoscaler makes of a real node: another name, the same annotations."""
    made = copy.deepcopy(like)
    made["metadata"]["name"] = name
    return made


async def ask(stand: Any, wanted: dict[str, Any], *nodes: dict[str, Any]) -> dict[str, Any]:
    status, answer = await stand.post("filter", {"Pod": wanted, "Nodes": {"items": list(nodes)}, "NodeNames": None})
    assert status == 200
    assert isinstance(answer, dict)
    return answer


async def test_a_template_is_judged_as_the_empty_machine_that_it_stands_for() -> None:
    async with running() as server:
        real = await server.create(node("n1", 1))
        first = await server.create(pod("first", container(memory_mib=16_384)))
        waiting = await server.create(pod("waiting", container(memory_mib=16_384)))
        async with standing(server) as stand:
            assert await stand.bind(first, "n1") == ""
            before = (dict(stand.ledger.holdings), stand.ledger.fleet.rows)
            templates = [template(real, f"template-{n}") for n in range(3)]
            answer = await ask(stand, waiting, real, *templates)
            assert [item["metadata"]["name"] for item in answer["Nodes"]["items"]] == [
                f"template-{n}" for n in range(3)
            ]
            assert answer["FailedAndUnresolvableNodes"] == {"n1": TEXTS[Obstacle.MEMORY]}
            assert answer["Nodes"]["items"][0] == templates[0]
            assert (stand.ledger.holdings, stand.ledger.fleet.rows) == before
            assert len(stand.ledger.waiting) == 0


async def test_a_machine_too_small_for_the_pod_is_refused() -> None:
    async with running() as server, standing(server) as stand:
        wanted = pod("big", container(gpus=2, memory_mib=1000))
        answer = await ask(stand, wanted, node("template", 1), node("larger", 2))
        assert [item["metadata"]["name"] for item in answer["Nodes"]["items"]] == ["larger"]
        assert answer["FailedAndUnresolvableNodes"] == {"template": TEXTS[Obstacle.TOO_FEW_CARDS]}


async def test_a_pod_without_a_request_of_ours_fits_everywhere() -> None:
    async with running() as server, standing(server) as stand:
        answer = await ask(stand, pod("plain", {"name": "main"}), node("a"), node("b"))
        assert len(answer["Nodes"]["items"]) == 2


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"Pod": pod("a")}, id="neither nodes nor names"),
        pytest.param({}, id="nothing at all"),
        pytest.param({"Pod": None, "NodeNames": ["n1"]}, id="no pod"),
    ],
)
async def test_a_request_without_its_parts_is_an_error_in_the_answer_and_the_next_one_works(
    body: dict[str, Any],
) -> None:
    async with running() as server:
        await server.create(node("n1"))
        async with standing(server) as stand:
            status, answer = await stand.post("filter", body)
            assert (status, bool(answer["Error"])) == (200, True)
            assert (await stand.filter(await server.create(pod("a")), "n1"))["NodeNames"] == ["n1"]


@pytest.mark.parametrize("shape", [{"NodeNames": []}, {"Nodes": {"items": []}}, {"Nodes": {"items": None}}])
async def test_no_nodes_is_an_empty_answer(shape: dict[str, Any]) -> None:
    async with running() as server, standing(server) as stand:
        status, answer = await stand.post("filter", {"Pod": pod("a"), **shape})
        assert (status, answer["Error"], answer["NodeNames"]) == (200, "", [])
