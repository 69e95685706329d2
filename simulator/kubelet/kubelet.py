"""The stub kubelet: admission one by one in the order of arrival, pod workers, sockets, node status."""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import structlog

from gpuslice.proto.deviceplugin.v1beta1 import api_pb2_grpc as rpc
from gpuslice.proto.podresources.v1 import api_pb2_grpc as res_rpc
from simulator.kubelet import servers
from simulator.kubelet.api import NodeApi
from simulator.kubelet.devicemanager import AdmissionFailed, DeviceManager
from simulator.kubelet.podview import PodObject
from simulator.kubelet.podworker import Pace, PodWorker
from simulator.kubelet.pretend import PretendRuntime
from simulator.kubelet.runtime import Driver, ExecResult, RunningContainer, Runtime

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Layout:
    """Directories and sockets of one node, all below `root`."""

    root: Path

    @property
    def plugins(self) -> Path:
        """The device plugin directory."""
        return self.root / "device-plugins"

    @property
    def pod_resources(self) -> Path:
        """The pod resources socket."""
        return self.root / "pod-resources" / "kubelet.sock"

    @property
    def cdi(self) -> Path:
        """Where CDI specifications are read."""
        return self.root / "cdi"

    @property
    def cgroups(self) -> Path:
        """The cgroup tree of the pods."""
        return self.root / "cgroup"


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How this kubelet differs from the usual one."""

    seed: int = 0
    honour_preferences: bool = True
    shuffle_batches: bool = True
    """After a down time, pods that arrived meanwhile are admitted in any order."""
    pace: Pace = field(default_factory=Pace)
    pretend: bool = False
    """Do everything but start the containers' processes."""
    pod_resources: bool = True
    """Off: a kubelet whose pod resources socket is not there."""


class DoesNotFit(Exception):
    """The pods of the node ask for more than it has."""

    def __init__(self, resource: str, wanted: int, used: int, free: int) -> None:
        super().__init__(
            f"Node didn't have enough resource: {resource}, requested: {wanted}, used: {used}, capacity: {free}"
        )
        self.reason = f"OutOf{resource}"


class StubKubelet:
    """One node. `start` and `stop` are the process's life; containers outlive both, as they do in reality."""

    def __init__(
        self, node_name: str, root: Path, api: NodeApi, driver: Driver | None = None, behaviour: Behaviour | None = None
    ) -> None:
        self.node_name = node_name
        self.layout = Layout(root)
        self.behaviour = behaviour or Behaviour()
        root.mkdir(parents=True, exist_ok=True)
        kind = PretendRuntime if self.behaviour.pretend else Runtime
        self.runtime = kind(root, self.layout.cdi, driver or Driver())
        self.workers: dict[str, PodWorker] = {}
        """Admitted pods that are not gone, by UID."""
        self.failed: dict[str, str] = {}
        """UID to message of pods whose admission failed."""
        self._api = api
        self._random = random.Random(self.behaviour.seed)
        self._arrivals: deque[PodObject] = deque()
        self._admitting: PodObject | None = None
        self._known: set[str] = set()
        self._servers: list[grpc.aio.Server] = []
        self._loops: list[asyncio.Task[None]] = []
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._endings: set[asyncio.Task[None]] = set()
        self._ending: set[str] = set()
        self._restarts: dict[str, Mapping[str, int]] = {}
        """By UID, how often containers were started before the node lost its power."""
        self._arrived = asyncio.Event()
        self._devices_changed = asyncio.Event()
        self.manager = self._new_manager()

    # -- life of the kubelet --------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the process: clean the plugin directory, serve, admit."""
        servers.clean_directory(self.layout.plugins)
        self.layout.cdi.mkdir(parents=True, exist_ok=True)
        self.manager = self._new_manager()
        self.manager.load()
        self._servers = [await servers.serve(self.layout.plugins / servers.KUBELET_SOCKET, self._add_registration)]
        if self.behaviour.pod_resources:
            self._servers.append(await servers.serve(self.layout.pod_resources, self._add_pod_resources))
        await self._api.register_node(self.node_name)
        self._readmit()
        self._loops = [
            asyncio.create_task(self._admit_forever()),
            asyncio.create_task(self._report_node_forever()),
            asyncio.create_task(self._api.follow(self.node_name, self.see, self.lose)),
        ]

    async def stop(self) -> None:
        """End the process; sockets stay behind as dead files, containers run on."""
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        for server in self._servers:
            await server.stop(None)
        await self.manager.close()

    async def restart(self, down_seconds: float = 0.0) -> None:
        """Stop and start again."""
        await self.stop()
        await asyncio.sleep(down_seconds)
        await self.start()

    async def shut_down(self) -> None:
        """Stop the node: kubelet, pod workers, all containers."""
        await self.stop()
        for task in (*self._tasks.values(), *self._endings):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), *self._endings, return_exceptions=True)
        await self.runtime.kill_all()

    async def reboot(self) -> None:
        """Lose power: every process is gone and tmpfs (CDI) is empty; pods are admitted anew when it is back."""
        await self.shut_down()
        for path in self.layout.cdi.glob("*"):
            path.unlink()
        self._endings.clear()
        self._tasks.clear()
        self._ending.clear()
        pods = [*(worker.pod for worker in self.workers.values()), *self._arrivals]
        self._arrivals.clear()
        self._restarts = {uid: worker.starts() for uid, worker in self.workers.items()}
        for worker in self.workers.values():
            self.runtime.forget_pod(worker.uid)
        self.workers.clear()
        self._known = set(self.failed)
        await self.start()
        for pod in pods:
            self.see(pod)

    def _new_manager(self) -> DeviceManager:
        return DeviceManager(
            self.layout.plugins,
            self._active_uids,
            seed=self.behaviour.seed,
            honour_preferences=self.behaviour.honour_preferences,
            changed=self._devices_changed.set,
        )

    def _add_registration(self, server: grpc.aio.Server) -> None:
        rpc.add_RegistrationServicer_to_server(servers.Registration(self.manager), server)

    def _add_pod_resources(self, server: grpc.aio.Server) -> None:
        res_rpc.add_PodResourcesListerServicer_to_server(servers.PodResources(self.manager, self._listed), server)

    # -- what others see ------------------------------------------------------------------------------------------

    def _active_uids(self) -> Iterator[str]:
        """Pods whose devices count: in admission, or admitted and not yet at their end."""
        if self._admitting is not None:
            yield self._admitting.uid
        for uid, worker in self.workers.items():
            if not worker.terminal_phase:
                yield uid

    def _listed(self) -> Iterator[PodObject]:
        for worker in self.workers.values():
            if not worker.terminal_phase:
                yield worker.pod
        if self._admitting is not None and self._admitting.uid not in self.workers:
            yield self._admitting

    # -- pods from the API server ---------------------------------------------------------------------------------

    def see(self, pod: PodObject) -> None:
        """Take in a pod that is bound to this node, new or changed."""
        if pod.metadata.deletion_timestamp is not None:
            self._end(pod, pod.grace_seconds, force=False)
            return
        if pod.uid in self._known or pod.status.phase in ("Succeeded", "Failed"):
            return
        self._known.add(pod.uid)
        self._arrivals.append(pod)
        self._arrived.set()

    def lose(self, pod: PodObject) -> None:
        """Take note that a pod object is gone: after a graceful end that is the last step, else it was forced."""
        if pod.uid in self.workers and pod.uid not in self._ending:
            self._end(pod, self.behaviour.pace.force_delete_overlap, force=True)
        self._known.discard(pod.uid)
        self.failed.pop(pod.uid, None)

    def _end(self, pod: PodObject, grace_seconds: float, *, force: bool) -> None:
        if pod.uid in self._ending:
            return
        self._ending.add(pod.uid)
        task = asyncio.create_task(self._end_pod(pod, grace_seconds, force=force))
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def _end_pod(self, pod: PodObject, grace_seconds: float, *, force: bool) -> None:
        worker = self.workers.get(pod.uid)
        if worker is not None and force:
            # The kubelet forgets the pod at once: its devices are free while its processes still run.
            del self.workers[pod.uid]
        if worker is not None:
            await self._halt(worker, grace_seconds)
            self.workers.pop(pod.uid, None)
            self.runtime.forget_pod(pod.uid)
        self._arrivals = deque(waiting for waiting in self._arrivals if waiting.uid != pod.uid)
        if not force:
            await self._api.confirm_deleted(pod)
        self._ending.discard(pod.uid)
        self._known.discard(pod.uid)

    async def _halt(self, worker: PodWorker, grace_seconds: float) -> None:
        """Stop a pod's containers and its worker."""
        await worker.stop(grace_seconds)
        if (task := self._tasks.pop(worker.uid, None)) is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        # One that was being created while the others were stopped.
        await worker.stop(0.0)

    # -- admission ------------------------------------------------------------------------------------------------

    def _readmit(self) -> None:
        """Queue the pods that run on: a restarted kubelet admits all its pods again, running ones without Allocate."""
        again = [worker.pod for worker in self.workers.values() if not worker.terminal_phase]
        waiting = list(self._arrivals)
        if self.behaviour.shuffle_batches:
            self._random.shuffle(again)
            self._random.shuffle(waiting)
        self._arrivals = deque([*again, *(pod for pod in waiting if pod.uid not in self.workers)])
        self._arrived.set()

    async def _admit_forever(self) -> None:
        await asyncio.sleep(self.behaviour.pace.first_admission)
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._arrivals:
                pod = self._arrivals.popleft()
                try:
                    await self._admit(pod)
                except asyncio.CancelledError:
                    # The kubelet ends in the middle of it: the next one admits the pod.
                    self._arrivals.appendleft(pod)
                    raise

    def _is_wanted(self, pod: PodObject) -> bool:
        return pod.uid in self._known and pod.uid not in self._ending and pod.uid not in self.failed

    async def _admit(self, pod: PodObject) -> None:
        worker = self.workers.get(pod.uid)
        if not self._is_wanted(pod):
            return
        self._admitting = pod
        try:
            running = worker.running() if worker is not None else frozenset()
            if worker is None or not running:
                await self.manager.allocate_pod(pod, running)
            if worker is None:
                self._check_requests(pod)
        except AdmissionFailed as error:
            message = f"Pod was rejected: Allocate failed due to {error}, which is unexpected"
            await self._reject(pod, "UnexpectedAdmissionError", message)
            return
        except DoesNotFit as error:
            await self._reject(pod, error.reason, f"Pod was rejected: {error}")
            return
        finally:
            self._admitting = None
        # A slow plugin may answer for a pod that was deleted meanwhile.
        if worker is None and self._is_wanted(pod):
            worker = PodWorker(pod, lambda: self.manager, self.runtime, self._report_pod, self.behaviour.pace)
            worker.continue_counting(self._restarts.pop(pod.uid, {}))
            self.workers[pod.uid] = worker
            self._tasks[pod.uid] = asyncio.create_task(worker.run())

    def _check_requests(self, pod: PodObject) -> None:
        """Compare the requests of all pods with the devices there are, as the kubelet does after the device manager.

        Raises:
            DoesNotFit: The node has fewer.
        """
        others = [worker.pod for worker in self.workers.values() if not worker.terminal_phase]
        for resource, (_, free) in self.manager.capacity().items():
            wanted = pod.requests(resource)
            used = sum(other.requests(resource) for other in others)
            # What is allocated is there, also where it is not healthy any more.
            most = max(free, len(self.manager.allocated.get(resource, ())))
            if wanted and used + wanted > most:
                raise DoesNotFit(resource, wanted, used, most)

    async def _reject(self, pod: PodObject, reason: str, message: str) -> None:
        log.warning("admission_failed", pod="/".join(pod.key), message=message)
        if (worker := self.workers.get(pod.uid)) is not None:
            await self._halt(worker, 0.0)
            self.workers.pop(pod.uid, None)
        status = {"phase": "Failed", "reason": reason, "message": message}
        await self._report_pod(pod, status)
        self.failed[pod.uid] = message

    # -- reports --------------------------------------------------------------------------------------------------

    async def _report_pod(self, pod: PodObject, status: Mapping[str, object]) -> None:
        await self._api.report_pod(pod, status)

    async def _report_node_forever(self) -> None:
        while True:
            await self._api.report_node(self.node_name, self.manager.capacity())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.behaviour.pace.node_status):
                    await self._devices_changed.wait()
            self._devices_changed.clear()

    # -- for tests and the demo -----------------------------------------------------------------------------------

    def container(self, pod_uid: str, name: str) -> RunningContainer:
        """Return the present (or last) incarnation of a container: environment, limits, exit code, log file."""
        if pod_uid in self.workers:
            return self.workers[pod_uid].container(name)
        found = [item for item in self.runtime.history if (item.pod.uid, item.spec.name) == (pod_uid, name)]
        if not found:
            raise KeyError(f"container {name} of pod {pod_uid} has not run on {self.node_name}")
        return found[-1]

    async def exec(self, pod_uid: str, name: str, argv: Sequence[str]) -> ExecResult:
        """Run a command with a container's exact environment, as `kubectl exec` does."""
        return await self.runtime.exec(self.container(pod_uid, name), argv)
