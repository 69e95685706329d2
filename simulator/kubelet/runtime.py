"""A container runtime without privileges.

Each container is a process (and its children) with the environment that the kubelet, the plugin and CDI give it.

Nothing can be mounted without root, so paths inside the container become paths on the host through the environment:
`/etc/ld.so.preload` becomes LD_PRELOAD, `/var/run/gpuslice` becomes GPUSLICE_DIR; the fake driver stands for what the
NVIDIA container toolkit would mount. CDI specifications are read when the container is created, as containerd does. The
processes of a pod are listed in a cgroup-like tree: `<root>/cgroup/kubepods/pod<uid>/<container>/cgroup.procs`.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from gpuslice.proto.deviceplugin.v1beta1 import api_pb2 as pb
from simulator.kubelet.podview import ContainerSpec, PodObject, variables
from simulator.processes import die_with_parent

_CDI_ANNOTATION = "cdi.k8s.io/"
_PRELOAD = "/etc/ld.so.preload"
_GPUSLICE = "/var/run/gpuslice"


class _CdiMount(msgspec.Struct, rename="camel"):
    host_path: str
    container_path: str
    options: tuple[str, ...] = ()


class _CdiNode(msgspec.Struct, rename="camel"):
    path: str
    host_path: str = ""


class _CdiEdits(msgspec.Struct, rename="camel"):
    env: tuple[str, ...] = ()
    mounts: tuple[_CdiMount, ...] = ()
    device_nodes: tuple[_CdiNode, ...] = ()


class _CdiDevice(msgspec.Struct, rename="camel"):
    name: str
    container_edits: _CdiEdits


class _CdiFile(msgspec.Struct, rename="camel"):
    kind: str
    devices: tuple[_CdiDevice, ...] = ()


class CreateFailed(Exception):
    """The container cannot be created now (a CDI device is not described); it is tried again."""


@dataclass(frozen=True, slots=True)
class Mounted:
    """One mount."""

    host: str
    inside: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class Driver:
    """The fake driver of this node. All None: containers get no driver."""

    directory: Path | None = None
    inventory: Path | None = None
    state: Path | None = None

    def environment(self) -> dict[str, str]:
        """Return the variables that make a process see this node's cards."""
        found = {}
        if self.inventory is not None:
            found["GPUSLICE_FAKE_INVENTORY"] = str(self.inventory)
        if self.state is not None:
            found["GPUSLICE_FAKE_STATE"] = str(self.state)
        return found


@dataclass(frozen=True, slots=True)
class Creation:
    """Everything a container is created with."""

    env: dict[str, str]
    mounts: tuple[Mounted, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    device_nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a command in a container gave."""

    exit_code: int
    output: str


class Process(Protocol):
    """The container's first process."""

    @property
    def pid(self) -> int:
        """Process id, which is also its process group."""


@dataclass(slots=True)
class RunningContainer:
    """One incarnation of a container."""

    pod: PodObject
    spec: ContainerSpec
    creation: Creation
    process: "Process"
    log_file: Path
    started_at: float
    finished_at: float | None = None
    exit_code: int | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Runtime:
    """Creates, signals and forgets containers."""

    def __init__(self, root: Path, cdi_directory: Path, driver: Driver) -> None:
        self._root = root
        self._cdi = cdi_directory
        self._driver = driver
        self.cgroups = root / "cgroup"
        self.logs = root / "logs"
        self.history: list[RunningContainer] = []
        """Every incarnation ever started, oldest first."""
        self._waiters: set[asyncio.Task[None]] = set()
        for directory in (self.cgroups, self.logs):
            directory.mkdir(parents=True, exist_ok=True)

    # -- creation -------------------------------------------------------------------------------------------------

    def describe(
        self, pod: PodObject, container: ContainerSpec, answers: Iterable[pb.ContainerAllocateResponse]
    ) -> Creation:
        """Merge what the plugins answered, what the pod says and what CDI describes, in the real order of precedence.

        Raises:
            CreateFailed: A CDI device has no specification.
        """
        env: dict[str, str] = {}
        mounts: list[Mounted] = []
        names: list[str] = []
        nodes: list[str] = []
        for answer in answers:
            for name, value in answer.envs.items():
                env.setdefault(name, value)
            mounts += [Mounted(m.host_path, m.container_path, m.read_only) for m in answer.mounts]
            nodes += [node.host_path for node in answer.devices]
            names += [device.name for device in answer.cdi_devices]
            for key, value in answer.annotations.items():
                if key.startswith(_CDI_ANNOTATION):
                    names += value.split(",")
        env |= variables(pod, container)
        for name in dict.fromkeys(names):
            edits = self._resolve(name)
            env |= dict(item.split("=", 1) for item in edits.env)
            mounts += [Mounted(m.host_path, m.container_path, "ro" in m.options) for m in edits.mounts]
            nodes += [node.host_path or node.path for node in edits.device_nodes]
        if missing := [path for path in nodes if not Path(path).exists()]:
            raise CreateFailed(f"device node {missing[0]} does not exist on the host")
        return Creation(env, tuple(mounts), tuple(dict.fromkeys(names)), tuple(nodes))

    def _resolve(self, name: str) -> "_CdiEdits":
        kind, _, device = name.partition("=")
        for path in sorted(self._cdi.glob("*.json")):
            try:
                document = msgspec.json.decode(path.read_bytes(), type=_CdiFile)
            except (OSError, msgspec.MsgspecError):
                continue
            for entry in document.devices if document.kind == kind else ():
                if entry.name == device:
                    return entry.container_edits
        raise CreateFailed(f"CDI device injection failed: unresolvable CDI devices {name}")

    def host_environment(self, creation: Creation) -> dict[str, str]:
        """Return the environment of the container's processes on this host."""
        env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": "/", **self._driver.environment(), **creation.env}
        by_inside = {mount.inside: mount.host for mount in creation.mounts}
        if self._driver.directory is not None:
            env["PATH"] = f"{self._driver.directory}:{env['PATH']}"
            paths = [str(self._driver.directory), env.get("LD_LIBRARY_PATH", "")]
            env["LD_LIBRARY_PATH"] = ":".join(path for path in paths if path)
        if _GPUSLICE in by_inside:
            env["GPUSLICE_DIR"] = by_inside[_GPUSLICE]
        preload = self._preload(by_inside)
        if preload:
            env["LD_PRELOAD"] = ":".join(preload)
        return env

    @staticmethod
    def _preload(by_inside: Mapping[str, str]) -> list[str]:
        host = by_inside.get(_PRELOAD)
        if host is None or not Path(host).is_file():
            return []
        lines = [line.strip() for line in Path(host).read_text().split()]
        # A preload entry that is not mounted is skipped with a warning by the loader.
        return [by_inside[line] for line in lines if line in by_inside and Path(by_inside[line]).is_file()]

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self, pod: PodObject, container: ContainerSpec, creation: Creation) -> RunningContainer:
        """Start the container's command.

        Raises:
            CreateFailed: The command does not exist.
        """
        argv = [*(container.command or ("sleep", "infinity")), *(container.args or ())]
        env = self.host_environment(creation)
        program = shutil.which(argv[0], path=env["PATH"])
        if program is None:
            raise CreateFailed(f"exec: {argv[0]!r}: executable file not found in $PATH")
        log_file = self._next_log(pod, container.name)
        directory = self.cgroup(pod.uid, container.name)
        directory.mkdir(parents=True, exist_ok=True)
        with log_file.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *die_with_parent([program, *argv[1:]]),
                env=env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                cwd=self._root,
            )
        (directory / "cgroup.procs").write_text(f"{process.pid}\n")
        running = RunningContainer(pod, container, creation, process, log_file, time.time())
        self.history.append(running)
        waiter = asyncio.create_task(self._wait(running, process, directory))
        self._waiters.add(waiter)
        waiter.add_done_callback(self._waiters.discard)
        return running

    async def _wait(self, running: RunningContainer, process: asyncio.subprocess.Process, directory: Path) -> None:
        running.exit_code = await process.wait()
        # The container ends with its first process; what that left behind is killed, as with a pid namespace.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.process.pid, signal.SIGKILL)
        running.finished_at = time.time()
        # The pod's cgroup may be gone with the pod.
        with contextlib.suppress(FileNotFoundError):
            (directory / "cgroup.procs").write_text("")
        running.ended.set()

    async def stop(self, running: RunningContainer, grace_seconds: float) -> None:
        """SIGTERM, wait, SIGKILL."""
        self.signal(running, signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_seconds):
                await running.ended.wait()
        except TimeoutError:
            self.signal(running, signal.SIGKILL)
            await running.ended.wait()

    def signal(self, running: RunningContainer, number: signal.Signals) -> None:
        """Signal all processes of a container."""
        if running.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.process.pid, number)

    async def exec(self, running: RunningContainer, argv: Sequence[str]) -> ExecResult:
        """Run a command with the container's exact environment and wait for it."""
        env = self.host_environment(running.creation)
        program = shutil.which(argv[0], path=env["PATH"])
        if program is None:
            return ExecResult(126, f"exec: {argv[0]!r}: executable file not found in $PATH\n")
        process = await asyncio.create_subprocess_exec(
            program,
            *argv[1:],
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            cwd=self._root,
        )
        output, _ = await process.communicate()
        return ExecResult(process.returncode or 0, output.decode(errors="replace"))

    def forget_pod(self, uid: str) -> None:
        """Remove the pod's cgroup."""
        shutil.rmtree(self.cgroups / "kubepods" / f"pod{uid}", ignore_errors=True)

    async def kill_all(self) -> None:
        """Kill every container and wait: a power cut, or the end of the simulation."""
        for running in self.history:
            self.signal(running, signal.SIGKILL)
        if self._waiters:
            await asyncio.gather(*self._waiters)

    def cgroup(self, uid: str, container: str) -> Path:
        """Return the directory that lists a container's processes."""
        return self.cgroups / "kubepods" / f"pod{uid}" / container

    def _next_log(self, pod: PodObject, container: str) -> Path:
        directory = self.logs / f"{pod.metadata.namespace}_{pod.metadata.name}_{pod.uid}" / container
        directory.mkdir(parents=True, exist_ok=True)
        return directory / f"{sum(1 for _ in directory.iterdir())}.log"
