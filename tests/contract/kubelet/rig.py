"""What a row does on a node, the same on the stub and on the real kubelet: everything goes over files and sockets."""

import asyncio
import contextlib
import inspect
import itertools
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc

from deviceplugin import checkpoint
from gpuslice.cluster.client import KubeClient
from gpuslice.cluster.config import load_cluster_config
from gpuslice.cluster.errors import ApiError
from gpuslice.cluster.resources import EVENTS, NODES, PODS
from gpuslice.cluster.transport import Transport
from gpuslice.proto.podresources.v1 import api_pb2 as res
from gpuslice.proto.podresources.v1 import api_pb2_grpc as res_rpc
from tests.cluster.harness import pods
from tests.contract.kubelet.machines import Json, Machine, Places

NAMESPACE = "default"
WITHIN_SECONDS = 30.0
_POLL_SECONDS = 0.05
_CHANNEL = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))


class Rig:
    """One node under contract.

    Attributes:
        machine: The node and its kubelet.
        places: Its files and sockets.
    """

    def __init__(self, machine: Machine, client: KubeClient) -> None:
        self.machine = machine
        self.places: Places = machine.places
        self.client = client

    async def until(self, condition: Callable[[], Any], what: str, seconds: float = WITHIN_SECONDS) -> Any:
        """Wait until something is true and return it. The condition may be a coroutine function.

        Raises:
            TimeoutError: It was not within `seconds`; the message has all pods' states.
        """
        deadline = asyncio.get_running_loop().time() + seconds
        while not (found := await _value_of(condition())):
            if asyncio.get_running_loop().time() > deadline:
                raise TimeoutError(f"{what}: not within {seconds} s\n{await self._explain()}")
            await asyncio.sleep(_POLL_SECONDS)
        return found

    async def _explain(self) -> str:
        lines = [f"{pod['metadata']['name']}: {json.dumps(pod['status'])[:1500]}" for pod in await self._all_pods()]
        return "\n".join([*lines, *await self.events()])

    # -- pods --------------------------------------------------------------------------------------------------------

    async def create(self, body: Json) -> Json:
        """Create a pod that is bound to this node."""
        bound = {**body, "spec": {**body["spec"], "nodeName": self.machine.node}}
        made: Json = json.loads(await self.client.create(PODS, bound, namespace=NAMESPACE))
        return made

    async def read(self, pod: Json) -> Json:
        """Return a pod as it is now; an empty object once it is gone or another one has its name."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        try:
            found: Json = json.loads(await self.client.transport.request("GET", PODS.path(NAMESPACE, name)))
        except ApiError as error:
            if error.status == 404:
                return {}
            raise
        return found if found["metadata"]["uid"] == uid else {}

    async def _all_pods(self) -> list[Json]:
        found: list[Json] = json.loads(await self.client.transport.request("GET", PODS.path(NAMESPACE)))["items"]
        return found

    async def until_pod(
        self, pod: Json, condition: Callable[[Json], Any], what: str, seconds: float = WITHIN_SECONDS
    ) -> Json:
        """Wait for a condition of a pod and return the pod as it is then."""

        async def found() -> Json | None:
            now = await self.read(pod)
            return now if now and condition(now) else None

        now: Json = await self.until(found, f"pod {pod['metadata']['name']} {what}", seconds)
        return now

    async def running(self, *made: Json, seconds: float = WITHIN_SECONDS) -> list[Json]:
        """Wait until all containers of these pods run, and return the pods as they are then."""
        return [await self.until_pod(pod, is_running, "runs", seconds) for pod in made]

    async def failed(self, pod: Json) -> str:
        """Wait until the kubelet has refused a pod for good and return its words."""
        now = await self.until_pod(pod, lambda found: found["status"].get("phase") == "Failed", "is refused")
        assert now["status"]["reason"] == "UnexpectedAdmissionError", now["status"]
        return str(now["status"]["message"])

    async def delete(self, pod: Json, grace_seconds: int = 1) -> None:
        """Delete a pod and wait until its object is gone."""
        await self.start_deletion(pod, grace_seconds)

        async def gone() -> bool:
            return not await self.read(pod)

        await self.until(gone, f"pod {pod['metadata']['name']} gone")

    async def start_deletion(self, pod: Json, grace_seconds: int = 1) -> None:
        """Ask for a deletion; 0 seconds removes the object at once, whatever still runs."""
        with contextlib.suppress(ApiError):
            await self.client.delete(PODS, pod["metadata"]["name"], namespace=NAMESPACE, grace_seconds=grace_seconds)

    async def waits(self, pod: Json, reason: str, words: str) -> None:
        """Wait until a container of a pod is held back for a reason, in some words."""
        await self._look_again(pod, lambda now: reason in waiting_for(now) and words in waiting_for(now), words)

    async def starts_after_all(self, pod: Json) -> Json:
        """Wait until a pod runs that was held back."""
        return await self._look_again(pod, is_running, "runs after all")

    async def _look_again(self, pod: Json, condition: Callable[[Json], Any], what: str) -> Json:
        """Wait for a condition, and have the kubelet look at the pod every second.

        It looks at a pod that it cannot start every ten seconds, and at once when the pod has changed.
        """
        seconds = itertools.count()
        began = asyncio.get_running_loop().time()
        at = next(seconds)

        async def found() -> Json | None:
            nonlocal at
            if asyncio.get_running_loop().time() - began >= at:
                at = next(seconds)
                notes = {"metadata": {"annotations": {"example.com/touched": str(at)}}}
                await self.client.patch(PODS, pod["metadata"]["name"], notes, namespace=NAMESPACE)
            now = await self.read(pod)
            return now if now and condition(now) else None

        now: Json = await self.until(found, f"pod {pod['metadata']['name']} {what}")
        return now

    async def clear(self) -> None:
        """Delete all pods and end their processes; the kubelet would take a second or two for that."""
        left = await self._all_pods()
        for pod in left:
            await self.start_deletion(pod, 0)

        def ended() -> bool:
            pids = [pid for pod in left for pid in self._processes(pod)]
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not pids

        await self.until(ended, "all processes of pods ended")

    # -- containers --------------------------------------------------------------------------------------------------

    def _processes(self, pod: Json) -> list[int]:
        containers = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
        return [pid for container in containers for pid in self.machine.processes(pod, container["name"])]

    def first_process(self, pod: Json, container: str = "main") -> int:
        """Return the host's id of a running container's first process."""
        return self.machine.processes(pod, container)[0]

    def environment(self, pod: Json, container: str = "main") -> dict[str, str]:
        """Return the environment inside a running container, as the kernel knows it."""
        path = Path(f"/proc/{self.first_process(pod, container)}/environ")
        deadline = time.monotonic() + WITHIN_SECONDS
        # Empty while one program gives way to the next: the stub's containers begin as setpriv.
        while not (content := path.read_bytes()) and time.monotonic() < deadline:
            time.sleep(0.001)
        return dict(item.decode().split("=", 1) for item in content.split(b"\0") if b"=" in item)

    async def crash(self, pod: Json, container: str = "main", seconds: float = WITHIN_SECONDS) -> Json:
        """Kill a running container and wait until its successor runs."""
        before = restarts(pod, container)
        os.kill(self.first_process(pod, container), signal.SIGKILL)
        return await self.until_pod(
            pod, lambda now: is_running(now) and restarts(now, container) > before, "runs again", seconds
        )

    # -- the node ----------------------------------------------------------------------------------------------------

    async def devices(self, resource: str) -> tuple[int, int]:
        """Return (capacity, allocatable) of a resource in the Node object."""
        node = json.loads(await self.client.transport.request("GET", NODES.path(None, self.machine.node)))
        status = node["status"]
        total, free = (int(status.get(kind, {}).get(resource, -1)) for kind in ("capacity", "allocatable"))
        return total, free

    async def until_devices(self, resource: str, total: int, free: int) -> None:
        """Wait until the Node object says so."""

        async def same() -> bool:
            return await self.devices(resource) == (total, free)

        await self.until(same, f"{resource}: capacity {total}, allocatable {free}")

    async def restart_kubelet(self) -> None:
        """End the kubelet and start it again; returns when it takes registrations."""
        await self.machine.stop_kubelet()
        await self.start_kubelet()

    async def start_kubelet(self) -> None:
        """Start the kubelet; returns when it takes registrations."""
        await self._until_serving(self.machine.start_kubelet)

    async def reboot(self) -> None:
        """Cut the node's power; returns when its kubelet takes registrations again."""
        await self._until_serving(self.machine.reboot)

    async def _until_serving(self, start: Callable[[], Awaitable[None]]) -> None:
        before = _inode(self.places.registration)
        await start()

        await self.until(lambda: _inode(self.places.registration) not in (before, None), "the kubelet listens")

    async def events(self) -> list[str]:
        """Return the messages of the Events on pods that are there, `REASON POD: MESSAGE`."""
        there = {pod["metadata"]["uid"] for pod in await self._all_pods()}
        items = json.loads(await self.client.transport.request("GET", EVENTS.path(NAMESPACE)))["items"]
        return [
            f"{item['reason']} {item['involvedObject']['name']}: {item['message']}"
            for item in items
            if item["involvedObject"].get("uid") in there
        ]

    # -- the kubelet's books -----------------------------------------------------------------------------------------

    def recorded(self, resource: str) -> dict[tuple[str, str], frozenset[str]]:
        """Return (pod UID, container) -> IDs from the checkpoint, read as the node daemon reads it."""
        try:
            entries = checkpoint.parse(self.places.checkpoint.read_bytes())
        except FileNotFoundError:
            return {}
        return {(entry.uid, entry.container): entry.ids for entry in entries or () if entry.resource == resource}

    def remembers(self, resource: str) -> bool:
        """Whether the checkpoint says that a plugin has registered this resource and had devices."""
        try:
            return bool(json.loads(self.places.checkpoint.read_bytes())["Data"]["RegisteredDevices"].get(resource))
        except (FileNotFoundError, ValueError):
            return False

    @contextlib.asynccontextmanager
    async def lister(self) -> AsyncIterator["res_rpc.PodResourcesListerAsyncStub"]:
        """Connect to the pod resources socket."""
        async with grpc.aio.insecure_channel(f"unix:{self.places.pod_resources}", options=_CHANNEL) as channel:
            yield res_rpc.PodResourcesListerStub(channel)

    async def offered(self, resource: str) -> frozenset[str]:
        """Return the healthy devices as the kubelet has them now; the Node object says so only later."""
        try:
            async with self.lister() as lister:
                answer = await lister.GetAllocatableResources(res.AllocatableResourcesRequest())
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                return frozenset()
            raise
        return frozenset(i for d in answer.devices if d.resource_name == resource for i in d.device_ids)

    async def until_offered(self, resource: str, count: int) -> None:
        """Wait until the kubelet has so many healthy devices."""

        async def same() -> bool:
            return len(await self.offered(resource)) == count

        await self.until(same, f"{count} healthy devices of {resource}")

    async def listed(self, resource: str) -> dict[tuple[str, str], frozenset[str]]:
        """Return (pod, container) -> IDs from podresources List; containers without devices have none."""
        async with self.lister() as lister:
            answer = await lister.List(res.ListPodResourcesRequest())
        return {
            (pod.name, container.name): _ids(container, resource)
            for pod in answer.pod_resources
            for container in pod.containers
        }


async def _value_of(found: Any) -> Any:
    return await found if inspect.isawaitable(found) else found


def _ids(container: res.ContainerResources, resource: str) -> frozenset[str]:
    return frozenset(i for d in container.devices if d.resource_name == resource for i in d.device_ids)


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_ctime_ns


def statuses(pod: Json) -> list[Json]:
    """Return the status of every container, init containers first."""
    return [*pod["status"].get("initContainerStatuses", []), *pod["status"].get("containerStatuses", [])]


def is_running(pod: Json) -> bool:
    """Whether all app containers of a pod run now."""
    found = pod["status"].get("containerStatuses", [])
    return len(found) == len(pod["spec"]["containers"]) and all("running" in status["state"] for status in found)


def restarts(pod: Json, container: str) -> int:
    """Return how often a container was restarted."""
    return next((int(s["restartCount"]) for s in statuses(pod) if s["name"] == container), 0)


def waiting_for(pod: Json) -> str:
    """Return why containers of a pod wait, in the kubelet's words."""
    states = [status["state"].get("waiting", {}) for status in statuses(pod)]
    return " ".join(f"{state.get('reason', '')} {state.get('message', '')}" for state in states if state)


@contextlib.asynccontextmanager
async def rig_on(machine: Machine) -> AsyncIterator[Rig]:
    """Connect to a node; its pods are gone at the end."""
    async with Transport(load_cluster_config(machine.kubeconfig)) as transport:
        rig = Rig(machine, KubeClient(transport))
        try:
            yield rig
        finally:
            await rig.clear()


def pod(
    name: str,
    *containers: Json,
    init: Sequence[Json] = (),
    annotations: Mapping[str, str] | None = None,
    restart_policy: str = "Never",
) -> Json:
    """Return a pod of these containers."""
    return pods.pod(name, *containers, init=init, annotations=annotations, restartPolicy=restart_policy)


def container(name: str, resource: str = "", count: int = 0, script: str = pods.SLEEP) -> Json:
    """Return a container that asks for devices."""
    return pods.container(name, script, resources={resource: count} if count else {})
