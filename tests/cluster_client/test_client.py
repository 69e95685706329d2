import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from gpuslice.cluster.client import KubeClient, Scope
from gpuslice.cluster.config import load_cluster_config
from gpuslice.cluster.errors import ApiError, Conflict, NotFound, Throttled, Unreachable, error_from_answer
from gpuslice.cluster.resources import NODES, PODS
from gpuslice.cluster.transport import Transport
from gpuslice.devices.pods import Node, Pod
from simulator.apiserver.faults import matching
from simulator.apiserver.server import ApiServer, Options, running
from tests.cluster_client.objects import node, pod

pytestmark = pytest.mark.anyio


async def test_a_list_in_pages_is_complete(client: KubeClient, server: ApiServer) -> None:
    for number in range(7):
        await server.create(pod(f"p{number}"))
    listing = await client.list_all(Scope(PODS), Pod, page_size=3)
    assert [item.metadata.name for item in listing.items] == [f"p{number}" for number in range(7)]


async def test_a_selector_is_left_to_the_server(client: KubeClient, server: ApiServer) -> None:
    await server.create(pod("a", labels={"app": "x"}))
    await server.create(pod("b"))
    listing = await client.list_all(Scope(PODS, namespace="default", label_selector="app=x"), Pod)
    assert [item.metadata.name for item in listing.items] == ["a"]


async def test_binding_merges_annotations_in_the_same_write(client: KubeClient, server: ApiServer) -> None:
    await server.create(node("n1"))
    created = await server.create(pod("a", annotations={"kept": "yes"}))
    uid = created["metadata"]["uid"]
    await client.bind_pod("default", "a", uid=uid, node="n1", annotations={"gpuslice.io/allocation": "{}"})
    found = await client.get(PODS, "a", Pod, namespace="default")
    assert (found.spec.node_name, dict(found.metadata.annotations)) == (
        "n1",
        {"kept": "yes", "gpuslice.io/allocation": "{}"},
    )
    with pytest.raises(Conflict):
        await client.bind_pod("default", "a", uid=uid, node="n1", annotations={})


async def test_binding_another_pod_of_the_same_name_is_a_conflict(client: KubeClient, server: ApiServer) -> None:
    await server.create(node("n1"))
    await server.create(pod("a"))
    with pytest.raises(Conflict):
        await client.bind_pod("default", "a", uid="somebody-else", node="n1", annotations={})


async def test_what_does_not_exist_is_named(client: KubeClient) -> None:
    with pytest.raises(NotFound, match="GET /api/v1/namespaces/default/pods/ghost: 404"):
        await client.get(PODS, "ghost", Pod, namespace="default")


async def test_a_stale_write_is_refused(client: KubeClient, server: ApiServer) -> None:
    created = await server.create(node("n1"))
    await client.patch(NODES, "n1", {"metadata": {"labels": {"a": "b"}}})
    with pytest.raises(Conflict):
        await client.replace(NODES, "n1", created)


async def test_an_eviction_removes_the_pod(client: KubeClient, server: ApiServer) -> None:
    created = await server.create(pod("a"))
    await client.evict_pod("default", "a", uid=created["metadata"]["uid"])
    with pytest.raises(NotFound):
        await client.get(PODS, "a", Pod, namespace="default")


@pytest.mark.parametrize(
    ("status", "kind", "transient"),
    [
        pytest.param(429, Throttled, True, id="too many requests may be tried again"),
        pytest.param(500, ApiError, True, id="a server error may be tried again"),
        pytest.param(422, ApiError, False, id="an invalid object stays invalid"),
    ],
)
async def test_refusals_have_a_type(
    client: KubeClient, server: ApiServer, status: int, kind: type[ApiError], transient: bool
) -> None:
    server.faults.fail(status, retry_after=3)
    with pytest.raises(kind) as caught:
        await client.get(NODES, "n1", Node)
    assert (caught.value.status, caught.value.is_transient) == (status, transient)


async def test_a_throttled_answer_tells_when_to_come_back(client: KubeClient, server: ApiServer) -> None:
    server.faults.fail(429, retry_after=3)
    with pytest.raises(Throttled) as caught:
        await client.get(NODES, "n1", Node)
    assert caught.value.retry_after_seconds == 3


@pytest.mark.parametrize("said", ["", "-1", "1.5", "\u00b2", "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_a_time_to_come_back_that_is_no_number_of_seconds_is_left_out(said: str) -> None:
    assert error_from_answer("GET /a", 503, b"", said).retry_after_seconds is None


async def test_a_cut_connection_leaves_the_outcome_open(client: KubeClient, server: ApiServer) -> None:
    server.faults.partition(matching(path="/nodes"))
    with pytest.raises(Unreachable):
        await client.get(NODES, "n1", Node)


async def test_a_slow_answer_is_given_up(client: KubeClient, server: ApiServer) -> None:
    server.faults.delay(5, matching(path="/nodes"))
    with pytest.raises(Unreachable, match=r"timed out after 0\.05 s"):
        await client.transport.request("GET", "/api/v1/nodes", timeout_seconds=0.05)


async def test_over_tls_only_a_known_authority_is_believed(tmp_path: Path) -> None:
    async with running(Options(seed=1, tls=True, data=tmp_path)) as server:
        config = load_cluster_config(server.kubeconfig())
        await server.create(pod("a"))
        async with Transport(config) as transport:
            client = KubeClient(transport)
            found = [(await client.get(PODS, "a", Pod, namespace="default")).metadata.name for _ in range(3)]
        async with Transport(replace(config, tls=ssl.create_default_context())) as transport:
            with pytest.raises(Unreachable, match="certificate"):
                await transport.request("GET", "/api/v1/nodes")
    assert found == ["a", "a", "a"]
