"""What all resources of this node share: its cards, its configuration, its pods, and the means to act."""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from deviceplugin import sharing
from deviceplugin.book import Grant
from deviceplugin.delivery import Delivery
from deviceplugin.filethread import FileThread
from deviceplugin.findings import Finding, Reporter
from deviceplugin.guard import Conflict, Guard
from deviceplugin.limitfile import limits_of
from deviceplugin.metrics import PluginMetrics
from deviceplugin.nodeconfig import NodeSettings
from deviceplugin.offers import GPU_RESOURCE, Offers
from deviceplugin.podresources import PodResources
from deviceplugin.tenants import Holders, Tenant, asks_the_same, in_state_of, read_tenant
from gpuslice.devices.limits import DeviceLimit
from gpuslice.devices.pods import Pod

log = structlog.get_logger(__name__)

# The kubelet's Allocate follows its GetPreferredAllocation within one or two milliseconds.
_EXPECT_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class NodeTools:
    """What the node needs from outside; tests put their own in."""

    plugin_directory: Path
    pod_resources: PodResources
    delivery: Delivery
    guard: Guard
    reporter: Reporter
    metrics: PluginMetrics


class Turns:
    """Lets one of the tasks that wait here go on in each round of the event loop, and none while an Allocate is due.

    Container starts come in crowds, and each computes for about a millisecond. The kubelet admits one pod after the
    other, each with a GetPreferredAllocation and an Allocate right after it: all other pods wait for those.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._free = asyncio.Event()
        self._free.set()
        self._until = 0.0
        """Loop time at which nobody is held back any more."""

    def expect(self) -> None:
        """Hold everybody back until :meth:`arrived`, but not for long: the kubelet may have died."""
        self._free.clear()
        self._until = asyncio.get_running_loop().time() + _EXPECT_SECONDS

    def arrived(self) -> None:
        """Let them go on."""
        self._free.set()

    async def wait(self) -> None:
        """Return when it is the caller's turn, in the order of coming."""
        async with self._lock:
            loop = asyncio.get_running_loop()
            while not self._free.is_set() and loop.time() < self._until:
                # A timer where somebody waits, not for each call: it would wake the event loop for nobody. It opens
                # nothing: another Allocate may be due by then.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(self._until):
                        await self._free.wait()
            await asyncio.sleep(0)


class Node:
    """The node's state. Changed on the event loop only."""

    def __init__(self, name: str, tools: NodeTools, schedulers: Collection[str] = ()) -> None:
        self.name = name
        self._schedulers = frozenset(schedulers)
        self.plugin_directory = tools.plugin_directory
        self.pod_resources = tools.pod_resources
        self.delivery = tools.delivery
        self.guard = tools.guard
        self.reporter = tools.reporter
        self.metrics = tools.metrics
        self.settings = NodeSettings()
        self.offers = Offers({})
        self.tenants: dict[str, Tenant] = {}
        self.holders = Holders()
        """The same by card."""
        self._seen: dict[str, tuple[Pod, Offers]] = {}
        """By UID of a tenant, what it was last read from."""
        self.bystanders: dict[str, Tenant] = {}
        """Pods of this node that need nothing of it, by UID: an audit may find one on a card."""
        self.follows_pods = False
        """The watch has delivered its first list; before that an unknown pod says nothing."""
        self.pods_changed = 0
        self.on_pod: list[Callable[[Tenant], None]] = []
        self.turns = Turns()
        self.limits: dict[str, tuple[DeviceLimit, ...]] = {}
        """By grant, the limits that its container's shim enforces."""
        self.limits_changed = asyncio.Event()
        self._pods: asyncio.Event | None = None
        """Set at the next change, where anybody waits for it; each change has its own."""
        self._files = FileThread()

    # -- pods -----------------------------------------------------------------------------------------------------

    def resources(self) -> frozenset[str]:
        """Resource names that pods may ask of this node."""
        return frozenset(self.offers.resources()) | {GPU_RESOURCE}

    def see_pod(self, pod: Pod) -> None:
        """Take in a new or changed pod."""
        uid = pod.metadata.uid
        known, tenant = self.tenants.get(uid), self._read(pod)
        if tenant is None:
            metadata = pod.metadata
            self.bystanders[uid] = Tenant(uid, metadata.namespace, metadata.name, ())
            return
        self._seen[uid] = (pod, self.offers)
        self.bystanders.pop(uid, None)
        if tenant is known or tenant == known:
            # Most changes of a pod are of its conditions.
            return
        self.tenants[uid] = tenant
        self.holders.replace(known, tenant)
        for handler in self.on_pod:
            handler(tenant)
        self._notify()

    def _read(self, pod: Pod) -> Tenant | None:
        """Read a pod; of one that is known and has changed in its state only, just that."""
        uid = pod.metadata.uid
        before, offers = self._seen.get(uid, (None, None))
        if before is not None and offers is self.offers and asks_the_same(pod, before):
            return in_state_of(self.tenants[uid], pod)
        return read_tenant(pod, node=self.name, resources=self.resources(), schedulers=self._schedulers)

    def lose_pods(self, uids: Iterable[str]) -> None:
        """Take note that pod objects are gone. Their grants end when their processes have (see the housekeeper)."""
        for uid in uids:
            self.holders.replace(self.tenants.pop(uid, None), None)
            self._seen.pop(uid, None)
            self.bystanders.pop(uid, None)
        self._notify()

    def pods_listed(self) -> None:
        """Take note that our view of the pods is complete."""
        self.follows_pods = True
        self._notify()

    def _notify(self) -> None:
        self.pods_changed += 1
        if self._pods is not None:
            self._pods.set()
            self._pods = None

    async def wait_for_pods(self, seen: int) -> int:
        """Wait until the pods have changed since `seen` and return the new mark."""
        while self.pods_changed == seen:
            self._pods = self._pods or asyncio.Event()
            await self._pods.wait()
        return self.pods_changed

    def has_started(self, uid: str) -> bool:
        """Tell whether a pod was let through to start here."""
        return self.guard.has_started(uid)

    # -- delivery -------------------------------------------------------------------------------------------------

    async def deliver(self, grant: Grant) -> None:
        """Write the files on their own thread, one grant after the other: nobody's Allocate waits for a disk."""
        enforced = await self._files.call(partial(self._write, grant))
        self._note_limits(grant, enforced)

    def discard(self, grant_ids: Iterable[str]) -> None:
        """Remove the files of grants that have ended, some time soon, on the same thread."""
        for grant_id in grant_ids:
            self._files.soon(partial(self.delivery.remove, grant_id))
            if self.limits.pop(grant_id, None):
                self.limits_changed.set()

    def close(self) -> None:
        """Finish what is to be written and removed, and stop the thread of the files."""
        self._files.close()

    def put_in_place(self, grant: Grant) -> None:
        """Write the files that the grant's container is to see, here and now."""
        self._note_limits(grant, self._write(grant))

    def _note_limits(self, grant: Grant, enforced: tuple[DeviceLimit, ...]) -> None:
        if enforced and self.limits.get(grant.id) != enforced:
            self.limits[grant.id] = enforced
            self.limits_changed.set()

    def _write(self, grant: Grant) -> tuple[DeviceLimit, ...]:
        paths = self.delivery.paths(grant.id)
        edits = sharing.describe(grant, self.offers, self.settings, paths)
        enforced: tuple[DeviceLimit, ...] = ()
        if sharing.enforced_by_shim(self.offers, grant):
            enforced = limits_of(grant, self.settings.core_policy)
        self.delivery.deliver(grant, edits if grant.late else None, enforced)
        return enforced

    # -- reports --------------------------------------------------------------------------------------------------

    def pod_name(self, uid: str) -> str:
        """Return ``namespace/name`` of a pod, or its UID when it is not known."""
        tenant = self.tenants.get(uid)
        return tenant.full_name if tenant is not None else uid

    def report_conflict(self, conflict: Conflict) -> str:
        """Report two pods on one slice to everybody; return the text for the pod that waits."""
        first, second = self.pod_name(conflict.first), self.pod_name(conflict.second)
        text = (
            f"slice {conflict.slice} belongs to pod {first} (uid {conflict.first}), which still lives; pod {second} "
            f"(uid {conflict.second}) is not started on it. Delete one of the two pods"
        )
        self.reporter.report(
            Finding("same-slice", conflict.slice, (conflict.first, conflict.second), text), self.tenants
        )
        return text

    def report_lingering(self, tenant: Tenant, slices: Iterable[str]) -> None:
        """Report that a deleted pod's processes keep a new pod waiting."""
        for name in slices:
            owner = self.guard.owners.get(name)
            if owner is not None and owner.uid != tenant.uid and self.guard.lives(owner.uid):
                text = (
                    f"pod {tenant.full_name} waits for slice {name}: deleted pod {owner.pod} still runs processes on it"
                )
                self.reporter.report(Finding("lingering", name, (owner.uid, tenant.uid), text), self.tenants)
