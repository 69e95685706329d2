"""A quota is about the pods that its scopes name; tests/contract holds the same rows on the real API server."""

import msgspec
import pytest

from extender.quota_scopes import scopes_of
from extender.quotas import QUOTA, ResourceQuota, quota_facts
from gpuslice.cluster import resources
from gpuslice.devices.families import load_builtin
from gpuslice.devices.pods import Pod
from gpuslice.devices.traits import PodTraits, traits_of
from simulator.apiserver.server import running
from tests.extender.objects import container, node, pod, priority_classes
from tests.extender.quota_scope_rows import ABOUT, PODS, QUOTAS
from tests.extender.stand import standing


@pytest.mark.parametrize("quota", QUOTAS)
@pytest.mark.parametrize("name", PODS)
def test_which_pods_a_quota_is_about(name: str, quota: str) -> None:
    facts = quota_facts(msgspec.convert({"spec": {"hard": {}, **QUOTAS[quota]}}, ResourceQuota), load_builtin())
    found = facts.scopes.include(traits_of(msgspec.convert({"spec": PODS[name]}, Pod)))
    assert found == (name in ABOUT[quota])


def test_the_class_that_the_api_server_wrote_counts() -> None:
    made = {"spec": {"containers": [{"name": "c"}]}, "status": {"qosClass": "Burstable"}}
    assert traits_of(msgspec.convert(made, Pod)) == PodTraits()


def test_a_scope_of_other_objects_is_about_no_pod() -> None:
    assert not scopes_of(("VolumeAttributesClass",), None).include(PodTraits())


@pytest.mark.anyio
async def test_a_quota_of_one_priority_class_counts_and_holds_back_its_pods_alone() -> None:
    selector = {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "high", "namespace": "default"},
        "spec": {"hard": {"limits.nvidia.com/gpumem": "4000"}, "scopeSelector": selector},
    }
    async with running() as server:
        for each in (node("n1", 2), quota, *priority_classes()):
            await server.create(each)
        low = await server.create(pod("low", container(memory_mib=8000)))
        high, more = [
            await server.create(pod(name, container(memory_mib=3000), priorityClassName="high")) for name in ("a", "b")
        ]
        async with standing(server) as stand:
            assert await stand.bind(low, "n1") == ""
            assert await stand.bind(high, "n1") == ""
            assert await stand.bind(more, "n1") == QUOTA
            assert (await stand.filter(more, "n1"))["FailedAndUnresolvableNodes"] == {"n1": QUOTA}
            await stand.until(lambda: all(held.seen for held in stand.ledger.holdings.values()))
            assert stand.extender.engine.quotas.apply_to("default")
            await stand.client.delete(resources.PODS, "low", namespace="default", grace_seconds=0)
            await stand.until(lambda: len(stand.ledger.holdings) == 1)
            assert stand.extender.waker.patches == 0
            await stand.client.delete(resources.PODS, "a", namespace="default", grace_seconds=0)
            await stand.until(lambda: stand.extender.waker.patches == 1)
            assert (await stand.filter(more, "n1"))["NodeNames"] == ["n1"]
