"""The whole embedded cluster: control plane and nodes, started and stopped together."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from simulator.demo.control_plane import ControlPlane, control_plane
from simulator.demo.inspection import ContainerOutcome, inspect
from simulator.demo.nodes import NodeSpec, nodes
from simulator.demo.pods import Object, allocation_of
from simulator.demo.report import Report, counted, reason_of
from simulator.kubelet.kubelet import StubKubelet


@dataclass(frozen=True, slots=True)
class Stage:
    """A running cluster."""

    plane: ControlPlane
    kubelets: Mapping[str, StubKubelet]
    report: Report

    async def inspect(self, pods: Sequence[Object]) -> list[ContainerOutcome]:
        """Inspect every GPU container of the pods that run or ran."""
        outcomes: list[ContainerOutcome] = []
        for pod in pods:
            allocation = allocation_of(pod)
            if allocation is None or pod["status"].get("phase") not in ("Running", "Succeeded"):
                continue
            kubelet = self.kubelets[allocation.node]
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            for container, shares in allocation.containers.items():
                outcomes.append(await inspect(kubelet, pod=name, uid=uid, container=container, shares=shares))
        return outcomes

    async def reasons(self, pods: Sequence[Object]) -> Mapping[str, str]:
        """Ask the extender why each placed pod is where it is."""
        port = self.plane.supervisor.ports("extender")["listen"]
        found: dict[str, str] = {}
        async with aiohttp.ClientSession() as session:
            for pod in pods:
                metadata = pod["metadata"]
                url = f"http://127.0.0.1:{port}/decisions/{metadata['namespace']}/{metadata['name']}"
                async with session.get(url) as answer:
                    if answer.status == 200:
                        found[metadata["name"]] = reason_of(await answer.json())
        return found


@asynccontextmanager
async def stage(folder: Path, specs: Sequence[NodeSpec], report: Report) -> AsyncIterator[Stage]:
    """Run a cluster below ``folder``; ready when entered, gone when left."""
    async with AsyncExitStack() as stack:
        with report.step("started API server, webhook, extender and scheduler"):
            plane = await stack.enter_async_context(control_plane(folder))
        with report.step(f"started {counted(len(specs), 'node')}, a kubelet and a device plugin each"):
            kubelets = await stack.enter_async_context(nodes(plane, specs))
        yield Stage(plane, kubelets, report)
