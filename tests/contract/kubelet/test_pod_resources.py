"""What the kubelet tells others about who holds which device."""

import asyncio
from pathlib import Path

import grpc
import pytest

from deviceplugin.podresources import PodResources
from gpuslice.proto.podresources.v1 import api_pb2 as res
from tests.contract.kubelet.probe import Probe
from tests.contract.kubelet.rig import NAMESPACE, Rig, container, pod

pytestmark = pytest.mark.anyio


async def test_it_shows_the_ids_of_app_and_sidecar_containers_and_no_init_containers(
    rig: Rig, registered: Probe
) -> None:
    sidecar = {**container("s", registered.resource, 1), "restartPolicy": "Always"}
    init = [container("i", registered.resource, 2, "exit 0"), sidecar]
    made = await rig.create(pod("p", container("c", registered.resource, 3), container("plain"), init=init))
    await rig.running(made)
    recorded = {name: ids for (_, name), ids in rig.recorded(registered.resource).items()}
    listed = {name: ids for (owner, name), ids in (await rig.listed(registered.resource)).items() if owner == "p"}
    assert listed == {"s": recorded["s"], "c": recorded["c"], "plain": frozenset()}
    assert recorded.keys() == {"i", "s", "c"}


async def test_the_pod_in_admission_is_there_without_devices_and_one_not_admitted_is_not_there(
    rig: Rig, registered: Probe
) -> None:
    registered.hold.clear()
    await rig.create(pod("first", container("main", registered.resource, 1)))
    await rig.until(lambda: len(registered.allocated) == 1, "the first is being admitted")
    await rig.create(pod("second", container("main", registered.resource, 1)))
    assert await rig.listed(registered.resource) == {("first", "main"): frozenset()}
    assert rig.recorded(registered.resource) == {}
    async with rig.lister() as lister:
        answer = await lister.Get(res.GetPodResourcesRequest(pod_name="first", pod_namespace=NAMESPACE))
        assert [list(item.devices) for item in answer.pod_resources.containers] == [[]]
        with pytest.raises(grpc.aio.AioRpcError, match="not found"):
            await lister.Get(res.GetPodResourcesRequest(pod_name="second", pod_namespace=NAMESPACE))
    registered.hold.set()


async def test_it_refuses_who_asks_too_often(rig: Rig) -> None:
    async with rig.lister() as lister:
        answers = await asyncio.gather(
            *(lister.List(res.ListPodResourcesRequest()) for _ in range(40)), return_exceptions=True
        )
    refused = [answer for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
    assert {answer.code() for answer in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert 5 <= len(refused) < 40


async def test_a_plugin_that_it_refuses_asks_again_and_is_answered(rig: Rig) -> None:
    asking = PodResources(rig.places.pod_resources)
    try:
        found = await asyncio.gather(*(asking.list("example.com/none") for _ in range(15)))
    finally:
        await asking.close()
    assert asking.failures
    assert None not in found


async def test_a_list_during_an_allocate_can_lose_the_reservation_in_flight(rig: Rig, registered: Probe) -> None:
    lingering = "trap 'exec sleep 1' TERM; while :; do sleep 0.1; done"
    gone = await rig.create(pod("gone", container("main", registered.resource, 1, lingering)))
    (gone,) = await rig.running(gone)
    command = Path(f"/proc/{rig.first_process(gone)}/comm")
    await rig.start_deletion(gone, 10)
    await rig.until(lambda: command.read_text() == "sleep\n", "the kubelet ends the first")
    registered.hold.clear()
    slow = await rig.create(pod("slow", container("main", registered.resource, 1)))
    await rig.until(lambda: len(registered.allocated) == 2, "the second is being admitted")
    in_flight = set(registered.allocated[1])
    await rig.delete(gone, 10)
    await rig.listed(registered.resource)
    registered.hold.set()
    await rig.running(slow)
    await rig.running(await rig.create(pod("next", container("main", registered.resource, 1))))
    assert in_flight <= registered.available[-1], "offered again, although a running pod has it"
