"""The stub kubelet on an embedded API server."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from gpuslice.cluster.client import KubeClient
from gpuslice.cluster.config import load_cluster_config
from gpuslice.cluster.transport import Transport
from simulator.apiserver import ADMIN, Options
from simulator.apiserver.server import running
from simulator.kubelet.api import ClusterApi
from simulator.kubelet.kubelet import Behaviour, StubKubelet
from simulator.kubelet.podworker import Pace
from simulator.kubelet.runtime import Driver
from tests.cluster.harness.hardware import DRIVERS, FakeCards
from tests.contract.kubelet.machines import Json, Places

NODE = "stub-node"
PACE = Pace(start_retry=0.2, restart_backoff=0.2, force_delete_overlap=1.0, node_status=0.5, first_admission=0.4)


@dataclass(frozen=True, slots=True)
class StubMachine:
    """A stub kubelet in this event loop."""

    kubelet: StubKubelet
    cards: FakeCards
    kubeconfig: Path
    kind: str = "stub"
    node: str = NODE

    @property
    def places(self) -> Places:
        """Where everything is."""
        layout = self.kubelet.layout
        return Places(layout.plugins, layout.pod_resources, layout.cdi, [f"--cgroup-root={layout.cgroups}"])

    @property
    def folder(self) -> Path:
        """Where a row may keep files."""
        return self.kubelet.layout.root

    async def start_kubelet(self) -> None:
        """Start it."""
        await self.kubelet.start()

    async def stop_kubelet(self) -> None:
        """Stop it."""
        await self.kubelet.stop()

    async def reboot(self) -> None:
        """Lose power."""
        await self.kubelet.reboot()

    def processes(self, pod: Json, container: str) -> list[int]:
        """Read the cgroup that the stub keeps."""
        procs = self.kubelet.runtime.cgroup(pod["metadata"]["uid"], container) / "cgroup.procs"
        return [int(pid) for pid in procs.read_text().split()] if procs.exists() else []


@contextlib.asynccontextmanager
async def stub_machine(folder: Path, behaviour: Behaviour | None = None) -> AsyncIterator[StubMachine]:
    """Run a node."""
    async with running(Options(data=folder / "api")) as server:
        kubeconfig = server.kubeconfig(ADMIN)
        async with Transport(load_cluster_config(kubeconfig)) as transport:
            cards = FakeCards.create(folder / "gpu", node=1, count=2)
            driver = Driver(DRIVERS, cards.folder / "inventory.yaml", cards.folder / "state")
            api = ClusterApi(KubeClient(transport))
            kubelet = StubKubelet(NODE, folder / "k", api, driver, behaviour or Behaviour(pace=PACE))
            await kubelet.start()
            try:
                yield StubMachine(kubelet, cards, kubeconfig)
            finally:
                await kubelet.shut_down()
