# ruff: noqa: ARG002  the kubelet API fixes the signatures
"""The kubelet's sockets: Registration in the plugin directory, PodResourcesLister beside it."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import grpc

from gpuslice.proto.deviceplugin.v1beta1 import api_pb2 as pb
from gpuslice.proto.deviceplugin.v1beta1 import api_pb2_grpc as rpc
from gpuslice.proto.podresources.v1 import api_pb2 as res
from gpuslice.proto.podresources.v1 import api_pb2_grpc as res_rpc
from simulator.kubelet.devicemanager import DeviceManager
from simulator.kubelet.podview import PodObject

KUBELET_SOCKET = "kubelet.sock"
_CALLS_PER_SECOND = 100.0
_BURST = 10.0


class Registration(rpc.RegistrationServicer):
    """Takes plugins in."""

    def __init__(self, manager: DeviceManager) -> None:
        self._manager = manager

    async def Register(  # noqa: N802
        self, request: pb.RegisterRequest, context: "grpc.aio.ServicerContext[pb.RegisterRequest, pb.Empty]"
    ) -> pb.Empty:
        """Check the request and dial back before answering."""
        if request.version != "v1beta1":
            await context.abort(grpc.StatusCode.UNKNOWN, f"requested API version {request.version!r} is not supported")
        domain, separator, name = request.resource_name.partition("/")
        if not (domain and separator and name) or domain.endswith("kubernetes.io") or domain.startswith("requests."):
            await context.abort(grpc.StatusCode.UNKNOWN, f"the ResourceName {request.resource_name!r} is invalid")
        try:
            await self._manager.register(request)
        except (TimeoutError, grpc.aio.AioRpcError) as error:
            await context.abort(grpc.StatusCode.UNKNOWN, f"failed to dial device plugin: {error!r}")
        return pb.Empty()


@dataclass(slots=True)
class _Bucket:
    """The rate limit of the pod resources socket."""

    clock: Callable[[], float]
    tokens: float = _BURST
    at: float = 0.0

    def take(self) -> bool:
        now = self.clock()
        self.tokens = min(_BURST, self.tokens + (now - self.at) * _CALLS_PER_SECOND)
        self.at = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


class PodResources(res_rpc.PodResourcesListerServicer):
    """Says which containers hold which devices. `pods` are the admitted ones and the one in admission."""

    def __init__(
        self,
        manager: DeviceManager,
        pods: Callable[[], Iterable[PodObject]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._manager = manager
        self._pods = pods
        self._bucket = _Bucket(clock, at=clock())

    async def _limit(self, context: "grpc.aio.ServicerContext[object, object]") -> None:
        if not self._bucket.take():
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")

    async def List(  # noqa: N802
        self,
        request: res.ListPodResourcesRequest,
        context: "grpc.aio.ServicerContext[res.ListPodResourcesRequest, res.ListPodResourcesResponse]",
    ) -> res.ListPodResourcesResponse:
        """List all pods. Brings the devices in use up to date, which is what makes it dangerous during an Allocate."""
        await self._limit(context)  # type: ignore[arg-type]  # only abort is used
        self._manager.update_allocated()
        return res.ListPodResourcesResponse(pod_resources=[self._describe(pod) for pod in self._pods()])

    async def Get(  # noqa: N802
        self,
        request: res.GetPodResourcesRequest,
        context: "grpc.aio.ServicerContext[res.GetPodResourcesRequest, res.GetPodResourcesResponse]",
    ) -> res.GetPodResourcesResponse:
        """Describe one pod."""
        await self._limit(context)  # type: ignore[arg-type]
        for pod in self._pods():
            if pod.key == (request.pod_namespace, request.pod_name):
                return res.GetPodResourcesResponse(pod_resources=self._describe(pod))
        await context.abort(
            grpc.StatusCode.UNKNOWN, f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        )
        raise AssertionError("abort raises")

    async def GetAllocatableResources(  # noqa: N802
        self,
        request: res.AllocatableResourcesRequest,
        context: "grpc.aio.ServicerContext[res.AllocatableResourcesRequest, res.AllocatableResourcesResponse]",
    ) -> res.AllocatableResourcesResponse:
        """List all healthy devices."""
        await self._limit(context)  # type: ignore[arg-type]
        return res.AllocatableResourcesResponse(
            devices=[
                res.ContainerDevices(resource_name=name, device_ids=sorted(endpoint.healthy))
                for name, endpoint in self._manager.endpoints.items()
            ]
        )

    def _describe(self, pod: PodObject) -> res.PodResources:
        answer = res.PodResources(name=pod.metadata.name, namespace=pod.metadata.namespace)
        sidecars = [container for container in pod.spec.init_containers or () if container.is_sidecar]
        for container in (*sidecars, *pod.spec.containers):
            described = answer.containers.add(name=container.name)
            for (uid, name, resource), assignment in self._manager.assignments.items():
                if (uid, name) == (pod.uid, container.name):
                    described.devices.add(resource_name=resource, device_ids=sorted(assignment.ids))
        return answer


def clean_directory(directory: Path) -> None:
    """Remove every socket, as a starting kubelet does; regular files and directories stay."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in directory.iterdir():
        if path.is_socket():
            path.unlink()


async def serve(socket: Path, add: Callable[[grpc.aio.Server], None]) -> grpc.aio.Server:
    """Start a server on a Unix socket."""
    _make_room(socket)
    server = grpc.aio.server()
    add(server)
    server.add_insecure_port(f"unix:{socket}")
    try:
        await server.start()
    except BaseException:
        await server.stop(None)
        raise
    return server


def _make_room(socket: Path) -> None:
    socket.parent.mkdir(parents=True, exist_ok=True)
    socket.unlink(missing_ok=True)
