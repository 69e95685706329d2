# ruff: noqa: ARG002  one class needs nothing of what the protocol gives it
"""What the stub kubelet needs of an API server: follow its pods, report pods and node."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Protocol

from gpuslice.cluster.client import KubeClient, Scope
from gpuslice.cluster.errors import ApiError, Conflict, Unreachable
from gpuslice.cluster.reflector import Changed, Gone, Listed, Reflector
from gpuslice.cluster.resources import NODES, PODS
from simulator.kubelet.podview import PodObject

KUBELET_VERSION = "v1.34.4"
_ATTEMPTS = 5
Seen = Callable[[PodObject], None]


class NodeApi(Protocol):
    """The API server as this node sees it."""

    async def register_node(self, name: str) -> None:
        """Make sure the Node object exists."""

    async def report_node(self, name: str, devices: Mapping[str, tuple[int, int]]) -> None:
        """Write capacity and allocatable of the devices, and that the node is ready."""

    async def follow(self, node: str, see: Seen, lose: Seen) -> None:
        """Call `see` for each new or changed pod of the node and `lose` for each that is gone, until cancelled."""

    async def report_pod(self, pod: PodObject, status: Mapping[str, object]) -> None:
        """Write a pod's status; a pod that is gone is ignored."""

    async def confirm_deleted(self, pod: PodObject) -> None:
        """Remove the object of a pod whose containers have ended."""


class NoApi:
    """A node without an API server: pods are put in by `StubKubelet.see`. Keeps the last status of each pod."""

    def __init__(self) -> None:
        self.statuses: dict[str, Mapping[str, object]] = {}
        self.devices: dict[str, tuple[int, int]] = {}
        self.deleted: list[str] = []

    async def register_node(self, name: str) -> None:
        """Nothing to do."""

    async def report_node(self, name: str, devices: Mapping[str, tuple[int, int]]) -> None:
        """Remember the devices."""
        self.devices = dict(devices)

    async def follow(self, node: str, see: Seen, lose: Seen) -> None:
        """Wait for ever."""
        await asyncio.Event().wait()

    async def report_pod(self, pod: PodObject, status: Mapping[str, object]) -> None:
        """Remember the status."""
        self.statuses[pod.uid] = status

    async def confirm_deleted(self, pod: PodObject) -> None:
        """Remember the deletion."""
        self.deleted.append(pod.uid)


class ClusterApi:
    """The real wire."""

    def __init__(
        self, client: KubeClient, *, cpu: str = "64", memory: str = "512Gi", labels: Mapping[str, str] | None = None
    ) -> None:
        self._client = client
        self._basics = {"cpu": cpu, "memory": memory, "pods": "250", "ephemeral-storage": "1Ti"}
        self._labels = dict(labels or {})
        self._followed: dict[str, PodObject] = {}
        """Pods by UID, also while the kubelet is down: what goes meanwhile is found when it is back."""

    async def register_node(self, name: str) -> None:
        """Create the Node object if it is not there."""
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        body = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": labels | self._labels},
            "spec": {},
        }
        for _ in range(_ATTEMPTS):
            try:
                await self._client.create(NODES, body)
            except Conflict:
                return
            except Unreachable:
                await asyncio.sleep(0.2)
            else:
                return

    async def report_node(self, name: str, devices: Mapping[str, tuple[int, int]]) -> None:
        """Patch the node's status."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        status = {
            "capacity": self._basics | {resource: str(total) for resource, (total, _) in devices.items()},
            "allocatable": self._basics | {resource: str(free) for resource, (_, free) in devices.items()},
            "conditions": [
                {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastHeartbeatTime": now}
            ],
            "nodeInfo": {"kubeletVersion": KUBELET_VERSION, "operatingSystem": "linux", "architecture": "amd64"},
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        }
        try:
            await self._client.patch(NODES, name, {"status": status}, subresource="status")
        except (ApiError, Unreachable):
            return

    async def follow(self, node: str, see: Seen, lose: Seen) -> None:
        """Follow with a watch on spec.nodeName."""

        def handle(event: Listed[PodObject] | Changed[PodObject] | Gone[PodObject]) -> None:
            match event:
                case Listed(items, _):
                    listed = {pod.uid: pod for pod in items.values()}
                    for uid in self._followed.keys() - listed.keys():
                        lose(self._followed[uid])
                    self._followed = listed
                    for pod in items.values():
                        see(pod)
                case Changed(pod, before):
                    if before is not None and before.uid != pod.uid:
                        self._followed.pop(before.uid, None)
                        lose(before)
                    self._followed[pod.uid] = pod
                    see(pod)
                case Gone(pod):
                    self._followed.pop(pod.uid, None)
                    lose(pod)

        scope = Scope(PODS, field_selector=f"spec.nodeName={node}")
        await Reflector(self._client, scope, PodObject, handle=handle, project=lambda pod: pod).run()

    async def report_pod(self, pod: PodObject, status: Mapping[str, object]) -> None:
        """Patch the pod's status, for exactly this UID."""
        namespace, name = pod.key
        body = {"metadata": {"uid": pod.uid}, "status": dict(status)}

        async def write() -> None:
            await self._client.patch(PODS, name, body, namespace=namespace, subresource="status")

        await _until_written(write)

    async def confirm_deleted(self, pod: PodObject) -> None:
        """Delete with no grace, for exactly this UID."""
        namespace, name = pod.key

        async def write() -> None:
            await self._client.delete(PODS, name, namespace=namespace, uid=pod.uid, grace_seconds=0)

        await _until_written(write)


async def _until_written(write: Callable[[], Awaitable[object]]) -> None:
    """Try for as long as the API server is out of reach, as a kubelet does; what cannot succeed is left."""
    for attempt in itertools.count():
        try:
            await write()
        except (ApiError, Unreachable) as error:
            if isinstance(error, ApiError) and not error.is_transient:
                return
            await asyncio.sleep(min(0.1 * 2 ** min(attempt, 6), 5.0))
        else:
            return
