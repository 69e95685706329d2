# ruff: noqa: ARG002  the kubelet API fixes the signatures
"""The five calls of the kubelet, translated to a Backend and back."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence

import grpc
import structlog

from deviceplugin.backend import Backend, Edits
from deviceplugin.devicelist import Device
from deviceplugin.metrics import PluginMetrics
from gpuslice.devices.errors import GpusliceError
from gpuslice.proto.deviceplugin.v1beta1 import api_pb2 as pb
from gpuslice.proto.deviceplugin.v1beta1 import api_pb2_grpc as rpc

log = structlog.get_logger()

OPTIONS = pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)
# The kubelet shows about 3 kB of an error in the pod's status.
_MAX_TEXT = 3000
# The kubelet sets no deadline on these calls and admits no other pod meanwhile.
_PREFERENCE_DEADLINE_SECONDS = 3.0


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
        return response

    async def _prefer(self, container: pb.ContainerPreferredAllocationRequest) -> Sequence[str]:
        available, must = list(container.available_deviceIDs), list(container.must_include_deviceIDs)
        started = time.perf_counter()
        try:
            async with asyncio.timeout(_PREFERENCE_DEADLINE_SECONDS):
                return await self._backend.prefer(available, must, container.allocation_size)
        except (TimeoutError, GpusliceError) as error:
            log.warning("preference_failed", resource=self._backend.resource, error=str(error) or type(error).__name__)
            return must
        except Exception:
            log.exception("preference_crashed", resource=self._backend.resource)
            return must
        finally:
            self._metrics.seconds.labels(self._backend.resource, "prefer").observe(time.perf_counter() - started)

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
            response.container_responses.append(_answer(edits))
        self._metrics.seconds.labels(self._backend.resource, "allocate").observe(time.perf_counter() - started)
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
            self._metrics.seconds.labels(self._backend.resource, "prestart").observe(time.perf_counter() - started)
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
    return pb.ContainerAllocateResponse(
        envs=edits.env,
        mounts=[
            pb.Mount(container_path=m.container_path, host_path=m.host_path, read_only=m.read_only)
            for m in edits.mounts
        ],
        devices=[
            pb.DeviceSpec(container_path=d.container_path, host_path=d.host_path, permissions=d.permissions)
            for d in edits.devices
        ],
        annotations=edits.annotations,
        cdi_devices=[pb.CDIDevice(name=name) for name in edits.cdi_devices],
    )
