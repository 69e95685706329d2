"""What the policies learn from pods as the API server has them: models, and the CPU of every pod."""

from typing import Any

import msgspec
import pytest

from extender.facts import cpu_milli_of, pod_facts
from gpuslice.cluster.resources import PODS
from gpuslice.devices.families import load_builtin
from gpuslice.devices.pods import Pod
from simulator.apiserver.server import running
from tests.extender.objects import container, node, pod
from tests.extender.stand import Stand, standing

TYPES = "nvidia.com/use-gputype"


def cpu(name: str = "main", amount: str = "1") -> dict[str, Any]:
    return {"name": name, "image": "example.org/x", "resources": {"requests": {"cpu": amount}}}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({"containers": [cpu("a", "1"), cpu("b", "250m")]}, 1250, id="containers add up"),
        pytest.param({"containers": [cpu()], "initContainers": [cpu("i", "3")]}, 3000, id="the largest init container"),
        pytest.param(
            {"containers": [cpu()], "initContainers": [{**cpu("s", "2"), "restartPolicy": "Always"}]},
            3000,
            id="sidecars stay",
        ),
        pytest.param({"containers": [cpu()], "overhead": {"cpu": "100m"}}, 1100, id="what the runtime takes besides"),
        pytest.param(
            {"containers": [cpu()], "resources": {"requests": {"cpu": "5"}}}, 5000, id="of the pod as a whole"
        ),
        pytest.param({"containers": [{"name": "c"}]}, 0, id="nothing asked"),
        pytest.param({"containers": [cpu("c", "much")]}, 0, id="an amount that is none"),
    ],
)
def test_cpu_counts_as_kube_scheduler_counts_it(spec: dict[str, Any], expected: int) -> None:
    assert cpu_milli_of(msgspec.convert({"spec": spec}, Pod)) == expected


def test_the_models_of_a_bound_pod_are_those_of_its_request() -> None:
    made = pod("p", container(memory_mib=1000), annotations={TYPES: "A10, Tesla T4"}, nodeName="n1")
    made["metadata"]["annotations"]["gpuslice.io/allocation"] = (
        '{"v":1,"node":"n1","containers":{"main":[{"slice":"GPU-n1-0::0","memoryMiB":1000}]}}'
    )
    assert pod_facts(msgspec.convert(made, Pod), load_builtin()).seen.models == ("A10", "Tesla T4")


def models_learnt(stand: Stand) -> set[tuple[str, ...]]:
    return {task.models for task in stand.ledger.observer._counts}


@pytest.mark.anyio
async def test_the_mix_knows_the_models_that_pods_insist_on_also_after_a_restart() -> None:
    async with running() as server:
        await server.create(node("n1", 1))
        created = await server.create(pod("p", container(memory_mib=1000), annotations={TYPES: "Tesla T4"}))
        async with standing(server) as stand:
            assert await stand.bind(created, "n1") == ""
            assert models_learnt(stand) == {("Tesla T4",)}
        async with standing(server) as stand:
            assert models_learnt(stand) == {("Tesla T4",)}


@pytest.mark.anyio
async def test_the_cpu_of_pods_without_a_device_counts_until_they_end() -> None:
    async with running() as server:
        await server.create(node("n1", 1))
        for name in ("web", "job"):
            await server.create(pod(name, cpu("main", "20"), nodeName="n1"))
        async with standing(server) as stand:
            used = stand.ledger.fleet.cpu_used
            assert (used[0], stand.ledger.fleet.cpu_total[0]) == (40_000, 64_000)
            ended = {"status": {"phase": "Succeeded"}}
            await stand.client.patch(PODS, "job", ended, namespace="default", subresource="status")
            await stand.until(lambda: used[0] == 20_000)
            await stand.client.delete(PODS, "web", namespace="default", grace_seconds=0)
            await stand.until(lambda: used[0] == 0)
            stand.ledger.check_invariants()
            assert not stand.ledger.holdings
