"""The life of one pod on the node: start containers in order, restart them, stop them, report status."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from simulator.kubelet.devicemanager import DeviceManager, StartRefused
from simulator.kubelet.podview import ContainerSpec, PodObject
from simulator.kubelet.runtime import CreateFailed, RunningContainer, Runtime

_Status = dict[str, object]


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast the kubelet repeats things, in seconds. The real one's values are the defaults."""

    start_retry: float = 10.0
    restart_backoff: float = 10.0
    force_delete_overlap: float = 3.0
    node_status: float = 10.0
    first_admission: float = 0.8
    """From the start of the kubelet, when plugins can register, to the first pod that it admits."""


@dataclass(slots=True)
class ContainerState:
    """What is known of one container."""

    spec: ContainerSpec
    running: RunningContainer | None = None
    restarts: int = 0
    waiting_reason: str = "PodInitializing"
    """Why it is not started yet, or not yet again; empty while it runs and when it is done."""
    waiting_message: str = ""

    @property
    def is_up(self) -> bool:
        """Whether its process runs."""
        return self.running is not None and self.running.exit_code is None

    @property
    def exit_code(self) -> int | None:
        """Exit code of the last incarnation; None while it runs or before it ever ran."""
        return self.running.exit_code if self.running is not None else None


class PodWorker:
    """Runs one admitted pod. `report` is awaited with each new status."""

    def __init__(
        self,
        pod: PodObject,
        manager: Callable[[], DeviceManager],
        runtime: Runtime,
        report: Callable[[PodObject, _Status], Awaitable[None]],
        pace: Pace,
    ) -> None:
        self.pod = pod
        self.states = {container.name: ContainerState(container) for container in pod.spec.admission_order}
        self.stopping = False
        self.terminal_phase = ""
        self._manager = manager
        self._runtime = runtime
        self._report = report
        self._reporting = asyncio.Lock()  # two containers that start together must not overtake each other's report
        self._pace = pace
        self._started_at = _now()
        self._keepers: list[asyncio.Task[None]] = []

    # -- queries --------------------------------------------------------------------------------------------------

    @property
    def uid(self) -> str:
        """The pod's UID."""
        return self.pod.uid

    def running(self) -> frozenset[str]:
        """Return the names of the containers whose process runs."""
        return frozenset(name for name, state in self.states.items() if state.is_up)

    def starts(self) -> dict[str, int]:
        """Return how often each container was started."""
        return {name: state.restarts + (state.running is not None) for name, state in self.states.items()}

    def continue_counting(self, starts: Mapping[str, int]) -> None:
        """Count on from what an earlier worker of the pod had started."""
        for name, number in starts.items():
            self.states[name].restarts = number

    def container(self, name: str) -> RunningContainer:
        """Return the present incarnation of a container; KeyError when it never ran."""
        running = self.states[name].running
        if running is None:
            raise KeyError(name)
        return running

    # -- life -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run to the end: until all containers are done, or forever for pods that restart."""
        await self.publish()
        for container in self.pod.spec.init_containers or ():
            if container.is_sidecar:
                await self._start(container)
                self._keepers.append(asyncio.create_task(self._keep(container)))
            elif not await self._run_init(container):
                await self._finish("Failed")
                return
        apps = [asyncio.create_task(self._app(container)) for container in self.pod.spec.containers]
        try:
            codes = await asyncio.gather(*apps)
        finally:
            for task in (*apps, *self._keepers):
                task.cancel()
        if not self.stopping:
            for container in self.pod.spec.init_containers or ():
                if container.is_sidecar and (running := self.states[container.name].running) is not None:
                    await self._runtime.stop(running, 1.0)
            await self._finish("Succeeded" if all(code == 0 for code in codes) else "Failed")

    async def _run_init(self, container: ContainerSpec) -> bool:
        """Run an init container until it succeeds; False when it failed and the pod does not restart."""
        while True:
            if await self._start_and_wait(container) == 0:
                return True
            if self.pod.spec.restart_policy == "Never":
                return False
            await self._back_off(container)

    async def _app(self, container: ContainerSpec) -> int:
        while True:
            code = await self._start_and_wait(container)
            policy = self.pod.spec.restart_policy
            if self.stopping or policy == "Never" or (policy == "OnFailure" and code == 0):
                return code
            await self._back_off(container)

    async def _keep(self, container: ContainerSpec) -> None:
        while True:
            running = self.states[container.name].running
            if running is not None:
                await running.ended.wait()
            if self.stopping:
                return
            await self._back_off(container)
            await self._start(container)

    async def _back_off(self, container: ContainerSpec) -> None:
        state = self.states[container.name]
        state.waiting_reason, state.waiting_message = "CrashLoopBackOff", "back-off restarting failed container"
        state.restarts += 1
        await self.publish()
        # The first restart is immediate.
        await asyncio.sleep(0 if state.restarts == 1 else self._pace.restart_backoff)

    async def _start_and_wait(self, container: ContainerSpec) -> int:
        if (adopted := self.states[container.name].running) is None or adopted.exit_code is not None:
            await self._start(container)
        running = self.container(container.name)
        await running.ended.wait()
        await self.publish()
        return running.exit_code or 0

    async def _start(self, container: ContainerSpec) -> None:
        """Start one incarnation; refusals are retried for as long as the pod lives."""
        state = self.states[container.name]
        while True:
            try:
                manager = self._manager()
                await manager.pre_start(self.uid, container)
                if self.stopping:
                    # While another container of the pod takes its time to end.
                    raise StartRefused("the pod is ending")
                answers = manager.responses(self.uid, container.name)
                creation = self._runtime.describe(self.pod, container, answers)
                state.running = await self._runtime.start(self.pod, container, creation)
            except (StartRefused, CreateFailed) as error:
                reason = "CreateContainerConfigError" if isinstance(error, StartRefused) else "CreateContainerError"
                state.waiting_reason, state.waiting_message = reason, str(error)
                await self.publish()
                await asyncio.sleep(self._pace.start_retry)
            else:
                state.waiting_reason = state.waiting_message = ""
                await self.publish()
                return

    async def _finish(self, phase: str) -> None:
        self.terminal_phase = phase
        await self.publish()

    async def stop(self, grace_seconds: float) -> None:
        """Stop all containers; app containers first, then sidecars."""
        self.stopping = True
        for keeper in self._keepers:
            keeper.cancel()
        apps = [self.states[container.name] for container in self.pod.spec.containers]
        others = [state for state in self.states.values() if state not in apps]
        for group in (apps, others):
            up = [state.running for state in group if state.is_up and state.running is not None]
            await asyncio.gather(*(self._runtime.stop(running, grace_seconds) for running in up))

    # -- status ---------------------------------------------------------------------------------------------------

    async def publish(self) -> None:
        """Report the present status."""
        async with self._reporting:
            await self._report(self.pod, self.status())

    def status(self) -> _Status:
        """Return the pod's status as the API server wants it."""
        init = [self.states[c.name] for c in self.pod.spec.init_containers or ()]
        apps = [self.states[c.name] for c in self.pod.spec.containers]
        ready = bool(apps) and all(state.is_up for state in apps)
        return {
            "phase": self._phase(apps),
            "startTime": self._started_at,
            "hostIP": "127.0.0.1",
            "podIP": "127.0.0.1",
            "conditions": list(self._conditions(ready=ready)),
            "initContainerStatuses": [_container_status(state) for state in init],
            "containerStatuses": [_container_status(state) for state in apps],
            "reason": None,
            "message": None,
        }

    def _phase(self, apps: list[ContainerState]) -> str:
        if self.terminal_phase:
            return self.terminal_phase
        if all(state.running is not None for state in apps):
            return "Running"
        return "Pending"

    def _conditions(self, *, ready: bool) -> Iterator[dict[str, object]]:
        yield {"type": "PodScheduled", "status": "True"}
        init = [self.states[c.name] for c in self.pod.spec.init_containers or ()]
        initialized = all(state.is_up if state.spec.is_sidecar else state.exit_code == 0 for state in init)
        yield {"type": "Initialized", "status": "True" if initialized else "False"}
        for name in ("ContainersReady", "Ready"):
            yield {"type": name, "status": "True" if ready else "False"}


def _container_status(state: ContainerState) -> dict[str, object]:
    running = state.running
    found: dict[str, object] = {
        "name": state.spec.name,
        "image": state.spec.image or "none",
        "imageID": "",
        "ready": state.is_up,
        "started": state.is_up,
        "restartCount": state.restarts,
        "containerID": f"process://{running.process.pid}" if running is not None else "",
    }
    if running is not None and state.is_up:
        return {**found, "state": {"running": {"startedAt": _time(running.started_at)}}}
    ended = _termination(running) if running is not None else {}
    if state.waiting_reason or running is None:
        waiting = {"reason": state.waiting_reason, "message": state.waiting_message}
        return {**found, "state": {"waiting": waiting}, "lastState": ended}
    return {**found, "state": ended}


def _termination(running: RunningContainer) -> dict[str, object]:
    code = running.exit_code or 0
    return {
        "terminated": {
            "exitCode": code if code >= 0 else 128 - code,
            "reason": "Completed" if code == 0 else "Error",
            "startedAt": _time(running.started_at),
            "finishedAt": _time(running.finished_at or running.started_at),
        }
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
