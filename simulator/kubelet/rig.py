"""One node in one process: stub kubelet, plugin core and an in-memory pod list, over real sockets.

For tests and benchmarks: cards are given as data instead of through NVML, everything else is what the daemon runs.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from deviceplugin.audit import Auditor
from deviceplugin.book import Book
from deviceplugin.cgroups import PodProcesses
from deviceplugin.delivery import Delivery
from deviceplugin.findings import Reporter
from deviceplugin.guard import Guard
from deviceplugin.housekeeping import Housekeeper
from deviceplugin.metrics import PluginMetrics
from deviceplugin.node import Node, NodeTools
from deviceplugin.nodeconfig import NodeSettings
from deviceplugin.offers import GPU_RESOURCE, make_offers
from deviceplugin.podresources import PodResources
from deviceplugin.registration import Registrar
from deviceplugin.slices import SliceBackend
from deviceplugin.tenants import Tenant
from gpuslice.devices import annotations
from gpuslice.devices.allocation import PodAllocation, SliceShare
from gpuslice.devices.inventory import slice_id
from gpuslice.nvml.inventory import Machine, PhysicalCard
from simulator.kubelet.kubelet import Behaviour, Layout, StubKubelet
from simulator.kubelet.local import LocalApi
from simulator.kubelet.podworker import Pace

NODE = "n1"
SCHEDULER = "gpuslice-scheduler"
FAST = Pace(start_retry=0.1, restart_backoff=0.05, force_delete_overlap=0.5, node_status=0.5, first_admission=0.0)


def gpu(number: int) -> str:
    """Return the UUID of a card."""
    return f"GPU-00000000-0000-4000-8000-{number:012d}"


def at(card: int, number: int) -> str:
    """Return the name of a slice of a card."""
    return slice_id(gpu(card), number)


def machine(count: int = 4, memory_mib: int = 40_000) -> Machine:
    """Return a machine of equal cards, `gpu(0)` and on."""
    cards = tuple(
        PhysicalCard(uuid=gpu(n), index=n, model="NVIDIA A100", memory_mib=memory_mib, numa=n % 2, minor=n)
        for n in range(count)
    )
    return Machine("580.65.06", cards)


@dataclass(slots=True)
class Plugin:
    """One incarnation of the plugin: what the daemon builds, without NVML and API server."""

    layout: Layout
    state: Path
    api: LocalApi
    machine: Machine
    settings: NodeSettings
    guard_seconds: float = 5.0
    node: Node = field(init=False)
    backend: SliceBackend = field(init=False)
    registrar: Registrar = field(init=False)
    housekeeper: Housekeeper = field(init=False)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Build the parts, and take over what earlier incarnations left."""
        metrics = PluginMetrics(self.registry)
        delivery = Delivery(self.state, self.layout.cdi, self.state / "libvgpu.so")
        tools = NodeTools(
            plugin_directory=self.layout.plugins,
            pod_resources=PodResources(self.layout.pod_resources),
            delivery=delivery,
            guard=Guard(PodProcesses(self.layout.cgroups), wait_seconds=self.guard_seconds),
            reporter=Reporter(metrics),
            metrics=metrics,
        )
        delivery.open()
        self.node = Node(NODE, tools, [SCHEDULER])
        self.node.settings = self.settings
        self.node.offers = make_offers(self.machine, self.settings)
        self.backend = SliceBackend(GPU_RESOURCE, self.node)
        self.node.on_pod.append(self._on_pod)
        self.backend.take_over({grant.id: grant for grant in delivery.load()})
        self.housekeeper = Housekeeper(self.node, self.books, lambda: None)
        self.registrar = Registrar(self.backend, self.layout.plugins, metrics)

    def _on_pod(self, tenant: Tenant) -> None:
        self.backend.book.see(tenant)

    @property
    def books(self) -> Mapping[str, Book]:
        """The books by resource."""
        return {GPU_RESOURCE: self.backend.book}

    async def start(self) -> None:
        """List the devices and register; return once the kubelet follows the list."""
        self.api.connect(self.node.see_pod, lambda uid: self.node.lose_pods([uid]))
        self.node.pods_listed()
        await self.backend.refresh()
        self.tasks = [
            asyncio.create_task(self.registrar.run()),
            asyncio.create_task(self.housekeeper.run()),
        ]
        async with asyncio.timeout(10):
            await self.registrar.registered.wait()

    async def stop(self) -> None:
        """End the streams and stop."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.node.close()
        await self.node.pod_resources.close()

    async def offer(self, changed: Machine | None = None, unhealthy: Sequence[str] = ()) -> None:
        """Change what the node offers."""
        self.machine = changed or self.machine
        self.node.offers = make_offers(self.machine, self.node.settings, unhealthy=unhealthy)
        await self.backend.refresh()

    def auditor(self) -> Auditor:
        """Return an auditor to be run by hand."""
        return Auditor(self.node, self.books, 5.0)

    def count(self, metric: str, **labels: str) -> float:
        """Return a metric's value; 0 when it was never touched."""
        return self.registry.get_sample_value(f"gpuslice_plugin_{metric}", labels) or 0.0


@dataclass(slots=True)
class Rig:
    """Kubelet, pod list and the present plugin."""

    kubelet: StubKubelet
    api: LocalApi
    plugin: Plugin

    def new_plugin(self, **changes: Any) -> Plugin:  # noqa: ANN401  any field of Plugin
        """Build another incarnation over the same state; it is not started."""
        old = self.plugin
        fresh = {"machine": old.machine, "settings": old.settings, "guard_seconds": old.guard_seconds, **changes}
        return Plugin(old.layout, old.state, old.api, **fresh)

    async def replace_plugin(self, **changes: Any) -> Plugin:  # noqa: ANN401
        """Stop the plugin and start a new incarnation."""
        await self.plugin.stop()
        self.plugin = self.new_plugin(**changes)
        await self.plugin.start()
        return self.plugin

    async def replace_plugin_while_down(self) -> None:
        """Build a new incarnation while the kubelet is down, then bring the kubelet back."""
        await self.plugin.stop()
        self.plugin = self.new_plugin()
        await self.kubelet.start()
        await self.plugin.start()

    async def running(self, *uids: str) -> None:
        """Wait until all these pods run."""
        await self.api.until(lambda: all(self.api.phase(uid) in ("Running", "Succeeded") for uid in uids))

    async def printed(self, uid: str, container: str, word: str) -> None:
        """Wait until a container has printed a word: it runs, and has come as far as that."""
        log_file = self.kubelet.container(uid, container).log_file
        await self.api.until(lambda: word in log_file.read_text(errors="replace"))

    async def listed(self) -> None:
        """Wait until the kubelet has the plugin's present list."""
        wanted = self.plugin.backend.devices.ids

        def same() -> bool:
            endpoint = self.kubelet.manager.endpoints.get(GPU_RESOURCE)
            return endpoint is not None and endpoint.healthy | endpoint.unhealthy == wanted

        await self.api.until(same)

    def env(self, uid: str, container: str) -> dict[str, str]:
        """Return the environment that a container was created with."""
        return self.kubelet.container(uid, container).creation.env

    def cards(self, uid: str, container: str) -> list[str]:
        """Return the cards that a container sees, in order."""
        return self.env(uid, container)["NVIDIA_VISIBLE_DEVICES"].split(",")


@contextlib.asynccontextmanager
async def node_rig(
    root: Path,
    *,
    behaviour: Behaviour | None = None,
    cards: Machine | None = None,
    settings: NodeSettings | None = None,
    guard_seconds: float = 5.0,
) -> AsyncIterator[Rig]:
    """Run a node with a registered plugin."""
    api = LocalApi()
    behaviour = behaviour or Behaviour(pace=FAST)
    kubelet = StubKubelet(NODE, root / "k", api, behaviour=behaviour)
    await kubelet.start()
    state = root / "s"
    state.mkdir(exist_ok=True)
    (state / "libvgpu.so").touch()
    plugin = Plugin(kubelet.layout, state, api, cards or machine(), settings or NodeSettings(), guard_seconds)
    await plugin.start()
    rig = Rig(kubelet, api, plugin)
    await rig.listed()
    try:
        yield rig
    finally:
        await rig.plugin.stop()
        await rig.kubelet.shut_down()


@dataclass(frozen=True, slots=True)
class Ask:
    """One container of a pod under test."""

    name: str
    slices: tuple[str, ...] = ()
    memory_mib: int = 1000
    cores: int = 0
    init: bool = False
    sidecar: bool = False
    command: tuple[str, ...] = ("sleep", "1000")
    env: Mapping[str, str] = field(default_factory=dict)
    resource: str = GPU_RESOURCE

    def body(self) -> dict[str, Any]:
        """Return the container of the pod object."""
        body: dict[str, Any] = {"name": self.name, "command": list(self.command)}
        if self.slices:
            body["resources"] = {"limits": {self.resource: len(self.slices)}}
        if self.env:
            body["env"] = [{"name": name, "value": value} for name, value in self.env.items()]
        if self.sidecar:
            body["restartPolicy"] = "Always"
        return body

    def shares(self) -> tuple[SliceShare, ...]:
        """Return the scheduler's decision."""
        return tuple(SliceShare(name, self.memory_mib, self.cores) for name in self.slices)


def pod(
    name: str,
    *asks: Ask,
    node: str = NODE,
    reserved: bool = True,
    restart_policy: str = "Never",
    scheduler: str = SCHEDULER,
) -> dict[str, Any]:
    """Return a bound pod; `reserved` False leaves the scheduler's decision out."""
    metadata: dict[str, Any] = {"name": name, "namespace": "default"}
    if reserved:
        decision = PodAllocation(node, {ask.name: ask.shares() for ask in asks if ask.slices})
        metadata["annotations"] = {annotations.ALLOCATION: annotations.encode_allocation(decision)}
    return {
        "metadata": metadata,
        "spec": {
            "nodeName": NODE,
            "schedulerName": scheduler,
            "restartPolicy": restart_policy,
            "terminationGracePeriodSeconds": 1,
            "initContainers": [ask.body() for ask in asks if ask.init or ask.sidecar],
            "containers": [ask.body() for ask in asks if not (ask.init or ask.sidecar)],
        },
    }


def quick(ask: Ask) -> Ask:
    """Return the container with a command that ends at once."""
    return replace(ask, command=("true",))
