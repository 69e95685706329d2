"""The device plugin daemon, put together.

Order at start: read NVML and the configuration, take the node's lock, restore the grants of earlier processes, list the
devices, register. The API server is not needed for any of this.
"""

import asyncio
import contextlib
import importlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import structlog
from prometheus_client import CollectorRegistry

from deviceplugin import footprint, generic, nodeconfig, nodefacts
from deviceplugin.audit import Auditor
from deviceplugin.book import Book, Grant
from deviceplugin.cards import CardWatch, Intervals, Rules
from deviceplugin.cgroups import PodProcesses
from deviceplugin.delivery import Delivery
from deviceplugin.findings import Reporter
from deviceplugin.guard import Guard
from deviceplugin.health import APPLICATION_XIDS, HealthPolicy
from deviceplugin.hints import HintWriter
from deviceplugin.housekeeping import Housekeeper
from deviceplugin.lock import NodeLock
from deviceplugin.metrics import PluginMetrics
from deviceplugin.mps import MpsDaemons
from deviceplugin.node import Node, NodeTools
from deviceplugin.offers import make_offers
from deviceplugin.podresources import PodResources
from deviceplugin.registration import Registrar, remove_stale_sockets
from deviceplugin.settings import PluginSettings
from deviceplugin.slices import SliceBackend
from deviceplugin.tenants import Tenant
from gpuslice.devices import pods
from gpuslice.devices.decoding import UNREADABLE
from gpuslice.devices.errors import BadConfiguration, GpusliceError
from gpuslice.devices.wholefile import write_whole

if TYPE_CHECKING:
    from deviceplugin.following import Follower

log = structlog.get_logger(__name__)

_CONFIG_LOOK_SECONDS = 2.0
# SIGTERM must be done within two seconds.
_HAND_OVER_SECONDS = 0.9
# A decision that the scheduler makes before it has seen our mark is bound within this time.
_SETTLE_SECONDS = 0.2
# Without a kubelet there is nothing to be first for.
_REGISTER_FIRST_SECONDS = 2.0
_SHRINK_AFTER_SECONDS = (2.0, 5.0, 60.0)


class Daemon:
    """All parts of the daemon and the order in which they come to life."""

    def __init__(self, settings: PluginSettings, registry: CollectorRegistry | None = None) -> None:
        self.settings = settings
        self.registry = registry or CollectorRegistry()
        self.metrics = PluginMetrics(self.registry)
        self._pod_resources = PodResources(settings.pod_resources_socket)
        processes = PodProcesses(settings.cgroup_root, settings.cgroup_prefix)
        self.node = Node(
            settings.node_name,
            NodeTools(
                plugin_directory=settings.device_plugin_dir,
                pod_resources=self._pod_resources,
                delivery=Delivery(settings.state_dir, settings.cdi_dir, settings.library_path),
                guard=Guard(processes),
                reporter=Reporter(self.metrics),
                metrics=self.metrics,
            ),
            settings.scheduler_names,
        )
        self.node.on_pod.append(self._on_pod)
        self.cards = CardWatch(
            settings.state_dir,
            self._changed_wake,
            self.metrics,
            driver_root=settings.driver_root,
            rules=Rules(
                HealthPolicy(
                    ignored_xids=frozenset(settings.ignored_xids) or APPLICATION_XIDS,
                    quiet_seconds=settings.quiet_seconds,
                ),
                Intervals(probe=settings.probe_seconds),
            ),
        )
        self.mps = MpsDaemons(settings.state_dir, settings.mps_daemon, self._changed_wake, self.cards.let_one_process)
        self.backends: dict[str, SliceBackend] = {}
        self.registrars: dict[str, Registrar] = {}
        self.active = False
        """This process holds the node's lock."""
        self._labels: Mapping[str, str] = {}
        self._cordoned: frozenset[str] = frozenset()
        self._leaving = False
        self._wake = asyncio.Event()
        self._outdated = False
        """What the offers are made of has changed."""
        self._lock = NodeLock(settings.state_dir)
        self._restored: dict[str, Grant] = {}
        self._books: dict[str, Book] = {}
        self._generic: list[generic.Description] = []
        self._follower: Follower | None = None
        self._inventory_at = 0.0
        """Loop time at which the cards were known and this process became the active one."""

    # -- life -----------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Read what can be read before this process is the active one.

        Raises:
            GpusliceError: The configuration is wrong, or there is no driver and waiting is not wanted.
        """
        self.settings.state_dir.mkdir(parents=True, exist_ok=True)
        self._labels = self._remembered_labels()
        self.node.settings = self._read_config()
        self._generic = [generic.load(path) for path in self.settings.device_files]
        if self.settings.gpus and not await self.cards.open():
            if self.settings.missing_driver == "fail":
                raise GpusliceError(self.cards.problem)
            log.warning("nvml_unavailable", problem=self.cards.problem)
        self._inventory_at = asyncio.get_running_loop().time()
        self._make_offers()

    async def run(self) -> None:
        """Become the active process and serve until cancelled."""
        if not self._lock.try_acquire():
            await self._lock.acquire()
            self._inventory_at = asyncio.get_running_loop().time()
        self.active = True
        try:
            self.node.delivery.open()
            self._restored = {grant.id: grant for grant in self.node.delivery.load()}
            self.node.delivery.sweep(frozenset(self._restored))
            async with asyncio.TaskGroup() as group:
                self._group = group
                await self._apply()
                group.create_task(self._follow_changes())
                group.create_task(self._follow_config())
                group.create_task(Housekeeper(self.node, self._books, self._freed_wake).run())
                group.create_task(
                    Auditor(self.node, self._books, self.settings.audit_seconds, self.cards.processes).run()
                )
                group.create_task(HintWriter(self.node).run())
                for description in self._generic:
                    await self._add_generic(description)
                if self.settings.gpus:
                    group.create_task(self.cards.run())
                    # First: following loads modules, which holds up whoever is told of the registration after it.
                    group.create_task(self._time_registration())
                    group.create_task(self._follow())
                group.create_task(self._shrink())
        finally:
            await self.mps.close()
            self.node.close()
            await self._pod_resources.close()
            await self.cards.close()
            self._lock.release()

    async def _follow(self) -> None:
        """Follow the API server. Its client is loaded after registration, in a thread: it is half of the start-up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REGISTER_FIRST_SECONDS):
                await self._all_registered()
        following = await asyncio.to_thread(importlib.import_module, "deviceplugin.following")
        self._follower = following.Follower(
            self.node,
            self.settings.kubeconfig,
            self.settings.context,
            wanted=self._wanted,
            on_node=self._on_node,
        )
        await self._follower.run()

    async def _all_registered(self) -> None:
        for registrar in tuple(self.registrars.values()):
            await registrar.registered.wait()

    async def _time_registration(self) -> None:
        await self._all_registered()
        self.metrics.registered_after.set(asyncio.get_running_loop().time() - self._inventory_at)

    def _inventory_changed(self) -> None:
        if self._follower is not None:
            self._follower.inventory_changed()

    async def _shrink(self) -> None:
        """Release the start-up's memory once everything has been loaded and connected."""
        for seconds in _SHRINK_AFTER_SECONDS:
            await asyncio.sleep(seconds)
            footprint.release()

    async def hand_over(self) -> None:
        """Prepare the end of this process: no pod may arrive while nobody is registered, it would fail for good.

        The scheduler is told to place nothing here, and pods that are bound already get their devices first; both
        bounded. The next process publishes its cards as they are.
        """
        if not self.active:
            return
        self._leaving = True
        self._inventory_changed()
        deadline = asyncio.get_running_loop().time() + _HAND_OVER_SECONDS
        await asyncio.sleep(_SETTLE_SECONDS if self.node.follows_pods else 0)
        while any(book.waiting() for book in self._books.values()):
            if asyncio.get_running_loop().time() > deadline:
                return
            await asyncio.sleep(0.005)

    def _disconnected(self) -> None:
        """Let the next process in as soon as the last stream has ended; calls in progress may still finish here.

        Not while MPS daemons run: two for one card would share a directory, and undo each other's compute mode.
        """
        registered = any(registrar.registered.is_set() for registrar in self.registrars.values())
        if self._leaving and not registered and not self.mps.daemons:
            self._lock.release()

    # -- offers ---------------------------------------------------------------------------------------------------

    def _changed_wake(self) -> None:
        self._outdated = True
        self._wake.set()

    def _freed_wake(self) -> None:
        """Have the lists looked at: a slice that is not on offer any more leaves them with its last holder."""
        self._wake.set()

    async def _follow_changes(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._outdated:
                self._outdated = False
                self._make_offers()
                await self._apply()
            else:
                await self._refresh()

    def _make_offers(self) -> None:
        self.node.offers = make_offers(
            self.cards.machine,
            self.node.settings,
            unhealthy={*self.cards.health.sick, *self.mps.not_ready()},
            cordoned=self._cordoned,
        )
        for problem in self.node.offers.problems:
            log.warning("card_not_offered", problem=problem)
        for offer in self.node.offers.by_uuid.values():
            self.metrics.card_healthy.labels(offer.card.uuid).set(offer.card.healthy)

    async def _apply(self) -> None:
        """Bring backends, lists and annotations in line with the offers."""
        # A new daemon is not ready: its card's slices turn healthy when it is.
        self.mps.want(frozenset(u for u, offer in self.node.offers.by_uuid.items() if offer.card.mode == "mps"))
        if self.mps.not_ready():
            self._make_offers()
        if self.settings.gpus:
            for resource in self.node.offers.resources():
                if resource not in self.backends:
                    self._add(resource)
        await self._refresh()
        self._inventory_changed()

    async def _refresh(self) -> None:
        for backend in self.backends.values():
            await backend.refresh()

    def _add(self, resource: str) -> None:
        backend = SliceBackend(resource, self.node)
        backend.take_over(self._restored)
        for tenant in self.node.tenants.values():
            backend.book.see(tenant)
        self.backends[resource] = backend
        self._books[resource] = backend.book
        remove_stale_sockets(self.settings.device_plugin_dir, resource)
        self.registrars[resource] = Registrar(
            backend, self.settings.device_plugin_dir, self.metrics, self._disconnected
        )
        self._group.create_task(self.registrars[resource].run())

    async def _add_generic(self, description: generic.Description) -> None:
        """Serve a described device; it needs neither scheduler nor API server."""
        if description.resource in self.registrars:
            raise BadConfiguration(
                "command line", "--device-files", f"{description.resource} is described twice", "keep one file of it"
            )
        backend = generic.GenericBackend(description)
        await backend.refresh()
        remove_stale_sockets(self.settings.device_plugin_dir, description.resource)
        self.registrars[description.resource] = Registrar(
            backend, self.settings.device_plugin_dir, self.metrics, self._disconnected
        )
        self._group.create_task(backend.run())
        self._group.create_task(self.registrars[description.resource].run())

    def _on_pod(self, tenant: Tenant) -> None:
        for book in self._books.values():
            book.see(tenant)

    def _wanted(self) -> Mapping[str, str] | None:
        if not self.settings.gpus or (self.cards.problem and not self.cards.machine.cards):
            return None
        identity = self.settings.pod_resources_socket.exists()
        cards = self.node.offers.node_cards(self.node.name, identity_known=identity)
        if self._leaving:
            cards = replace(cards, cards=tuple(replace(card, cordoned=True) for card in cards.cards))
        return nodefacts.annotations_of(cards)

    # -- configuration --------------------------------------------------------------------------------------------

    def _on_node(self, node: pods.Node) -> None:
        cordoned = nodefacts.cordoned(node.metadata.annotations)
        if cordoned != self._cordoned:
            log.info("cordon_changed", cards=sorted(cordoned))
            self._cordoned = cordoned
            self._changed_wake()
        labels = dict(node.metadata.labels)
        if labels != self._labels:
            self._labels = labels
            write_whole(self.settings.state_dir / "labels.json", msgspec.json.encode(labels))
            self._reload()

    def _remembered_labels(self) -> Mapping[str, str]:
        """The node's labels as last seen: a restart without an API server keeps its configuration."""
        try:
            return msgspec.json.decode((self.settings.state_dir / "labels.json").read_bytes(), type=dict[str, str])
        except (OSError, *UNREADABLE):
            return {}

    def _read_config(self) -> nodeconfig.NodeSettings:
        return nodeconfig.load(self.settings.node_config, node=self.settings.node_name, labels=self._labels)

    def _reload(self) -> None:
        try:
            fresh = self._read_config()
        except BadConfiguration as error:
            log.error("config_refused", error=str(error))
            self.metrics.reloads.labels("refused").inc()
            return
        if fresh != self.node.settings:
            log.info("config_changed", settings=str(fresh))
            self.metrics.reloads.labels("applied").inc()
            self.node.settings = fresh
            self._changed_wake()

    async def _follow_config(self) -> None:
        """Look at the file every two seconds: a ConfigMap is a symlink that is swapped, which no watch shows well."""
        path = self.settings.node_config
        before = _stamp(path)
        while path is not None:
            await asyncio.sleep(_CONFIG_LOOK_SECONDS)
            if (now := _stamp(path)) != before:
                before = now
                self._reload()


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    try:
        status = path.stat() if path is not None else None
    except OSError:
        return None
    return (status.st_ino, status.st_mtime_ns, status.st_size) if status is not None else None
