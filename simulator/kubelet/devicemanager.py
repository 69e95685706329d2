"""The kubelet's device manager: endpoints, allocation, checkpoint.

Follows kubernetes pkg/kubelet/cm/devicemanager (1.34) with topology policy `none`: reuse from init containers first,
then GetPreferredAllocation, then any free device; IDs travel in random order; a container that has its devices is never
allocated again; the list of devices in use is brought up to date lazily, at the next allocation or podresources List.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import grpc

from gpuslice.proto.deviceplugin.v1beta1 import api_pb2 as pb
from gpuslice.proto.deviceplugin.v1beta1 import api_pb2_grpc as rpc
from simulator.kubelet import checkpointfile
from simulator.kubelet.checkpointfile import Assignment
from simulator.kubelet.podview import ContainerSpec, PodObject

ENDPOINT_GRACE_SECONDS = 300.0
PRE_START_SECONDS = 30.0
_DIAL_SECONDS = 10.0
_PRE_START_FAILED = "device plugin PreStartContainer rpc failed with err: "
_CHANNEL_OPTIONS = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))
_Answer = TypeVar("_Answer")


class AdmissionFailed(Exception):
    """A device could not be allocated: the pod fails for good."""


class StartRefused(Exception):
    """PreStartContainer said no: the container waits and is tried again."""


class _CallFailed(Exception):
    """A call of the plugin failed; as text, the kubelet's words for it."""

    def __init__(self, code: str, details: str) -> None:
        super().__init__(f"rpc error: code = {code} desc = {details}")
        self.details = details


async def _answered(call: Awaitable[_Answer]) -> _Answer:
    """Wait for a call of the plugin.

    Raises:
        _CallFailed: The plugin refused, or the connection ended.
    """
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise _CallFailed(error.code().name, error.details() or "") from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # Not this task was cancelled but the call, by the end of its channel.
        raise _CallFailed("CANCELLED", "grpc: the client connection is closing") from None


@dataclass(slots=True)
class Endpoint:
    """A registered plugin. `stopped_at` is set when its stream has ended."""

    resource: str
    socket: str
    channel: grpc.aio.Channel | None = None
    options: pb.DevicePluginOptions = field(default_factory=pb.DevicePluginOptions)
    healthy: set[str] = field(default_factory=set)
    unhealthy: set[str] = field(default_factory=set)
    stopped_at: float | None = None
    stream: asyncio.Task[None] | None = None

    @property
    def stub(self) -> "rpc.DevicePluginAsyncStub":
        """The plugin's calls."""
        if self.channel is None or self.stopped_at is not None:
            raise AdmissionFailed(f"endpoint {self.resource} has been stopped")
        return rpc.DevicePluginStub(self.channel)


@dataclass(slots=True)
class Timing:
    """Durations of the plugin's calls, in seconds, as this side sees them."""

    prefer: list[float] = field(default_factory=list)
    allocate: list[float] = field(default_factory=list)
    pre_start: list[float] = field(default_factory=list)


class DeviceManager:
    """Devices of one node. `active` names the pods that count, by UID."""

    def __init__(
        self,
        directory: Path,
        active: Callable[[], Iterable[str]],
        *,
        seed: int = 0,
        honour_preferences: bool = True,
        clock: Callable[[], float] = time.monotonic,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._directory = directory
        self._active = active
        self._random = random.Random(seed)
        self.honour_preferences = honour_preferences
        self._clock = clock
        self._changed = changed
        self.endpoints: dict[str, Endpoint] = {}
        self.assignments: dict[tuple[str, str, str], Assignment] = {}
        self.allocated: dict[str, set[str]] = {}
        self.numa: dict[str, int] = {}
        self.timing = Timing()
        self.registrations = 0
        self.lists = 0
        self._reusable: dict[tuple[str, str], set[str]] = {}

    # -- checkpoint -----------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Start from the checkpoint: assignments, and an empty stopped endpoint for each resource."""
        try:
            found = checkpointfile.read(self._directory)
        except checkpointfile.CorruptCheckpoint:
            found = None
        if found is None:
            return
        self.assignments, resources = found
        for resource in resources:
            self.endpoints[resource] = Endpoint(resource, "", stopped_at=self._clock())
        self.recount()

    def save(self) -> None:
        """Write the checkpoint."""
        registered = {name: sorted(endpoint.healthy) for name, endpoint in self.endpoints.items()}
        checkpointfile.write(self._directory, self.assignments, registered, self.numa)

    # -- registration and lists -----------------------------------------------------------------------------------

    async def register(self, request: pb.RegisterRequest) -> None:
        """Dial back, ask for the options, follow the list. Runs inside the plugin's Register call."""
        socket = self._directory / request.endpoint
        channel = grpc.aio.insecure_channel(f"unix:{socket}", options=_CHANNEL_OPTIONS)
        try:
            async with asyncio.timeout(_DIAL_SECONDS):
                await channel.channel_ready()
            options = await rpc.DevicePluginStub(channel).GetDevicePluginOptions(pb.Empty())
        except BaseException:
            await channel.close()
            raise
        old = self.endpoints.get(request.resource_name)
        endpoint = Endpoint(request.resource_name, request.endpoint, channel, options)
        if old is not None:
            endpoint.healthy, endpoint.unhealthy = set(old.healthy), set(old.unhealthy)
        self.endpoints[request.resource_name] = endpoint
        self.registrations += 1
        endpoint.stream = asyncio.create_task(self._follow(endpoint))

    async def _follow(self, endpoint: Endpoint) -> None:
        assert endpoint.channel is not None
        try:
            async for answer in rpc.DevicePluginStub(endpoint.channel).ListAndWatch(pb.Empty()):
                self._take_list(endpoint.resource, answer)
        except grpc.aio.AioRpcError:
            pass
        finally:
            # Keyed by resource, as up to 1.35: an old stream's end also stops a newer registration and ends its stream.
            current = self.endpoints.get(endpoint.resource)
            if current is not None:
                current.stopped_at = self._clock()
                current.unhealthy |= current.healthy
                current.healthy = set()
            self._changed()
        await endpoint.channel.close()
        if current is not None and current.channel is not None and current is not endpoint:
            await current.channel.close()

    def _take_list(self, resource: str, answer: pb.ListAndWatchResponse) -> None:
        endpoint = self.endpoints[resource]
        endpoint.healthy = {device.ID for device in answer.devices if device.health == "Healthy"}
        endpoint.unhealthy = {device.ID for device in answer.devices if device.health != "Healthy"}
        for device in answer.devices:
            if device.topology.nodes:
                self.numa[device.ID] = device.topology.nodes[0].ID
        self.lists += 1
        self.save()
        self._changed()

    def capacity(self) -> dict[str, tuple[int, int]]:
        """Return (capacity, allocatable) by resource; a plugin gone for five minutes has none."""
        found = {}
        for name, endpoint in self.endpoints.items():
            gone = endpoint.stopped_at is not None and self._clock() - endpoint.stopped_at > ENDPOINT_GRACE_SECONDS
            total = 0 if gone else len(endpoint.healthy) + len(endpoint.unhealthy)
            found[name] = (total, 0 if gone else len(endpoint.healthy))
        return found

    # -- allocation -----------------------------------------------------------------------------------------------

    def recount(self) -> None:
        """Compute the devices in use from the assignments."""
        self.allocated = {}
        for (_, _, resource), assignment in self.assignments.items():
            self.allocated.setdefault(resource, set()).update(assignment.ids)

    def update_allocated(self) -> None:
        """Drop the pods that are not active any more; only then the reservations in flight are lost with them."""
        active = set(self._active())
        gone = [key for key in self.assignments if key[0] not in active]
        if not gone:
            return
        for key in gone:
            del self.assignments[key]
        self._reusable = {key: ids for key, ids in self._reusable.items() if key[0] in active}
        self.recount()

    def is_device(self, resource: str) -> bool:
        """Tell whether a plugin has ever registered this resource (as far as is remembered)."""
        return resource in self.endpoints

    async def allocate_pod(self, pod: PodObject, running: frozenset[str] = frozenset()) -> None:
        """Allocate for every container in admission order.

        Args:
            pod: The pod in admission.
            running: Containers that already run; after a restart of the kubelet they keep what they have.

        Raises:
            AdmissionFailed: with the kubelet's words.
        """
        init = {container.name for container in pod.spec.init_containers or () if not container.is_sidecar}
        for container in pod.spec.admission_order:
            if container.name in running:
                continue
            for resource, count in container.limits():
                if count and self.is_device(resource):
                    await self._allocate(pod, container, resource, count)
                    self._note_reuse(pod.uid, container, resource, is_init=container.name in init)

    def _note_reuse(self, uid: str, container: ContainerSpec, resource: str, *, is_init: bool) -> None:
        devices = self.assignments[uid, container.name, resource].ids
        reusable = self._reusable.setdefault((uid, resource), set())
        if is_init:
            reusable |= devices
        else:
            reusable -= devices

    async def _allocate(self, pod: PodObject, container: ContainerSpec, resource: str, count: int) -> None:
        key = (pod.uid, container.name, resource)
        endpoint = self.endpoints[resource]
        if key in self.assignments:
            self._check_sticky(endpoint, self.assignments[key], count, pod, container)
            return
        self.update_allocated()
        self._check_healthy(endpoint)
        ids = await self._choose(endpoint, pod.uid, count)
        self.allocated.setdefault(resource, set()).update(ids)
        started = time.perf_counter()
        wanted = pb.ContainerAllocateRequest(devices_ids=self._shuffled(ids))
        try:
            answer = await _answered(endpoint.stub.Allocate(pb.AllocateRequest(container_requests=[wanted])))
        except _CallFailed as error:
            self.recount()
            raise AdmissionFailed(str(error)) from error
        self.timing.allocate.append(time.perf_counter() - started)
        if not answer.container_responses:
            self.recount()
            raise AdmissionFailed(f"no containers return in allocation response {resource}")
        self.assignments[key] = Assignment(frozenset(ids), answer.container_responses[0].SerializeToString())
        self.save()

    @staticmethod
    def _check_healthy(endpoint: Endpoint) -> None:
        if not endpoint.healthy:
            raise AdmissionFailed(f"no healthy devices present; cannot allocate unhealthy devices {endpoint.resource}")

    def _check_sticky(
        self, endpoint: Endpoint, assignment: Assignment, count: int, pod: PodObject, container: ContainerSpec
    ) -> None:
        if len(assignment.ids) != count:
            raise AdmissionFailed(
                f"pod {pod.uid} container {container.name} changed request for resource {endpoint.resource} "
                f"from {len(assignment.ids)} to {count}"
            )
        self._check_healthy(endpoint)
        if not assignment.ids <= endpoint.healthy:
            raise AdmissionFailed(
                "previously allocated devices are no longer healthy; "
                f"cannot allocate unhealthy devices {endpoint.resource}"
            )

    async def _choose(self, endpoint: Endpoint, uid: str, count: int) -> set[str]:
        reusable = self._shuffled(self._reusable.get((uid, endpoint.resource), set()) & endpoint.healthy)
        chosen = set(reusable[:count])
        if len(chosen) == count:
            return chosen
        free = endpoint.healthy - self.allocated.get(endpoint.resource, set()) - chosen
        if len(free) < count - len(chosen):
            raise AdmissionFailed(
                f"requested number of devices unavailable for {endpoint.resource}. "
                f"Requested: {count - len(chosen)}, Available: {len(free)}"
            )
        if endpoint.options.get_preferred_allocation_available:
            preferred = await self._prefer(endpoint, free | chosen, chosen, count)
            if self.honour_preferences:
                chosen |= set(self._shuffled(preferred & free)[: count - len(chosen)])
        rest = self._shuffled(free - chosen)
        return chosen | set(rest[: count - len(chosen)])

    async def _prefer(self, endpoint: Endpoint, available: set[str], must: set[str], size: int) -> set[str]:
        request = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=self._shuffled(available),
            must_include_deviceIDs=self._shuffled(must),
            allocation_size=size,
        )
        started = time.perf_counter()
        try:
            answer = await _answered(
                endpoint.stub.GetPreferredAllocation(pb.PreferredAllocationRequest(container_requests=[request]))
            )
        except _CallFailed as error:
            raise AdmissionFailed(
                f"device plugin GetPreferredAllocation rpc failed with err: {error.details}"
            ) from error
        self.timing.prefer.append(time.perf_counter() - started)
        return set(answer.container_responses[0].deviceIDs) if answer.container_responses else set()

    def _shuffled(self, ids: Iterable[str]) -> list[str]:
        listed = sorted(ids)
        self._random.shuffle(listed)
        return listed

    # -- container start ------------------------------------------------------------------------------------------

    def responses(self, uid: str, container: str) -> list[pb.ContainerAllocateResponse]:
        """Return the plugins' answers for a container, from memory or checkpoint."""
        return [
            pb.ContainerAllocateResponse.FromString(assignment.response)
            for (owner, name, _), assignment in self.assignments.items()
            if (owner, name) == (uid, container)
        ]

    async def pre_start(self, uid: str, container: ContainerSpec) -> None:
        """Ask the plugins before a container starts.

        Raises:
            StartRefused: with the plugin's words.
        """
        for resource, count in container.limits():
            if not count or not self.is_device(resource):
                continue
            assignment = self.assignments.get((uid, container.name, resource))
            if assignment is None:
                raise StartRefused(
                    f"no devices found allocated in local cache for pod {uid}, container {container.name}, "
                    f"resource {resource}"
                )
            endpoint = self.endpoints[resource]
            if not endpoint.options.pre_start_required:
                continue
            await self._pre_start(endpoint, assignment)

    async def _pre_start(self, endpoint: Endpoint, assignment: Assignment) -> None:
        started = time.perf_counter()
        try:
            request = pb.PreStartContainerRequest(devices_ids=self._shuffled(assignment.ids))
            await _answered(endpoint.stub.PreStartContainer(request, timeout=PRE_START_SECONDS))
        except (_CallFailed, AdmissionFailed) as error:
            raise StartRefused(f"{_PRE_START_FAILED}{error}") from error
        self.timing.pre_start.append(time.perf_counter() - started)

    async def close(self) -> None:
        """Drop all connections, as the end of the kubelet's process does."""
        for endpoint in self.endpoints.values():
            if endpoint.stream is not None:
                endpoint.stream.cancel()
                await asyncio.gather(endpoint.stream, return_exceptions=True)
            if endpoint.channel is not None:
                await endpoint.channel.close()
