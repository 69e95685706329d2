"""The product's node daemon on a node under contract: a process of its own, real pynvml on the fake driver."""

import asyncio
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from gpuslice.devices import annotations, limits
from gpuslice.devices.allocation import PodAllocation, SliceShare
from gpuslice.devices.inventory import slice_id
from tests.cluster.harness import pods
from tests.cluster.harness.cluster import LIBRARY
from tests.cluster.harness.daemons import Daemon
from tests.contract.kubelet.machines import Json
from tests.contract.kubelet.rig import Rig

GPU = "nvidia.com/gpu"
SLICES = 20
"""Two cards of ten slices."""
FINDING = "GpuDoubleAllocation"
FOUND_WITHIN_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Ask:
    """A container that was given slices of the same size."""

    name: str
    slices: tuple[str, ...]
    memory_mib: int = 1000
    script: str = pods.SLEEP
    init: bool = False
    sidecar: bool = False

    def body(self) -> Json:
        """Return the container of the pod object."""
        made = pods.container(self.name, self.script, cards=len(self.slices))
        return {**made, "restartPolicy": "Always"} if self.sidecar else made


class NodeDaemon:
    """The daemon of one row, killed and started as the row wants.

    Attributes:
        log: What it writes, over its restarts, one JSON object a line.
    """

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._machine = rig.machine
        self.state = rig.machine.folder / "gpuslice"
        self._daemon: Daemon | None = None
        self.log = self.state / "logs" / "deviceplugin.log"

    # -- life --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Nothing runs yet."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the node's pods, then the daemon, and remove what it wrote."""
        try:
            await self._rig.clear()
        finally:
            if self._daemon is not None:
                self._daemon.kill()
            shutil.rmtree(self.state, ignore_errors=True)
            for path in self._rig.places.cdi.glob("*.json"):
                path.unlink()

    async def start(self, *flags: str, module: str = "deviceplugin") -> None:
        """Start it and wait until it is registered and its devices are offered."""
        places, machine = self._rig.places, self._machine
        arguments = [
            f"--node-name={machine.node}", f"--kubeconfig={machine.kubeconfig}",
            f"--device-plugin-dir={places.plugins}", f"--pod-resources-socket={places.pod_resources}",
            f"--state-dir={self.state}", f"--cdi-dir={places.cdi}", f"--library-path={LIBRARY}", *places.cgroup_flags,
            "--metrics-host=127.0.0.1", "--metrics-port=0", "--probe-seconds=0.2", "--quiet-seconds=1",
            "--audit-seconds=0.5", "--log-format=json", *flags,
        ]  # fmt: skip
        self._daemon = daemon = Daemon(
            module,
            arguments,
            folder=self.log.parent,
            name="deviceplugin",
            environment=machine.cards.host_environment,
        )
        daemon.start()
        await self.registered()

    async def registered(self) -> None:
        """Wait until the kubelet has devices of it, and it says so itself."""
        await self._rig.until(lambda: self.answers("readyz"), f"the node daemon is ready\n{self.log}")

        async def offered() -> bool:
            return bool(await self._rig.offered(GPU))

        await self._rig.until(offered, "the kubelet has its devices")

    async def answers(self, path: str) -> str:
        """Return a page of its own server; empty while it has none."""
        assert self._daemon is not None
        try:
            status, text = await asyncio.to_thread(self._daemon.fetch, path)
        except OSError:
            return ""
        return text if status == 200 else ""

    async def kill(self) -> None:
        """End it at once and wait until the kubelet has noticed."""
        assert self._daemon is not None
        self._daemon.kill()

        async def noticed() -> bool:
            return not await self._rig.offered(GPU)

        await self._rig.until(noticed, "the kubelet has lost its devices")

    # -- cards and pods ----------------------------------------------------------------------------------------------

    def card(self, number: int) -> str:
        """Return the UUID of a card."""
        return self._machine.cards.uuids[number]

    def at(self, card: int, number: int) -> str:
        """Return the name of a slice."""
        return slice_id(self.card(card), number)

    def control(self, line: str) -> None:
        """Let something happen to the fake cards."""
        with (self._machine.cards.folder / "state" / "control").open("a") as file:
            file.write(f"{line}\n")

    async def create(
        self, name: str, *asks: Ask, reserved: bool = True, restart_policy: str = "Never", grace_seconds: int = 1
    ) -> Json:
        """Create a pod with the scheduler's decision on it; `reserved` False leaves that out."""
        decision = PodAllocation(
            self._machine.node, {a.name: tuple(SliceShare(s, a.memory_mib, 0) for s in a.slices) for a in asks}
        )
        notes = {annotations.ALLOCATION: annotations.encode_allocation(decision)} if reserved else {}
        body = pods.pod(
            name,
            *(ask.body() for ask in asks if not (ask.init or ask.sidecar)),
            init=[ask.body() for ask in asks if ask.init or ask.sidecar],
            annotations=notes,
            restartPolicy=restart_policy,
            schedulerName="gpuslice-scheduler",
            terminationGracePeriodSeconds=grace_seconds,
        )
        return await self._rig.create(body)

    async def run(self, name: str, *asks: Ask, restart_policy: str = "Never") -> Json:
        """Create such a pod and wait until it runs."""
        (pod,) = await self._rig.running(await self.create(name, *asks, restart_policy=restart_policy))
        return pod

    def share(self, pod: Json, container: str = "main") -> dict[str, int | None]:
        """Return card -> MiB as a running container has it; environment and limits file must agree.

        Raises:
            AssertionError: They do not.
        """
        environment = self._rig.environment(pod, container)
        inside = f"/proc/{self._rig.first_process(pod, container)}/root/var/run/gpuslice"
        found = limits.read_limits(Path(environment.get("GPUSLICE_DIR", inside)) / "limits")
        assert environment["NVIDIA_VISIBLE_DEVICES"].split(",") == [limit.uuid for limit in found]
        for number, limit in enumerate(found):
            assert environment[f"CUDA_DEVICE_MEMORY_LIMIT_{number}"] == f"{limit.memory_mib}m"
        return {limit.uuid: limit.memory_mib for limit in found}

    # -- what it tells -----------------------------------------------------------------------------------------------

    def said(self, event: str) -> list[Mapping[str, Any]]:
        """Return its log lines of one kind."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.startswith("{")]
        return [found for found in map(json.loads, lines) if found["event"] == event]

    async def metric(self, name: str, labels: str) -> float:
        """Return a sample of its metrics, such as `double_allocations_total`, `kind="same-id"`; 0 if there is none."""
        for line in (await self.answers("metrics")).splitlines():
            sample, _, value = line.rpartition(" ")
            if sample == f"gpuslice_plugin_{name}{{{labels}}}":
                return float(value)
        return 0.0

    async def reports(self, kind: str, on: Sequence[str], naming: Sequence[str]) -> str:
        """Wait for a finding and check all three of Event, metric and log; return its text.

        Args:
            kind: Of the finding.
            on: Names of the pods that get an Event.
            naming: Names of the pods that the text must have.
        """

        async def events() -> dict[str, str]:
            found = [text.split(": ", 1) for text in await self._rig.events() if text.startswith(FINDING)]
            named = {where.split()[1]: text for where, text in found if all(f"default/{n}" in text for n in naming)}
            return named if set(on) <= named.keys() else {}

        found = await self._rig.until(events, f"Events of {kind} on {on}", FOUND_WITHIN_SECONDS)
        assert await self.metric("double_allocations_total", f'kind="{kind}"') >= 1
        lines = [line for line in self.said("double_allocation") if line["kind"] == kind]
        assert any(all(f"default/{name}" in line["text"] for name in naming) for line in lines), lines
        return str(found[on[0]])
