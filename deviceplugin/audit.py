"""A regular comparison of all the books.

What the scheduler wrote, what the kubelet recorded, what we delivered, and which processes are on the cards: one card
in two hands always shows as a difference between two of them.

The kubelet is asked through its checkpoint only: a podresources List at the wrong moment can itself cause a duplicate.
Deliberate sharing (many slices of one card) is no difference.
"""

import asyncio
import os
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from deviceplugin import checkpoint, sharing
from deviceplugin.beat import next_beat
from deviceplugin.book import Book
from deviceplugin.findings import Finding
from deviceplugin.node import Node
from deviceplugin.offers import Offers
from deviceplugin.tenants import Tenant
from gpuslice.devices.requests import Role
from gpuslice.nvml.processes import CardProcess

log = structlog.get_logger(__name__)

KINDS = frozenset({"same-id", "same-slice", "wrong-answer", "forgotten", "overload", "foreign-process"})


@dataclass(frozen=True, slots=True)
class View:
    """Everything one audit compares."""

    tenants: Mapping[str, Tenant]
    """By UID, terminal ones included."""
    entries: Sequence[checkpoint.Entry]
    offers: Offers
    lives: Callable[[str], bool]
    """Whether a pod has processes."""
    processes: Sequence[CardProcess] = ()
    pod_of: Mapping[int, str] | None = None
    """Process id to pod UID."""
    bystanders: Mapping[str, Tenant] = field(default_factory=dict)
    """Pods that need no card, by UID."""


def findings(view: View) -> Iterator[Finding]:
    """Yield every difference, most serious first."""
    yield from _same_slice(view)
    yield from _same_id(view)
    yield from _wrong_answer(view)
    yield from _foreign_processes(view)
    yield from _overload(view)
    yield from _forgotten(view)


def _living(view: View, uid: str) -> bool:
    tenant = view.tenants.get(uid)
    return view.lives(uid) or (tenant is not None and not tenant.terminal)


def _name(view: View, uid: str) -> str:
    tenant = view.tenants.get(uid) or view.bystanders.get(uid)
    return f"pod {tenant.full_name} (uid {uid})" if tenant else f"a pod with uid {uid}"


def _same_slice(view: View) -> Iterator[Finding]:
    """Two living pods whose reservations hold one slice: the scheduler's record diverged."""
    holders: dict[str, list[str]] = defaultdict(list)
    for uid, tenant in view.tenants.items():
        if not tenant.terminal:
            for name in dict.fromkeys(tenant.slices):
                holders[name].append(uid)
    for name, uids in sorted(holders.items()):
        if len(uids) > 1:
            pods = " and ".join(_name(view, uid) for uid in uids)
            yield Finding("same-slice", name, tuple(uids), f"slice {name} is reserved for {pods}; delete one of them")


def _same_id(view: View) -> Iterator[Finding]:
    """Two living pods to whom the kubelet gave one device ID: its record was lost, or it freed too early."""
    holders: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for entry in view.entries:
        for device in entry.ids:
            holders[entry.resource, device][entry.uid] = None
    # Whether a pod lives is asked of the file system, so only of those that matter: most entries are of pods long gone.
    for (resource, device), recorded in sorted(item for item in holders.items() if len(item[1]) > 1):
        uids = [uid for uid in recorded if _living(view, uid)]
        if len(uids) > 1:
            pods = " and ".join(_name(view, uid) for uid in uids)
            yield Finding("same-id", device, tuple(uids), f"the kubelet gave {resource} {device} to {pods}; delete one")


def _wrong_answer(view: View) -> Iterator[Finding]:
    """A container whose recorded answer names other cards than its reservation."""
    for entry in view.entries:
        tenant = view.tenants.get(entry.uid)
        if tenant is None or tenant.terminal or not tenant.managed:
            continue
        visible = entry.env().get("NVIDIA_VISIBLE_DEVICES", "")
        if not visible.startswith(("GPU-", "MIG-")):
            continue
        need = next((n for n in tenant.of(entry.resource) if n.container == entry.container), None)
        promised = [share.card for share in need.shares] if need else []
        if need is not None and visible.split(",") != promised:
            victims = _holders_of(view, visible.split(","), entry.uid)
            others = " and ".join(_name(view, uid) for uid in victims) or "nobody"
            yield Finding(
                "wrong-answer", entry.container, (entry.uid, *victims),
                f"container {entry.container} of {_name(view, entry.uid)} sees cards {visible}, but was promised "
                f"{','.join(promised)}; {others} holds a share of what it sees; delete the pod",
            )  # fmt: skip


def _holders_of(view: View, cards: Sequence[str], but: str) -> list[str]:
    wanted = set(cards)
    return [
        uid for uid, tenant in view.tenants.items()
        if uid != but and not tenant.terminal and wanted & tenant.cards
    ]  # fmt: skip


def _foreign_processes(view: View) -> Iterator[Finding]:
    """A pod's process on a card of which the pod holds no share: sharing without isolation."""
    seen = set()
    for process in view.processes:
        uid = (view.pod_of or {}).get(process.pid)
        if uid is None or (uid, process.uuid) in seen:
            continue
        seen.add((uid, process.uuid))
        tenant = view.tenants.get(uid)
        if tenant is not None and process.uuid in tenant.cards:
            continue
        holders = _holders_of(view, [process.uuid], uid)
        if tenant is None and not holders:
            continue
        others = " and ".join(_name(view, holder) for holder in holders) or "nobody"
        yield Finding(
            "foreign-process", process.uuid, (*holders, uid),
            f"process {process.pid} of {_name(view, uid)} runs on card {process.uuid}, which belongs to {others}; "
            f"delete {_name(view, uid)}",
        )  # fmt: skip


def _overload(view: View) -> Iterator[Finding]:
    by_card: dict[str, dict[str, Tenant]] = defaultdict(dict)
    for uid, tenant in view.tenants.items():
        for uuid in () if tenant.terminal else tenant.cards:
            by_card[uuid][uid] = tenant
    for uuid, offer in view.offers.by_uuid.items():
        holders = [(uid, *tenant.share_of(uuid)) for uid, tenant in by_card.get(uuid, {}).items()]
        memory, cores = sum(share[1] for share in holders), sum(share[2] for share in holders)
        if memory > offer.card.memory_mib or cores > offer.card.cores:
            pods = " and ".join(_name(view, uid) for uid, *_ in holders)
            yield Finding(
                "overload", uuid, tuple(uid for uid, *_ in holders),
                f"card {uuid} is promised beyond what it has ({memory} of {offer.card.memory_mib} MiB, {cores} of "
                f"{offer.card.cores} percent) to {pods}; delete one of them",
            )  # fmt: skip


def _forgotten(view: View) -> Iterator[Finding]:
    """A running container that the kubelet has no record of: it will offer the same devices again."""
    recorded = {(entry.uid, entry.container) for entry in view.entries}
    for uid, tenant in view.tenants.items():
        if tenant.terminal:
            continue
        for need in tenant.needs:
            if need.role is Role.INIT or need.container not in tenant.started or (uid, need.container) in recorded:
                continue
            if not view.lives(uid):
                break
            yield Finding(
                "forgotten", need.container, (uid,),
                f"the kubelet has no record of the devices of running container {need.container} of "
                f"{_name(view, uid)}: its checkpoint was lost. The devices are kept for this pod; it must be created "
                "anew to restart",
            )  # fmt: skip


class Auditor:
    """Runs the comparison every few seconds and reports what it finds."""

    def __init__(
        self,
        node: Node,
        books: Mapping[str, Book],
        every_seconds: float,
        processes: Callable[[], Awaitable[Sequence[CardProcess]]] | None = None,
    ) -> None:
        self._node = node
        self._books = books
        self._every_seconds = every_seconds
        self._processes = processes
        self._checkpoint = checkpoint.Kept(node.plugin_directory)
        self._entries: Sequence[checkpoint.Entry] | None = None
        self._own: list[checkpoint.Entry] = []
        """Of these, the answers that we gave."""

    async def run(self) -> None:
        """Audit until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(next_beat(clock(), self._every_seconds) - clock())
            await self.look()

    async def look(self) -> list[Finding]:
        """Audit once; return the findings."""
        node = self._node
        if not node.follows_pods:
            return []
        await node.turns.wait()
        entries = await self._checkpoint.read()
        if entries is not self._entries:
            self._entries = entries
            self._own = [entry for entry in entries or () if entry.env().get(sharing.GRANT_VARIABLE)]
        own = self._own
        # Where nobody holds a share there is nobody to tell of a process.
        processes = await self._processes() if self._processes is not None and node.tenants else ()
        pod_of = self._pods_of(processes, {entry.uid for entry in own})
        view = View(node.tenants, own, node.offers, node.guard.lives, processes, pod_of, node.bystanders)
        found = list(findings(view))
        for finding in found:
            node.reporter.report(finding, {**node.bystanders, **node.tenants})
        node.reporter.over({(f.kind, f.subject, f.uids) for f in found}, KINDS)
        for kind in KINDS:
            node.metrics.drift.labels(kind).set(sum(finding.kind == kind for finding in found))
        return found

    def _pods_of(self, processes: Sequence[CardProcess], recorded: Collection[str]) -> dict[int, str]:
        """Return process id to pod UID: of pods with a share, and only where these do not explain all, of others.

        The daemon's own pod is none of them: the MPS daemons of its cards run there.
        """
        guard = self._node.guard
        found: dict[int, str] = {}
        for holders in (self._node.tenants, set(recorded).difference(self._node.tenants)):
            if all(process.pid in found for process in processes):
                return found
            found.update(guard.pods_by_process(holders))
        if all(process.pid in found for process in processes):
            return found
        others = guard.pods_by_process(self._node.bystanders)
        mine = others.get(os.getpid())
        return {**{pid: uid for pid, uid in others.items() if uid != mine}, **found}
