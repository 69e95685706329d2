"""ResourceQuota for memory x cards and compute x cards; it fails closed."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.quotas import QUOTA, Cap, Claim, QuotaFacts, Quotas, QuotaSpec, ResourceQuota, quota_facts
from gpuslice.cluster.resources import PODS, RESOURCE_QUOTAS
from gpuslice.devices.families import load_builtin
from gpuslice.devices.pods import Metadata
from gpuslice.devices.traits import PodTraits
from simulator.apiserver.server import running
from tests.extender.objects import container, node, pod
from tests.extender.stand import standing


def quota(**hard: str) -> dict[str, Any]:
    keys = {key.replace("gpu", "limits.nvidia.com/gpu"): value for key, value in hard.items()}
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "team", "namespace": "default"},
        "spec": {"hard": keys},
    }


@pytest.mark.anyio
async def test_memory_counts_for_every_card_of_a_container() -> None:
    async with running() as server:
        await server.create(node("n1", 4))
        two = await server.create(pod("two", container(gpus=2, memory_mib=8000)))
        one = await server.create(pod("one", container(memory_mib=8000)))
        small = await server.create(pod("small", container(memory_mib=4000)))
        await server.create(quota(gpumem="20000"))
        async with standing(server) as stand:
            assert await stand.bind(two, "n1") == ""
            refused = await stand.filter(one, "n1")
            forced = await stand.bind(one, "n1")
            assert (refused["FailedAndUnresolvableNodes"], forced) == ({"n1": QUOTA}, QUOTA)
            assert await stand.bind(small, "n1") == ""


@pytest.mark.anyio
async def test_a_pod_held_back_by_a_quota_is_woken_when_the_quota_or_the_usage_allows() -> None:
    async with running() as server:
        await server.create(node("n1", 4))
        first = await server.create(pod("first", container(memory_mib=8000)))
        waiting = await server.create(pod("waiting", container(memory_mib=8000)))
        await server.create(quota(gpumem="8000"))
        async with standing(server) as stand:
            assert await stand.bind(first, "n1") == ""
            await stand.filter(waiting, "n1")
            await stand.client.delete(PODS, "first", namespace="default", grace_seconds=0)
            await stand.until(lambda: stand.extender.waker.patches == 1)
            assert (await stand.filter(waiting, "n1"))["NodeNames"] == ["n1"]
            body = {"spec": {"hard": {"limits.nvidia.com/gpumem": "7000"}}}
            await stand.client.patch(RESOURCE_QUOTAS, "team", body, namespace="default")
            await stand.until(
                lambda: bool(stand.extender.engine.quotas.excess("default", Claim({"nvidia": (8000, 0)})))
            )
            await stand.filter(waiting, "n1")
            await stand.client.delete(RESOURCE_QUOTAS, "team", namespace="default")
            await stand.until(lambda: stand.extender.waker.patches == 2)
            assert (await stand.filter(waiting, "n1"))["NodeNames"] == ["n1"]


class NoUsage:
    def used_in_namespace(
        self, namespace: str, counts: Callable[[PodTraits], bool] | None = None
    ) -> dict[str, tuple[int, int]]:
        return {}


@pytest.mark.parametrize(
    ("hard", "expected"),
    [
        pytest.param({"limits.nvidia.com/gpumem": "16Gi"}, 16_384, id="a binary suffix means bytes"),
        pytest.param({"limits.nvidia.com/gpumem": "3k"}, 3000, id="what the API server makes of 3000"),
        pytest.param({"limits.nvidia.com/gpumem": "1500m"}, 0, id="a part of a MiB counts as nothing"),
        pytest.param({"limits.nvidia.com/gpumem": "much"}, 0, id="words count as nothing"),
        pytest.param({"limits.nvidia.com/gpumem": "4000Gi"}, 4_096_000, id="a quota may exceed any card"),
    ],
)
def test_what_a_quota_says(hard: dict[str, str], expected: int) -> None:
    facts = quota_facts(ResourceQuota(Metadata(name="q", namespace="ns"), QuotaSpec(dict(hard))), load_builtin())
    assert [cap.most for cap in facts.caps] == [expected]


@settings(deadline=None)
@given(caps=st.lists(st.integers(0, 100), min_size=1, max_size=4), wanted=st.integers(1, 120))
def test_every_quota_of_a_namespace_applies(caps: list[int], wanted: int) -> None:
    quotas = Quotas(NoUsage())
    for number, most in enumerate(caps):
        quotas.put(QuotaFacts("ns", f"q{number}", (Cap("limits.nvidia.com/gpumem", "nvidia", memory=True, most=most),)))
    assert bool(quotas.excess("ns", Claim({"nvidia": (wanted, 0)}))) == (wanted > min(caps))
    assert quotas.excess("elsewhere", Claim({"nvidia": (wanted, 0)})) == ""
