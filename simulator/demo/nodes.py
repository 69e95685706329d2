"""The nodes of the embedded cluster: a stub kubelet here, the real device plugin as a process beside it."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpuslice
from gpuslice.cluster.client import KubeClient
from gpuslice.cluster.config import load_cluster_config
from gpuslice.cluster.transport import Transport
from gpuslice.devices.annotations import CARDS
from simulator.apiserver import node as node_user
from simulator.apiserver import service_account
from simulator.demo.control_plane import COMMON_FLAGS, SYSTEM_NAMESPACE, ControlPlane
from simulator.demo.supervisor import DaemonSpec, Ports
from simulator.kubelet.api import ClusterApi
from simulator.kubelet.kubelet import StubKubelet
from simulator.kubelet.runtime import Driver

DRIVERS = Path(__file__).parents[1] / "drivers" / "build"
SHOWN_SECONDS = 20.0
POLL_SECONDS = 0.02
LIBRARY = Path(gpuslice.__file__).parent / "lib" / "libvgpu.so"


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node to run: its name and the file that describes its fake cards."""

    name: str
    inventory: Path


@asynccontextmanager
async def nodes(plane: ControlPlane, specs: Sequence[NodeSpec]) -> AsyncIterator[dict[str, StubKubelet]]:
    """Run nodes until left; entered when every plugin is registered with its kubelet, and the cluster shows it."""
    async with AsyncExitStack() as stack:
        (plane.folder / LIBRARY.name).symlink_to(LIBRARY)
        kubelets = [
            await stack.enter_async_context(_node(plane, spec, plane.folder / f"node-{number}"))
            for number, spec in enumerate(specs, 1)
        ]
        await asyncio.gather(*(plane.supervisor.wait_ready(_daemon(spec.name)) for spec in specs))
        async with asyncio.timeout(SHOWN_SECONDS):
            while not all(map(_shows_cards, plane.server.list("v1", "Node"))):  # noqa: ASYNC110  nobody signals it
                await asyncio.sleep(POLL_SECONDS)
        yield {kubelet.node_name: kubelet for kubelet in kubelets}


def _shows_cards(node: Mapping[str, Any]) -> bool:
    """Tell whether the plugin has published the cards and the kubelet lists them (maybe none that can be used)."""
    offered = node.get("status", {}).get("allocatable") or {}
    registered = CARDS in (node["metadata"].get("annotations") or {})
    return registered and any("/" in resource for resource in offered)


def _daemon(node: str) -> str:
    return f"device-plugin-{node}"


@asynccontextmanager
async def _node(plane: ControlPlane, spec: NodeSpec, root: Path) -> AsyncIterator[StubKubelet]:
    """Run one node below ``root``, whose name does not grow with the node's: there are sockets in it."""
    driver = Driver(DRIVERS, spec.inventory, root / "gpu")
    kubeconfig = plane.server.kubeconfig(node_user(spec.name))
    async with Transport(load_cluster_config(kubeconfig), connections=4) as transport:
        kubelet = StubKubelet(spec.name, root, ClusterApi(KubeClient(transport)), driver)
        (root / "gpu").mkdir()
        try:
            await kubelet.start()
            plane.supervisor.start(_device_plugin(plane, kubelet, driver))
            yield kubelet
        finally:
            await kubelet.shut_down()


def _device_plugin(plane: ControlPlane, kubelet: StubKubelet, driver: Driver) -> DaemonSpec:
    name = _daemon(kubelet.node_name)
    layout = kubelet.layout
    kubeconfig = plane.server.kubeconfig(service_account(SYSTEM_NAMESPACE, "gpuslice-node"))

    def arguments(ports: Ports) -> Sequence[str]:
        return (
            *("--node-name", kubelet.node_name, "--kubeconfig", str(kubeconfig)),
            *("--device-plugin-dir", str(layout.plugins), "--pod-resources-socket", str(layout.pod_resources)),
            *("--state-dir", str(layout.root / "state"), "--cdi-dir", str(layout.cdi)),
            *("--cgroup-root", str(layout.cgroups), "--library-path", str(plane.folder / LIBRARY.name)),
            *("--metrics-port", str(ports.get("metrics", 0))),
            *("--ports-file", str(plane.supervisor.ports_file(name))),
            *COMMON_FLAGS,
        )

    environment = {**driver.environment(), "LD_LIBRARY_PATH": str(DRIVERS)}
    return DaemonSpec(name, "deviceplugin", arguments, environment)
