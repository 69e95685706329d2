# ruff: noqa: N802  the kubelet API fixes the names
"""The stub kubelet against what the real one was measured to do."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from gpuslice.proto.deviceplugin.v1beta1 import api_pb2 as pb
from gpuslice.proto.deviceplugin.v1beta1 import api_pb2_grpc as rpc
from gpuslice.proto.podresources.v1 import api_pb2 as res
from gpuslice.proto.podresources.v1 import api_pb2_grpc as res_rpc
from simulator.kubelet.checkpointfile import FILE_NAME
from simulator.kubelet.kubelet import Behaviour, StubKubelet
from simulator.kubelet.local import LocalApi
from simulator.kubelet.podview import PodObject
from simulator.kubelet.podworker import Pace

pytestmark = pytest.mark.anyio

FOO = "example.com/foo"
IDS = [f"d{n}" for n in range(6)]


class Plugin(rpc.DevicePluginServicer):
    """A plugin that notes its calls and does as the test says."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.orders: list[tuple[str, ...]] = []
        self.lists: asyncio.Queue[list[str]] = asyncio.Queue()
        self.prefer: list[str] = []
        self.refuse_start = ""
        self.hold = asyncio.Event()
        self.hold.set()

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Any) -> pb.DevicePluginOptions:
        self.calls.append("options")
        return pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)

    async def ListAndWatch(self, request: pb.Empty, context: Any) -> AsyncIterator[pb.ListAndWatchResponse]:
        while True:
            healthy = await self.lists.get()
            yield pb.ListAndWatchResponse(
                devices=[pb.Device(ID=i, health="Healthy" if i in healthy else "Broken") for i in IDS]
            )

    async def GetPreferredAllocation(self, request: Any, context: Any) -> pb.PreferredAllocationResponse:
        self.calls.append("prefer")
        answer = pb.ContainerPreferredAllocationResponse(deviceIDs=self.prefer)
        return pb.PreferredAllocationResponse(container_responses=[answer])

    async def Allocate(self, request: pb.AllocateRequest, context: Any) -> pb.AllocateResponse:
        ids = tuple(request.container_requests[0].devices_ids)
        self.calls.append("allocate")
        self.orders.append(ids)
        await self.hold.wait()
        env = {"GOT": ",".join(sorted(ids))}
        return pb.AllocateResponse(container_responses=[pb.ContainerAllocateResponse(envs=env)])

    async def PreStartContainer(self, request: Any, context: Any) -> pb.PreStartContainerResponse:
        self.calls.append("start")
        if self.refuse_start:
            await context.abort(grpc.StatusCode.UNAVAILABLE, self.refuse_start)
        return pb.PreStartContainerResponse()


class Bench:
    """A kubelet, its pods, and as many plugin servers as a test starts."""

    def __init__(self, root: Path) -> None:
        self.api = LocalApi()
        pace = Pace(start_retry=0.05, restart_backoff=0.05, force_delete_overlap=0.3, node_status=0.2)
        self.kubelet = StubKubelet("n1", root / "k", self.api, behaviour=Behaviour(pace=pace, pretend=True))
        self.servers: list[grpc.aio.Server] = []
        self._names = itertools.count()

    async def serve(self, plugin: Plugin) -> str:
        """Serve a plugin; return its socket's name."""
        name = f"p{next(self._names)}.sock"
        server = grpc.aio.server()
        rpc.add_DevicePluginServicer_to_server(plugin, server)
        server.add_insecure_port(f"unix:{self.kubelet.layout.plugins / name}")
        await server.start()
        self.servers.append(server)
        return name

    async def register(self, endpoint: str, resource: str = FOO, version: str = "v1beta1") -> None:
        """Call Register as a plugin does."""
        target = f"unix:{self.kubelet.layout.plugins / 'kubelet.sock'}"
        options = (("grpc.use_local_subchannel_pool", 1),)
        async with grpc.aio.insecure_channel(target, options=options) as channel:
            request = pb.RegisterRequest(version=version, endpoint=endpoint, resource_name=resource)
            await rpc.RegistrationStub(channel).Register(request)

    async def ready(self, healthy: list[str] | None = None) -> Plugin:
        """Serve and register a plugin and wait for its list."""
        plugin = Plugin()
        await self.register(await self.serve(plugin))
        await self.list(plugin, IDS if healthy is None else healthy)
        return plugin

    async def list(self, plugin: Plugin, healthy: list[str]) -> None:
        """Send a list and wait for its effect."""
        plugin.lists.put_nowait(healthy)
        await self.api.until(lambda: self.api.devices.get(FOO) == (len(IDS), len(healthy)))

    def pod(self, name: str, *counts: int, init: tuple[int, ...] = ()) -> str:
        """Create a pod with one container for each count."""

        def containers(prefix: str, amounts: tuple[int, ...]) -> list[dict[str, Any]]:
            return [
                {"name": f"{prefix}{at}", "command": ["true"], "resources": {"limits": {FOO: count}}}
                for at, count in enumerate(amounts)
            ]

        spec = {"nodeName": "n1", "containers": containers("c", counts), "initContainers": containers("i", init)}
        return self.api.create({"metadata": {"name": name}, "spec": spec})

    async def until_phase(self, uid: str, phase: str) -> None:
        """Wait for a pod's phase."""
        await self.api.until(lambda: self.api.phase(uid) == phase)


@pytest.fixture
async def bench(short_path: Path) -> AsyncIterator[Bench]:
    made = Bench(short_path)
    await made.kubelet.start()
    yield made
    await made.kubelet.shut_down()
    for server in made.servers:
        await server.stop(None)


async def test_it_dials_back_inside_register(bench: Bench) -> None:
    plugin = Plugin()
    await bench.register(await bench.serve(plugin))
    assert plugin.calls == ["options"]


@pytest.mark.parametrize(
    ("resource", "version", "endpoint", "problem"),
    [
        pytest.param("foo", "v1beta1", "", "is invalid", id="no domain"),
        pytest.param("x.kubernetes.io/foo", "v1beta1", "", "is invalid", id="Kubernetes' own domain"),
        pytest.param(FOO, "v1alpha", "", "is not supported", id="another version"),
    ],
)
async def test_a_registration_is_refused(
    bench: Bench, resource: str, version: str, endpoint: str, problem: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=problem):
        await bench.register(endpoint, resource, version)


async def test_ids_travel_in_random_order_and_a_valid_preference_is_obeyed(bench: Bench) -> None:
    plugin = await bench.ready()
    plugin.prefer = ["d3", "d1", "d5", "d0"]
    uid = bench.pod("p", 4)
    await bench.until_phase(uid, "Running")
    assert set(plugin.orders[0]) == set(plugin.prefer)
    assert plugin.orders[0] != tuple(sorted(plugin.orders[0]))
    assert plugin.calls[1:] == ["prefer", "allocate", "start"]


async def test_a_short_preference_is_filled_and_a_foreign_one_dropped(bench: Bench) -> None:
    plugin = await bench.ready()
    plugin.prefer = ["d4", "zz"]
    uid = bench.pod("p", 3)
    await bench.until_phase(uid, "Running")
    assert "d4" in plugin.orders[0]
    assert len(set(plugin.orders[0]) & set(IDS)) == 3


async def test_init_devices_are_reused_without_a_preference(bench: Bench) -> None:
    plugin = await bench.ready()
    plugin.prefer = ["d0", "d1"]
    bench.pod("p", 1, init=(2,))
    await bench.api.until(lambda: plugin.calls.count("allocate") == 2)
    assert plugin.calls.count("prefer") == 1
    assert set(plugin.orders[1]) < {"d0", "d1"}


async def test_a_refused_start_is_tried_again_with_the_plugins_words_in_the_status(bench: Bench) -> None:
    plugin = await bench.ready()
    plugin.refuse_start = "wait for the other"
    uid = bench.pod("p", 1)
    await bench.api.until(lambda: "wait for the other" in str(bench.api.status(uid)))
    waiting = bench.api.status(uid)["containerStatuses"][0]["state"]["waiting"]
    assert waiting["reason"] == "CreateContainerConfigError"
    plugin.refuse_start = ""
    await bench.until_phase(uid, "Running")
    assert plugin.calls.count("allocate") == 1


async def test_too_few_devices_fail_the_pod_for_good(bench: Bench) -> None:
    await bench.ready(healthy=["d0"])
    uid = bench.pod("p", 2)
    await bench.until_phase(uid, "Failed")
    assert bench.api.status(uid)["reason"] == "UnexpectedAdmissionError"
    assert "Requested: 2, Available: 1" in bench.api.status(uid)["message"]


async def test_a_plugin_that_goes_takes_allocatable_to_zero_and_leaves_capacity(bench: Bench) -> None:
    await bench.ready()
    await bench.servers[0].stop(None)
    await bench.api.until(lambda: bench.api.devices[FOO] == (6, 0))


async def test_the_end_of_an_old_stream_also_stops_a_newer_registration(bench: Bench) -> None:
    await bench.ready()
    await bench.ready()
    await bench.servers[0].stop(None)
    await bench.api.until(lambda: bench.api.devices[FOO] == (6, 0))


async def test_the_checkpoint_has_the_uid_the_ids_and_the_answer(bench: Bench) -> None:
    await bench.ready()
    uid = bench.pod("p", 2)
    await bench.until_phase(uid, "Running")
    document = json.loads((bench.kubelet.layout.plugins / FILE_NAME).read_text())
    (entry,) = document["Data"]["PodDeviceEntries"]
    assert (entry["PodUID"], entry["ContainerName"], entry["ResourceName"]) == (uid, "c0", FOO)
    assert len(entry["DeviceIDs"]["-1"]) == 2


async def test_a_start_removes_sockets_and_keeps_files(bench: Bench) -> None:
    plugin = Plugin()
    name = await bench.serve(plugin)
    other = bench.kubelet.layout.plugins / "notes.txt"
    other.touch()
    await bench.kubelet.restart()
    assert (not (bench.kubelet.layout.plugins / name).exists(), other.exists()) == (True, True)


def _lister(bench: Bench, channel: grpc.aio.Channel) -> Any:
    return res_rpc.PodResourcesListerStub(channel)


async def test_podresources_shows_the_pod_in_admission_empty_and_one_not_admitted_not_at_all(bench: Bench) -> None:
    plugin = await bench.ready()
    plugin.hold.clear()
    bench.pod("first", 1)
    bench.pod("second", 1)
    await bench.api.until(lambda: "allocate" in plugin.calls)
    async with grpc.aio.insecure_channel(f"unix:{bench.kubelet.layout.pod_resources}") as channel:
        lister = _lister(bench, channel)
        answer = await lister.Get(res.GetPodResourcesRequest(pod_name="first", pod_namespace="default"))
        assert [list(container.devices) for container in answer.pod_resources.containers] == [[]]
        with pytest.raises(grpc.aio.AioRpcError, match="not found"):
            await lister.Get(res.GetPodResourcesRequest(pod_name="second", pod_namespace="default"))
    plugin.hold.set()


async def test_podresources_is_rate_limited(bench: Bench) -> None:
    refused = 0
    async with grpc.aio.insecure_channel(f"unix:{bench.kubelet.layout.pod_resources}") as channel:
        lister = _lister(bench, channel)
        answers = await asyncio.gather(
            *(lister.List(res.ListPodResourcesRequest()) for _ in range(40)), return_exceptions=True
        )
    refused = sum(isinstance(answer, grpc.aio.AioRpcError) for answer in answers)
    assert 15 <= refused <= 30


async def test_a_list_during_an_allocate_can_lose_the_reservation_in_flight(bench: Bench) -> None:
    plugin = await bench.ready()
    gone = bench.pod("gone", 1)
    await bench.until_phase(gone, "Running")
    plugin.hold.clear()
    bench.pod("slow", 1)
    await bench.api.until(lambda: plugin.calls.count("allocate") == 2)
    in_flight = set(plugin.orders[1])
    bench.api.delete(gone, 0)
    await bench.api.until(lambda: gone not in bench.api.bodies)
    async with grpc.aio.insecure_channel(f"unix:{bench.kubelet.layout.pod_resources}") as channel:
        await _lister(bench, channel).List(res.ListPodResourcesRequest())
    assert not in_flight & bench.kubelet.manager.allocated.get(FOO, set())
    plugin.hold.set()


async def test_a_force_deleted_pods_devices_are_free_while_its_process_runs(bench: Bench) -> None:
    await bench.ready(healthy=["d2"])
    first = bench.pod("first", 1)
    await bench.until_phase(first, "Running")
    bench.api.force_delete(first)
    second = bench.pod("second", 1)
    await bench.until_phase(second, "Running")
    assert bench.kubelet.manager.assignments[second, "c0", FOO].ids == {"d2"}


async def test_a_resource_that_nobody_ever_registered_is_not_a_device(bench: Bench) -> None:
    uid = bench.pod("p", 1)
    await bench.until_phase(uid, "Running")
    assert not bench.kubelet.manager.assignments


async def test_a_container_whose_command_does_not_exist_waits_with_the_reason(short_path: Path) -> None:
    api = LocalApi()
    kubelet = StubKubelet("n1", short_path / "k", api, behaviour=Behaviour(pace=Pace(start_retry=0.05)))
    await kubelet.start()
    spec = {"nodeName": "n1", "containers": [{"name": "c", "command": ["no-such-program"]}]}
    uid = api.create({"metadata": {"name": "p"}, "spec": spec})
    await api.until(lambda: "executable file not found" in str(api.status(uid)))
    await kubelet.shut_down()


def test_a_pod_object_is_read_as_the_api_server_sends_it() -> None:
    body = {"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [{"name": "c", "image": "x"}]}, "status": {}}
    assert msgspec.json.decode(json.dumps(body), type=PodObject).grace_seconds == 30.0


@pytest.mark.parametrize("forced", [False, True], ids=["gracefully", "by force"])
async def test_a_pod_deleted_while_a_slow_plugin_answers_is_not_started(bench: Bench, *, forced: bool) -> None:
    plugin = await bench.ready()
    plugin.hold.clear()
    uid = bench.pod("gone", 1)
    await bench.api.until(lambda: bool(plugin.orders))
    if forced:
        bench.api.force_delete(uid)
    else:
        bench.api.delete(uid, 0)
        await bench.api.until(lambda: uid not in bench.api.bodies)
    later = bench.pod("later", 1)
    plugin.hold.set()
    await bench.api.until(lambda: later in bench.kubelet.workers)
    assert uid not in bench.kubelet.workers
