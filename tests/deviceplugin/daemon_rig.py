"""The real daemon as a process: embedded API server, stub kubelet, real pynvml on the fake driver."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuslice.cluster.client import KubeClient
from gpuslice.cluster.config import load_cluster_config
from gpuslice.cluster.resources import EVENTS, NODES, PODS
from gpuslice.cluster.transport import Transport
from gpuslice.devices import annotations, pods
from gpuslice.devices.inventory import NodeCards
from simulator.apiserver.server import ApiServer, Options, running
from simulator.kubelet.api import ClusterApi
from simulator.kubelet.kubelet import Behaviour, StubKubelet
from simulator.kubelet.rig import FAST
from simulator.kubelet.runtime import Driver

ROOT = Path(__file__).resolve().parents[2]
DRIVERS = ROOT / "simulator" / "drivers" / "build"
GPU = "nvidia.com/gpu"


@dataclass(slots=True)
class Daemons:
    """The node and its daemons."""

    root: Path
    server: ApiServer
    client: KubeClient
    kubelet: StubKubelet
    kubeconfig: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *flags: str) -> subprocess.Popen[bytes]:
        """Start one daemon."""
        layout = self.kubelet.layout
        ports = self.root / f"ports{len(self.processes)}.json"
        arguments = [
            "--node-name", "n1", "--kubeconfig", str(self.kubeconfig), "--device-plugin-dir", str(layout.plugins),
            "--pod-resources-socket", str(layout.pod_resources), "--state-dir", str(self.root / "s"),
            "--cdi-dir", str(layout.cdi), "--cgroup-root", str(layout.cgroups), "--library-path", "/dev/null",
            "--metrics-host", "127.0.0.1", "--ports-file", str(ports), "--probe-seconds", "0.2",
            "--quiet-seconds", "1", "--audit-seconds", "0.5", "--log-format", "json", *flags,
        ]  # fmt: skip
        log = (self.root / f"daemon{len(self.processes)}.log").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", "deviceplugin", *arguments], env=self.environment(), stderr=log
        )
        log.close()
        self.processes.append(process)
        return process

    def environment(self) -> dict[str, str]:
        """Return the environment of a process that sees the node's cards."""
        return {
            # Compiled modules are kept: each start would cost two seconds otherwise.
            **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
            "PYTHONPATH": str(ROOT),
            "LD_LIBRARY_PATH": str(DRIVERS),
            "GPUSLICE_FAKE_INVENTORY": str(self.root / "node.yaml"),
            "GPUSLICE_FAKE_STATE": str(self.root / "f"),
        }

    def control(self, line: str) -> None:
        """Inject a fault into the fake driver."""
        with (self.root / "f" / "control").open("a") as file:
            file.write(f"{line}\n")

    def healthy(self) -> int:
        """Return how many devices the kubelet may give."""
        endpoint = self.kubelet.manager.endpoints.get(GPU)
        return len(endpoint.healthy) if endpoint is not None and endpoint.stopped_at is None else 0

    async def until(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        """Wait until something holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                logs = "\n".join(path.read_text()[-3000:] for path in sorted(self.root.glob("daemon*.log")))
                raise TimeoutError(logs)
            await asyncio.sleep(0.02)

    async def cards(self, seconds: float = 20.0, want: Callable[[NodeCards], bool] = lambda _cards: True) -> NodeCards:
        """Return the published inventory once it is as wanted."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            node = await self.client.get(NODES, "n1", pods.Node)
            if text := node.metadata.annotations.get(annotations.CARDS):
                found = annotations.decode_cards("n1", text)
                if want(found):
                    return found
            await asyncio.sleep(0.05)
        raise TimeoutError("the inventory was not published as wanted")

    async def create(self, body: dict[str, Any]) -> str:
        """Create a bound pod; return its UID."""
        for container in (*body["spec"]["containers"], *body["spec"]["initContainers"]):
            container["image"] = "none"
        made = await self.client.create(PODS, {"apiVersion": "v1", "kind": "Pod", **body}, namespace="default")
        return str(json.loads(made)["metadata"]["uid"])

    async def running(self, *uids: str) -> None:
        """Wait until these pods' containers run."""

        def up() -> bool:
            workers = [self.kubelet.workers.get(uid) for uid in uids]
            return all(worker is not None and len(worker.running()) == len(worker.states) for worker in workers)

        await self.until(up)

    async def events(self) -> list[str]:
        """Return the messages of all Events."""
        answer = json.loads(await self.client.transport.request("GET", EVENTS.path("default")))
        return [f"{item['reason']} {item['involvedObject']['name']}: {item['message']}" for item in answer["items"]]

    async def events_of(self, reason: str, *, subjects: int, seconds: float = 20.0) -> list[str]:
        """Return the messages of the Events of one reason, once that many objects have one."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = [text for text in await self.events() if text.startswith(f"{reason} ")]
            if len({text.split()[1] for text in found}) >= subjects:
                return found
            await asyncio.sleep(0.05)
        raise TimeoutError(f"no {subjects} objects have an Event {reason}")


@contextlib.asynccontextmanager
async def daemons(root: Path, inventory: str = "cards:\n- {model: A100-SXM4-80GB, count: 4}") -> AsyncIterator[Daemons]:
    """Run a node; the daemon is started by the test."""
    (root / "node.yaml").write_text(f'name: n1\ndriver: "580.65.06"\ncuda: "13.0"\n{inventory}\n')
    (root / "f").mkdir()
    async with running(Options(seed=1)) as server:
        kubeconfig = server.kubeconfig()
        async with Transport(load_cluster_config(kubeconfig)) as transport:
            client = KubeClient(transport)
            kubelet = StubKubelet("n1", root / "k", ClusterApi(client), Driver(), Behaviour(pace=FAST, pretend=True))
            await kubelet.start()
            made = Daemons(root, server, client, kubelet, kubeconfig)
            try:
                yield made
            finally:
                for process in made.processes:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                await kubelet.shut_down()
