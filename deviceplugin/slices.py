"""The GPU backend: one resource's slices, handed to exactly the containers the scheduler chose them for."""

import asyncio
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import structlog
from prometheus_client import Counter

from deviceplugin import checkpoint, offers, sharing
from deviceplugin.backend import Edits, Refused
from deviceplugin.book import Book, Foreseen, Grant, Identity
from deviceplugin.devicelist import DeviceList
from deviceplugin.guard import Owner, conflicts, overload
from deviceplugin.node import Node
from deviceplugin.nodeconfig import NodeSettings
from deviceplugin.offers import Offers
from deviceplugin.tenants import Tenant
from gpuslice.devices.allocation import SliceShare
from gpuslice.devices.errors import BadConfiguration
from gpuslice.devices.value import Value

log = structlog.get_logger(__name__)

# The watch is usually ahead of the kubelet, in a burst up to 9 ms behind it.
_WATCH_SECONDS = 2.0
_LIST_AGAIN_SECONDS = 0.01


class _Start(Value, frozen=True):
    """A container that may be the one about to start."""

    grant: Grant
    tenant: Tenant | None
    """None: the pod is not in our view any more, and the grant was confirmed before."""


class _Ahead(Value, frozen=True):
    """An answer to Allocate, and what it was made of."""

    foreseen: Foreseen
    edits: Edits
    settings: NodeSettings
    offers: Offers
    list_version: int


class SliceBackend:
    """Serves one resource of the node."""

    def __init__(self, resource: str, node: Node) -> None:
        self.resource = resource
        self.devices = DeviceList(resource)
        self.book = Book(resource)
        self._node = node
        self._listed = False
        """podresources answered in the last GetPreferredAllocation."""
        self._ahead: _Ahead | None = None
        self._counters: dict[tuple[Counter, str], Counter] = {}

    def _count(self, counter: Counter, outcome: str) -> None:
        """Count one outcome for this resource; of the labels a counter is looked up by, most take longer to prepare."""
        one = self._counters.get((counter, outcome))
        if one is None:
            one = self._counters[counter, outcome] = counter.labels(self.resource, outcome)
        one.inc()

    # -- the list -------------------------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Publish the device list if it changed."""
        node = self._node
        wanted = offers.device_list(node.offers, self.resource, self.book.held(), numa=node.settings.numa)
        try:
            await self.devices.publish(wanted)
        except BadConfiguration as error:
            log.error("list_not_published", resource=self.resource, error=str(error))
            return
        healthy = sum(device.healthy for device in self.devices.devices)
        node.metrics.slices.labels(self.resource, "healthy").set(healthy)
        node.metrics.slices.labels(self.resource, "unhealthy").set(len(self.devices.devices) - healthy)

    # -- GetPreferredAllocation -----------------------------------------------------------------------------------

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Find out who is being admitted and name exactly that container's slices."""
        listing = await self._node.pod_resources.list(self.resource)
        self._listed = listing is not None
        admission = self.book.admission(listing)
        if admission.tenant is None:
            # The kubelet may be ahead of our watch.
            seen = self._node.pods_changed
            try:
                async with asyncio.timeout(_WATCH_SECONDS):
                    while admission.tenant is None:
                        seen = await self._node.wait_for_pods(seen)
                        admission = self.book.admission(listing)
            except TimeoutError:
                log.warning("admission_unknown", resource=self.resource, size=size)
        preferred = self.book.prefer(admission, available, must_include, size).ids
        self._answer_ahead()
        self._node.turns.expect()
        return preferred

    def _answer_ahead(self) -> None:
        """Prepare the answer to the Allocate that is about to come: a pod is waiting for that one."""
        node = self._node
        strategy = node.settings.device_list_strategy
        self._ahead = None
        if not sharing.names_cards_late(strategy):
            return
        foreseen = self.book.foresee(secrets.token_hex(8), late=True, modes_of=self._modes)
        if foreseen is not None and foreseen.grant.ids <= self.devices.ids:
            edits = sharing.late_answer(foreseen.grant, strategy)
            self._ahead = _Ahead(foreseen, edits, node.settings, node.offers, self.devices.version)

    @property
    def expected(self) -> Edits | None:
        """What the next Allocate is answered if the kubelet takes what was preferred, as far as that is known."""
        return self._ahead.edits if self._ahead is not None else None

    def _answered_ahead(self, ids: Collection[str]) -> _Ahead | None:
        """Return the prepared answer, if nothing has changed that it was made of."""
        ahead, self._ahead = self._ahead, None
        node = self._node
        if ahead is None or ahead.settings is not node.settings or ahead.list_version != self.devices.version:
            return None
        same = ahead.offers is node.offers and self.book.allocate_as_foreseen(ahead.foreseen, ids)
        return ahead if same else None

    # -- Allocate -------------------------------------------------------------------------------------------------

    def allocate(self, ids: Sequence[str]) -> Edits:
        """Answer from the book alone: no file, no call.

        The directory that the answer names is made in PreStartContainer, which always comes before the container is
        created; should this process end in between, the kubelet's checkpoint still has the grant's name.
        """
        self._node.turns.arrived()
        wanted = frozenset(ids)
        if not wanted or len(wanted) != len(ids):
            raise Refused(f"{self.resource}: the kubelet asked for no device, or for one device twice: {sorted(ids)}")
        if ahead := self._answered_ahead(wanted):
            # The answer is on its way by then.
            asyncio.get_running_loop().call_soon(self._note_allocated, ahead.foreseen.grant)
            return ahead.edits
        if unknown := sorted(wanted - self.devices.ids):
            raise Refused(f"{self.resource}: unknown devices {', '.join(unknown[:5])}; the kubelet's list is outdated")
        node = self._node
        strategy = node.settings.device_list_strategy
        late = sharing.names_cards_late(strategy)
        grant = self.book.allocate(ids, secrets.token_hex(8), late=late, modes_of=self._modes)
        tenant = self.book.tenants.get(grant.uid)
        if tenant is None or not tenant.managed:
            grant = self._unmanaged(grant, tenant)
            grant = self.book.settle(grant.id, late=late, modes=self._modes(grant.shares))
        if not late:
            grant = self.book.name(grant.id)
        self._note_allocated(grant)
        if late:
            return sharing.late_answer(grant, strategy)
        edits = sharing.describe(grant, node.offers, node.settings, node.delivery.paths(grant.id))
        return sharing.early_answer(grant, edits, strategy)

    def _note_allocated(self, grant: Grant) -> None:
        self._count(self._node.metrics.identity, grant.identity.value)
        exact = grant.ids == {share.slice for share in grant.shares}
        self._count(self._node.metrics.steered, "exact" if exact else "other")
        log.info("allocated", pod=grant.pod, container=grant.container, grant=grant.id, identity=grant.identity.value)

    def _modes(self, shares: Iterable[SliceShare]) -> dict[str, str]:
        by_uuid = self._node.offers.by_uuid
        cards = [share.card for share in shares]
        return {uuid: offer.card.mode for uuid in cards if (offer := by_uuid.get(uuid)) is not None}

    def _unmanaged(self, grant: Grant, tenant: Tenant | None) -> Grant:
        """Apply the node's policy to a pod that our scheduler did not place here.

        Where nobody said who is being admitted, or our view does not have that pod (the API server is out of reach, or
        slow), it may still be one of ours, which an error here would fail for good: then only PreStartContainer, which
        knows and is tried again, may refuse.
        """
        if self._node.settings.unmanaged == "deny":
            late = sharing.names_cards_late(self._node.settings.device_list_strategy)
            if late and (tenant is None or not self._listed):
                return grant
            self.book.withdraw(grant.id)
            raise Refused(
                tenant.problem
                if tenant is not None
                else f"{self.resource}: no pod that the gpuslice scheduler placed here waits for these devices; "
                "set spec.schedulerName to gpuslice-scheduler (the webhook does it) and create the pod again"
            )
        taken = self.book.owners()
        if foreign := sorted(i for i in grant.ids if taken.get(i, grant.uid) != grant.uid):
            self.book.withdraw(grant.id)
            raise Refused(f"{self.resource}: device {foreign[0]} is reserved for another pod; create the pod again")
        return self.book.amend(grant.id, self._plain_shares(grant.ids), Identity.UNMANAGED)

    def _plain_shares(self, ids: Iterable[str]) -> tuple[SliceShare, ...]:
        """Give each device ID an equal part of its card's memory."""
        found = ((name, self._node.offers.device_of(name)) for name in sorted(ids))
        return tuple(
            SliceShare(name, offer.card.memory_mib // offer.card.slots) for name, offer in found if offer is not None
        )

    # -- PreStartContainer ----------------------------------------------------------------------------------------

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Find the containers that hold these IDs by the kubelet's record, guard them, deliver to each its own.

        Two containers of one pod may hold the same IDs (reuse by init containers). Each has its own grant, so both are
        delivered; it need not be known which of them starts.
        """
        await self._node.turns.wait()
        starts = await self._starts(frozenset(ids))
        if not starts:
            raise Refused(
                f"{self.resource}: the kubelet's record does not show who holds {', '.join(sorted(ids)[:3])}; "
                "the start is tried again"
            )
        waited = [await self._admit(start.tenant, start.grant) for start in starts if start.tenant is not None]
        # From here to the record of ownership nothing may come between: another pod may have waited for the same slice.
        if any(waited):
            for start in starts:
                if start.tenant is not None:
                    self._refuse_conflicts(start.tenant, start.grant)
        for start in starts:
            self._own(start.grant)
        for start in starts:
            await self._node.deliver(start.grant)

    async def _starts(self, ids: frozenset[str]) -> list[_Start]:
        entries = await checkpoint.read(self._node.plugin_directory, among=ids)
        matching = [e for e in entries or () if e.resource == self.resource and e.ids == ids]
        if not matching:
            return self._starts_by_memory(ids)
        await self._until_seen({entry.uid for entry in matching})
        found = [self._confirm(entry) for entry in matching]
        living = [start for start in found if start is not None and not (start.tenant and start.tenant.terminal)]
        present = [start for start in living if start.tenant is not None]
        return present or living

    def _starts_by_memory(self, ids: frozenset[str]) -> list[_Start]:
        """Without a checkpoint: what Allocate assumed, if it was sure of it."""
        grants = [g for g in self.book.grants_of(ids) if g.shares and g.identity is not Identity.GUESSED]
        known = [_Start(g, self.book.tenants[g.uid]) for g in grants if g.uid in self.book.tenants]
        living = [start for start in known if start.tenant is not None and not start.tenant.terminal]
        if len({start.grant.uid for start in living}) != 1:
            return []
        self._count(self._node.metrics.delivered, "without-checkpoint")
        return living

    async def _until_seen(self, uids: set[str]) -> None:
        """Wait (bounded) until our watch knows one of the pods."""
        if not uids.isdisjoint(self.book.tenants):
            return
        seen = self._node.pods_changed
        try:
            async with asyncio.timeout(_WATCH_SECONDS):
                while uids.isdisjoint(self.book.tenants) and self._node.follows_pods:
                    seen = await self._node.wait_for_pods(seen)
                    await self._node.turns.wait()
        except TimeoutError:
            return

    def _confirm(self, entry: checkpoint.Entry) -> _Start | None:
        """Match one entry of the checkpoint with a grant; a lost grant is made anew under its old name."""
        grant_id = entry.env().get(sharing.GRANT_VARIABLE, "")
        if not grant_id:
            return None
        before = self.book.grants.get(grant_id)
        tenant = self.book.tenants.get(entry.uid)
        if tenant is None:
            agrees = before is not None and before.confirmed and before.uid == entry.uid
            return _Start(before, None) if before is not None and agrees else None
        if before is None:
            made = Grant(grant_id, self.resource, entry.ids, entry.uid, entry.container, Identity.KNOWN)
            self.book.restore(replace(made, pod=tenant.full_name, late=entry.names_cdi_device()))
        grant = self.book.confirm(grant_id, tenant, entry.container)
        if grant is None:
            return None
        if not tenant.managed:
            grant = self._confirm_unmanaged(before, grant, tenant)
        grant = self.book.settle(grant_id, late=grant.late, modes=self._modes(grant.shares))
        same = before is not None and (before.uid, before.container) == (entry.uid, entry.container)
        self._count(self._node.metrics.delivered, "verified" if same else "corrected")
        if not same:
            log.warning("identity_corrected", pod=tenant.full_name, container=entry.container, grant=grant_id)
        self._refuse_if_named_early(grant, tenant)
        return _Start(grant, tenant)

    def _confirm_unmanaged(self, before: Grant | None, grant: Grant, tenant: Tenant) -> Grant:
        """Give a pod that our scheduler did not place its plain share, whomever Allocate took it for.

        Raises:
            Refused: The node's policy denies it, as it would have in Allocate.
        """
        if self._node.settings.unmanaged == "deny":
            raise Refused(tenant.problem)
        if before is not None and before.identity is Identity.UNMANAGED and before.shares:
            return self.book.amend(grant.id, before.shares, Identity.UNMANAGED)
        taken = self.book.owners()
        if foreign := sorted(i for i in grant.ids if taken.get(i, grant.uid) != grant.uid):
            raise Refused(f"{self.resource}: device {foreign[0]} is reserved for another pod; create the pod again")
        return self.book.amend(grant.id, self._plain_shares(grant.ids), Identity.UNMANAGED)

    def _refuse_if_named_early(self, grant: Grant, tenant: Tenant) -> None:
        """Without CDI the container's variables were fixed in Allocate: a wrong assumption cannot be mended."""
        if not grant.named or grant.named == tuple(share.card for share in grant.shares):
            return
        self._count(self._node.metrics.guarded, "wrong-card")
        raise Refused(
            f"pod {tenant.full_name} was answered with the cards of pod {grant.named_for or 'unknown'}; delete pod "
            f"{tenant.full_name} so that it is scheduled anew (deviceListStrategy cdi-cri avoids this)"
        )

    def _refuse_conflicts(self, tenant: Tenant, grant: Grant) -> None:
        node = self._node
        others = node.holders.of({share.card for share in grant.shares})
        for conflict in conflicts(tenant, [share.slice for share in grant.shares], others, node.has_started):
            self._count(node.metrics.guarded, "conflict")
            raise Refused(node.report_conflict(conflict))

    async def _admit(self, tenant: Tenant, grant: Grant) -> bool:
        """Let a pod through, or refuse it; tell whether it had to wait, so that others may have come before it."""
        node = self._node
        self._refuse_conflicts(tenant, grant)
        cards = dict.fromkeys([share.card for share in grant.shares])
        if problem := self._overload(tenant, cards):
            self._count(node.metrics.guarded, "overload")
            raise Refused(problem)
        offered = [offer.card for uuid in cards if (offer := node.offers.by_uuid.get(uuid))]
        if waiting := [card.uuid for card in offered if card.mode == "mps" and not card.healthy]:
            raise Refused(
                f"pod {tenant.full_name} waits for the MPS control daemon of card {waiting[0]}; the start is tried "
                "again; see the device plugin's log if it does not come"
            )
        slices = tuple(share.slice for share in grant.shares)
        try:
            waited = await node.guard.until_left(slices, tenant)
        except Refused:
            self._count(node.metrics.guarded, "lingering")
            node.report_lingering(tenant, slices)
            raise
        if waited:
            self._count(node.metrics.guarded, "waited")
        return waited

    def _overload(self, tenant: Tenant, cards: Collection[str]) -> str:
        """Say which card cannot hold this pod beside those that came first; empty when all fits."""
        node = self._node
        others = node.holders.of(cards)
        if not overload(tenant, cards, others, node.offers):
            return ""
        # Who has started is asked of the file system, so only when it matters.
        first = [other for other in others if other.started or node.has_started(other.uid)]
        return overload(tenant, cards, first, node.offers)

    def _own(self, grant: Grant) -> None:
        # The kubelet's IDs may differ from the slices (it may ignore a preference): what is on the card counts.
        self._node.guard.delivered((share.slice for share in grant.shares), Owner(grant.uid, grant.pod))

    # -- start of the daemon --------------------------------------------------------------------------------------

    def take_over(self, grants: Mapping[str, Grant]) -> None:
        """Restore the grants of an earlier process, and the files that a reboot may have taken away."""
        for grant in grants.values():
            if grant.resource == self.resource:
                self.book.restore(grant)
                if grant.shares and grant.confirmed:
                    self._own(grant)
                    self._node.put_in_place(grant)
