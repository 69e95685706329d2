# ruff: noqa: ARG002  the kubelet API fixes the signatures
"""The five calls of the kubelet, translated to a Backend and back."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence

import grpc
import structlog

from deviceplugin.backend import Backend, Edits, ForeseesAnswers
from deviceplugin.devicelist import Device
from deviceplugin.metrics import PluginMetrics
from gpuslice.devices.errors import GpusliceError
from gpuslice.proto.deviceplugin.v1beta1 import api_pb2 as pb
from gpuslice.proto.deviceplugin.v1beta1 import api_pb2_grpc as rpc

log = structlog.get_logger()

OPTIONS = pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)
# The kubelet shows about 3 kB of an error in the pod's status.
_MAX_TEXT = 3000


class Streams:
    """The open ListAndWatch streams of one server incarnation."""

    def __init__(self) -> None:
        self.open = 0
        self.opened = asyncio.Event()
        self.all_closed = asyncio.Event()
        self._ending = asyncio.Event()

    def enter(self) -> None:
        """Count a stream in."""
        self.open += 1
        self.all_closed.clear()
        self.opened.set()

    def leave(self) -> None:
        """Count a stream out."""
        self.open -= 1
        if not self.open:
            self.all_closed.set()

    def end(self) -> None:
        """Make every stream return, so that the kubelet sees a clean end before the server stops."""
        self._ending.set()

    async def ended(self) -> None:
        """Wait until `end` was called."""
        await self._ending.wait()


class DevicePluginServicer(rpc.DevicePluginServicer):
    """Serves one resource on one socket."""

    def __init__(self, backend: Backend, streams: Streams, metrics: PluginMetrics) -> None:
        self._backend = backend
        self._streams = streams
        self._metrics = metrics
        self._foresees = backend if isinstance(backend, ForeseesAnswers) else None
        self._ready: tuple[Edits, pb.ContainerAllocateResponse] | None = None
        """What the next Allocate is likely to be answered, made while nobody waits for it."""
        self._prefer_seconds, self._allocate_seconds, self._prestart_seconds = (
            metrics.seconds.labels(backend.resource, call) for call in ("prefer", "allocate", "prestart")
        )

    async def GetDevicePluginOptions(  # noqa: N802  the names are fixed by the kubelet API
        self, request: pb.Empty, context: "grpc.aio.ServicerContext[pb.Empty, pb.DevicePluginOptions]"
    ) -> pb.DevicePluginOptions:
        """Say which optional calls we want: both."""
        return OPTIONS

    async def ListAndWatch(  # noqa: N802
        self, request: pb.Empty, context: "grpc.aio.ServicerContext[pb.Empty, pb.ListAndWatchResponse]"
    ) -> AsyncIterator[pb.ListAndWatchResponse]:
        """Send the list now and at every change, until the kubelet goes or this server stops."""
        self._streams.enter()
        ending = asyncio.ensure_future(self._streams.ended())
        seen = 0
        try:
            while not ending.done():
                change = asyncio.ensure_future(self._backend.devices.wait_for_change(seen))
                try:
                    await asyncio.wait({change, ending}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if not change.done():
                        change.cancel()
                if change.done() and not change.cancelled():
                    seen, devices = change.result()
                    self._metrics.lists_sent.labels(self._backend.resource).inc()
                    yield pb.ListAndWatchResponse(devices=[_device(device) for device in devices])
        finally:
            ending.cancel()
            self._streams.leave()

    async def GetPreferredAllocation(  # noqa: N802
        self,
        request: pb.PreferredAllocationRequest,
        context: "grpc.aio.ServicerContext[pb.PreferredAllocationRequest, pb.PreferredAllocationResponse]",
    ) -> pb.PreferredAllocationResponse:
        """Name the scheduler's slices. An error here would fail the pod for good, so there is none."""
        response = pb.PreferredAllocationResponse()
        for container in request.container_requests:
            response.container_responses.add(deviceIDs=await self._prefer(container))
        edits = self._foresees.expected if self._foresees is not None else None
        self._ready = (edits, _answer(edits)) if edits is not None else None
        return response

    async def _prefer(self, container: pb.ContainerPreferredAllocationRequest) -> Sequence[str]:
        available, must = list(container.available_deviceIDs), list(container.must_include_deviceIDs)
        started = time.perf_counter()
        try:
            return await self._backend.prefer(available, must, container.allocation_size)
        except Exception:
            log.exception("preference_crashed", resource=self._backend.resource)
            return must
        finally:
            self._prefer_seconds.observe(time.perf_counter() - started)

    async def Allocate(  # noqa: N802
        self, request: pb.AllocateRequest, context: "grpc.aio.ServicerContext[pb.AllocateRequest, pb.AllocateResponse]"
    ) -> pb.AllocateResponse:
        """Hand over the devices; what can wait is decided in PreStartContainer."""
        response = pb.AllocateResponse()
        started = time.perf_counter()
        for container in request.container_requests:
            try:
                edits = self._backend.allocate(list(container.devices_ids))
            except GpusliceError as error:
                log.warning("allocate_refused", ids=sorted(container.devices_ids), error=str(error))
                self._metrics.refusals.labels(self._backend.resource, "allocate").inc()
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error)[:_MAX_TEXT])
            except Exception as error:
                log.exception("allocate_crashed", ids=sorted(container.devices_ids))
                await context.abort(
                    grpc.StatusCode.INTERNAL, _crash(self._backend.resource, container.devices_ids, error)
                )
            ready, self._ready = self._ready, None
            made = ready[1] if ready is not None and ready[0] is edits else _answer(edits)
            response.container_responses.append(made)
        # Counted when the answer is on its way.
        asyncio.get_running_loop().call_soon(self._allocate_seconds.observe, time.perf_counter() - started)
        return response

    async def PreStartContainer(  # noqa: N802
        self,
        request: pb.PreStartContainerRequest,
        context: "grpc.aio.ServicerContext[pb.PreStartContainerRequest, pb.PreStartContainerResponse]",
    ) -> pb.PreStartContainerResponse:
        """Check the container against the kubelet's own record, and deliver what it is to see."""
        started = time.perf_counter()
        try:
            await self._backend.pre_start(list(request.devices_ids))
        except (GpusliceError, OSError) as error:
            log.warning("start_refused", ids=sorted(request.devices_ids), error=str(error))
            self._metrics.refusals.labels(self._backend.resource, "prestart").inc()
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error)[:_MAX_TEXT])
        except Exception as error:
            log.exception("prestart_crashed", ids=sorted(request.devices_ids))
            await context.abort(grpc.StatusCode.INTERNAL, _crash(self._backend.resource, request.devices_ids, error))
        finally:
            self._prestart_seconds.observe(time.perf_counter() - started)
        return pb.PreStartContainerResponse()


def _crash(resource: str, ids: Iterable[str], error: Exception) -> str:
    listed = ", ".join(sorted(ids)[:3])
    return (
        f"{resource}: the device plugin failed on {listed}: {type(error).__name__}: {error}; see its log, "
        "and create the pod again"
    )[:_MAX_TEXT]


def _device(device: Device) -> pb.Device:
    message = pb.Device(ID=device.id, health="Healthy" if device.healthy else "Unhealthy")
    if device.numa is not None:
        message.topology.nodes.add(ID=device.numa)
    return message


def _answer(edits: Edits) -> pb.ContainerAllocateResponse:
    # Most answers are a variable and the name of a CDI device.
    answer = pb.ContainerAllocateResponse(envs=edits.env, annotations=edits.annotations)
    for mount in edits.mounts:
        answer.mounts.add(container_path=mount.container_path, host_path=mount.host_path, read_only=mount.read_only)
    for node in edits.devices:
        answer.devices.add(container_path=node.container_path, host_path=node.host_path, permissions=node.permissions)
    for name in edits.cdi_devices:
        answer.cdi_devices.add(name=name)
    return answer
