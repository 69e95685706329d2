"""Who holds which device IDs of one resource on this node, and who is being admitted right now.

The kubelet's requests carry device IDs and nothing else. This book turns them into a pod and a container:

1. *known*: the pod in admission is the only one that podresources lists with a device-requesting container that has
   no devices (the kubelet admits one pod at a time);
2. *steered*: the preferred allocation names exactly the scheduler's slices of that container, so the IDs that come
   back in Allocate name it again.

What these two say is an assumption until PreStartContainer, where the kubelet's checkpoint names the pod by UID
(deviceplugin.delivery). Pure: no I/O and no clock; identifiers and listings are arguments.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from deviceplugin.tenants import LOW_PRIORITY, Need, Tenant
from gpuslice.devices.allocation import SliceShare
from gpuslice.devices.requests import Role
from gpuslice.devices.value import Value

Listing = Mapping[tuple[str, str], Mapping[str, frozenset[str]]]
"""podresources List: (namespace, pod) to container to device IDs of this resource."""


class Identity(Enum):
    """How an allocation's container was found, from certain to not at all."""

    KNOWN = "known"
    """podresources showed exactly one pod in admission."""
    SOLE = "sole"
    """podresources was of no help, but only one pod waits for its devices."""
    REUSED = "reused"
    """The IDs belong to an init container of the same pod; the kubelet asks nobody before it reuses them."""
    RESERVED = "reserved"
    """The IDs are the scheduler's slices of one pod."""
    GUESSED = "guessed"
    """Several pods wait; the one bound first was taken. PreStartContainer decides."""
    UNMANAGED = "unmanaged"
    """No pod that the scheduler placed here waits for devices."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One answered Allocate: device IDs handed to (presumably) one container."""

    id: str
    """Unique for the life of the node: names the grant's directory and CDI device."""
    resource: str
    ids: frozenset[str]
    uid: str
    """Pod UID; empty for an unmanaged grant whose pod is unknown."""
    container: str
    identity: Identity
    pod: str = ""
    """``namespace/name`` for messages."""
    shares: tuple[SliceShare, ...] = ()
    priority: int = LOW_PRIORITY
    confirmed: bool = False
    """The kubelet's checkpoint has named this pod and container."""
    late: bool = True
    """The kubelet was answered with a CDI name only; what it means is written before each start."""
    modes: Mapping[str, str] = field(default_factory=dict)
    """Card to sharing mode, as it was when the grant was made: a container keeps its mode when the node's changes."""
    named: tuple[str, ...] = ()
    """Cards that Allocate named to the container for good; empty when they are named late."""
    named_for: str = ""
    """``namespace/name`` of the pod that Allocate took the container to be of."""


class Admission(Value, frozen=True):
    """The pod in admission. `tenant` is None when nobody we know waits for devices."""

    tenant: Tenant | None
    identity: Identity


class Preference(Value, frozen=True):
    """The answer to GetPreferredAllocation."""

    ids: tuple[str, ...]
    uid: str
    container: str
    identity: Identity
    exact: bool
    """The IDs are the scheduler's slices of the container, all of them and no other."""


class Foreseen(Value, frozen=True):
    """A grant that has not been asked for yet, and what it was made of."""

    grant: Grant
    tenant: Tenant
    preference: Preference


_ModesOf = Callable[[Iterable[SliceShare]], Mapping[str, str]]
"""Card to sharing mode, as it is now."""


def _no_modes(_shares: Iterable[SliceShare]) -> Mapping[str, str]:
    return {}


class Book:
    """Tenants and grants of one resource. Every method is a step of a state machine; none blocks."""

    def __init__(self, resource: str) -> None:
        self.resource = resource
        self.tenants: dict[str, Tenant] = {}
        self.grants: dict[str, Grant] = {}
        self._progress: dict[str, list[str]] = {}
        self._pending_pods: dict[str, Tenant] = {}
        """Those of the tenants that have not been given all they ask for, in the same order; see :meth:`_note`."""
        self._preference: Preference | None = None

    # -- events ---------------------------------------------------------------------------------------------------

    def see(self, tenant: Tenant) -> None:
        """Take in a new or changed pod of this node."""
        if tenant.of(self.resource):
            self.tenants[tenant.uid] = tenant
            self._note(tenant.uid)

    def forget(self, uid: str) -> tuple[Grant, ...]:
        """Drop a pod whose object and processes are gone; return the grants that ended with it."""
        self.tenants.pop(uid, None)
        self._pending_pods.pop(uid, None)
        self._progress.pop(uid, None)
        ended = tuple(grant for grant in self.grants.values() if grant.uid == uid)
        for grant in ended:
            del self.grants[grant.id]
        return ended

    def restore(self, grant: Grant) -> None:
        """Take in a grant that an earlier process of this daemon made."""
        self.grants[grant.id] = grant
        self._count_in(grant.uid, grant.container)

    def _count_in(self, uid: str, container: str) -> None:
        """Note that a container has been given its devices."""
        done = self._progress.setdefault(uid, [])
        if container not in done:
            done.append(container)
        self._note(uid)

    def _count_out(self, uid: str, container: str) -> None:
        """Let a container wait for its devices again."""
        done = self._progress.get(uid, [])
        if container in done:
            done.remove(container)
            self._note(uid)

    def _note(self, uid: str) -> None:
        """Keep the pods that wait for devices in step with a change of one pod: each admission looks through them."""
        tenant = self.tenants.get(uid)
        if tenant is None or not self._waits(tenant):
            self._pending_pods.pop(uid, None)
        elif uid in self._pending_pods or uid == next(reversed(self.tenants)):
            self._pending_pods[uid] = tenant
        else:
            # One that waits again has its old place.
            self._pending_pods = self._all_pending()

    def _waits(self, tenant: Tenant) -> bool:
        return not tenant.terminal and bool(self._pending(tenant))

    def _all_pending(self) -> dict[str, Tenant]:
        return {uid: tenant for uid, tenant in self.tenants.items() if self._waits(tenant)}

    def check_invariants(self) -> None:
        """Compare what is kept up to date with what it is made of; for tests.

        Raises:
            AssertionError: They differ.
        """
        if list(self._pending_pods.items()) != list(self._all_pending().items()):
            raise AssertionError(f"kept as waiting: {list(self._pending_pods)}")

    # -- queries --------------------------------------------------------------------------------------------------

    def owners(self) -> dict[str, str]:
        """Return device ID to the UID of the living pod that holds it, by reservation or by grant."""
        owners = {
            slice_: tenant.uid for tenant in self.tenants.values() if not tenant.terminal for slice_ in tenant.slices
        }
        for grant in self.grants.values():
            tenant = self.tenants.get(grant.uid)
            if tenant is not None and not tenant.terminal:
                for device in grant.ids:
                    owners.setdefault(device, grant.uid)
        return owners

    def held(self) -> frozenset[str]:
        """Return the IDs granted to pods that have not ended: never to be dropped from the device list."""
        return frozenset(
            device
            for grant in self.grants.values()
            if grant.uid not in self.tenants or not self.tenants[grant.uid].terminal
            for device in grant.ids
        )

    def waiting(self) -> tuple[Tenant, ...]:
        """Return the pods that are bound here and have not been given all their devices yet."""
        return tuple(tenant for tenant in self._pending_pods.values() if tenant.managed and not tenant.started)

    def grants_of(self, ids: Collection[str]) -> tuple[Grant, ...]:
        """Return the grants made for exactly this set of IDs, oldest first."""
        wanted = frozenset(ids)
        return tuple(grant for grant in self.grants.values() if grant.ids == wanted)

    # -- layer 1: who is being admitted ---------------------------------------------------------------------------

    def admission(self, listing: Listing | None) -> Admission:
        """Return the pod that the kubelet is admitting.

        Args:
            listing: What podresources lists right now; None when it could not be asked.
        """
        waiting = self._pending_pods.values()
        if listing is None:
            return self._without_listing(tuple(waiting))
        listed = listing.keys()
        present = [tenant for tenant in waiting if (tenant.namespace, tenant.name) in listed]
        if found := [tenant for tenant in present if self._listed_empty(tenant, listing)]:
            return self._one_of(found, Identity.KNOWN)
        # A lost checkpoint or a reboot: everything was granted once, and the kubelet admits the pod anew.
        again = [
            tenant
            for tenant in self.tenants.values()
            if not tenant.terminal
            and not tenant.started
            and (tenant.namespace, tenant.name) in listed
            and self._listed_without_devices(tenant, listing)
        ]
        if again:
            return self._one_of(again, Identity.KNOWN)
        return Admission(None, Identity.UNMANAGED)

    def _without_listing(self, waiting: Sequence[Tenant]) -> Admission:
        idle = [tenant for tenant in waiting if not tenant.started] or list(waiting)
        if not idle:
            return Admission(None, Identity.UNMANAGED)
        return self._one_of(idle, Identity.SOLE)

    @staticmethod
    def _one_of(found: Sequence[Tenant], certain: Identity) -> Admission:
        idle = [tenant for tenant in found if not tenant.started] or found
        if len(idle) == 1:
            return Admission(idle[0], certain)
        # A pod of our scheduler first: a wrong guess can be corrected, an error in Allocate cannot.
        return Admission(next((tenant for tenant in idle if tenant.managed), idle[0]), Identity.GUESSED)

    def _listed_empty(self, tenant: Tenant, listing: Listing) -> bool:
        containers = listing[tenant.namespace, tenant.name]
        # Regular init containers never appear in the listing.
        visible = [need for need in self._pending(tenant) if need.role is not Role.INIT]
        return all(not containers.get(need.container) for need in visible)

    def _listed_without_devices(self, tenant: Tenant, listing: Listing) -> bool:
        containers = listing[tenant.namespace, tenant.name]
        return not any(containers.get(n.container) for n in tenant.of(self.resource))

    def _pending(self, tenant: Tenant) -> list[Need]:
        done = self._progress.get(tenant.uid, ())
        return [need for need in tenant.of(self.resource) if need.container not in done]

    # -- layer 2: steer -------------------------------------------------------------------------------------------

    def prefer(
        self, admission: Admission, available: Collection[str], must_include: Collection[str], size: int
    ) -> Preference:
        """Choose exactly `size` of the available IDs: the scheduler's slices of the container in admission.

        An ID that a living pod holds by our record is not proposed, whatever the kubelet offers; the answer is then
        shorter than `size` and the kubelet fills it, which PreStartContainer will judge.
        """
        tenant = admission.tenant
        need = self._next_need(tenant, size) if tenant is not None else None
        chosen = list(dict.fromkeys(must_include))[:size]
        offered = set(available) | set(must_include)
        wanted = [share.slice for share in need.shares] if need is not None else []
        for device in wanted:
            if device in offered and device not in chosen and len(chosen) < size:
                chosen.append(device)
        uid = tenant.uid if tenant is not None else ""
        if len(chosen) < size:
            chosen.extend(self._fill(uid, wanted, offered.difference(chosen), size - len(chosen)))
        preference = Preference(
            ids=tuple(chosen),
            uid=uid,
            container=need.container if need is not None else "",
            identity=admission.identity,
            exact=bool(wanted) and set(chosen) == set(wanted),
        )
        self._preference = preference
        return preference

    def _next_need(self, tenant: Tenant, size: int) -> Need | None:
        pending = self._pending(tenant)
        if not pending:
            self._progress.pop(tenant.uid, None)
            self._note(tenant.uid)
            pending = self._pending(tenant)
        return next((need for need in pending if need.count == size), pending[0] if pending else None)

    def _fill(self, uid: str, wanted: Sequence[str], offered: Collection[str], missing: int) -> list[str]:
        """IDs to complete an answer with: the pod's own first, then free ones of the cards it is to get."""
        owners = self.owners()
        cards = {device.rpartition("::")[0] for device in wanted}

        def rank(device: str) -> tuple[bool, bool, str]:
            return (owners.get(device) != uid, device.rpartition("::")[0] not in cards, device)

        free = [device for device in offered if owners.get(device, uid) == uid]
        return sorted(free, key=rank)[:missing]

    # -- Allocate -------------------------------------------------------------------------------------------------

    def allocate(
        self, ids: Iterable[str], grant_id: str, *, late: bool = True, modes_of: _ModesOf = _no_modes
    ) -> Grant:
        """Record that the kubelet gives `ids` to a container, and say whose they are by all we know now.

        A grant with identity UNMANAGED belongs to no pod of our scheduler; the caller applies its policy.
        """
        grant = self._grant_for(frozenset(ids), grant_id, late=late, modes_of=modes_of)
        self._enter(grant)
        return grant

    def _grant_for(self, wanted: frozenset[str], grant_id: str, *, late: bool, modes_of: _ModesOf) -> Grant:
        tenant, need, identity = self._container_for(wanted)
        if tenant is None or need is None:
            return Grant(grant_id, self.resource, wanted, "", "", Identity.UNMANAGED)
        return Grant(
            id=grant_id,
            resource=self.resource,
            ids=wanted,
            uid=tenant.uid,
            container=need.container,
            identity=identity,
            pod=tenant.full_name,
            shares=need.shares,
            priority=need.priority,
            late=late,
            modes=modes_of(need.shares),
        )

    def _enter(self, grant: Grant) -> None:
        self._preference = None
        self.grants[grant.id] = grant
        if grant.uid:
            self._count_in(grant.uid, grant.container)

    # -- Allocate, foreseen ---------------------------------------------------------------------------------------

    def foresee(self, grant_id: str, *, late: bool, modes_of: _ModesOf) -> Foreseen | None:
        """Return the grant that the next Allocate makes if the kubelet takes what was preferred; None: not certain."""
        preference = self._preference
        tenant = self.tenants.get(preference.uid) if preference is not None else None
        if preference is None or tenant is None or not preference.exact or not tenant.managed:
            return None
        grant = self._grant_for(frozenset(preference.ids), grant_id, late=late, modes_of=modes_of)
        if (grant.uid, grant.container) != (tenant.uid, preference.container):
            # A reservation that names one slice twice: its IDs are fewer than the container asks for.
            return None
        return Foreseen(grant, tenant, preference)

    def allocate_as_foreseen(self, foreseen: Foreseen, ids: Collection[str]) -> bool:
        """Record the foreseen grant, if it is what :meth:`allocate` would make of `ids` now; else change nothing."""
        grant, tenant = foreseen.grant, foreseen.tenant
        done = self._progress.get(tenant.uid, ())
        as_it_was = self.tenants.get(tenant.uid) is tenant and self._preference is foreseen.preference
        if not as_it_was or grant.container in done or grant.ids != ids:
            return False
        self._enter(grant)
        return True

    def _container_for(self, ids: frozenset[str]) -> tuple[Tenant | None, Need | None, Identity]:
        preference = self._preference
        if preference is not None and (set(preference.ids) == ids or len(preference.ids) <= len(ids)):
            # Admission is serial: an Allocate right after a preference is for the same container, even when the
            # kubelet picked other IDs.
            tenant = self.tenants.get(preference.uid)
            need = (
                next((n for n in self._pending(tenant) if n.container == preference.container), None)
                if tenant
                else None
            )
            if tenant is not None and need is not None and need.count == len(ids):
                return tenant, need, preference.identity
        for tenant in self.tenants.values():
            reused = not tenant.terminal and ids <= self._granted_to(tenant.uid)
            if reused and (need := next((n for n in self._pending(tenant) if n.count == len(ids)), None)):
                return tenant, need, Identity.REUSED
        for tenant in self.tenants.values():
            reserved = not tenant.terminal and tenant.managed and ids.issubset(tenant.slices)
            if reserved and (need := self._exact_or_first(tenant, ids)):
                return tenant, need, Identity.RESERVED
        return None, None, Identity.UNMANAGED

    def _exact_or_first(self, tenant: Tenant, ids: frozenset[str]) -> Need | None:
        fitting = [need for need in self._pending(tenant) if need.count == len(ids)]
        exact = [need for need in fitting if {share.slice for share in need.shares} == ids]
        return next(iter(exact or fitting), None)

    def _granted_to(self, uid: str) -> set[str]:
        return {device for grant in self.grants.values() if grant.uid == uid for device in grant.ids}

    def withdraw(self, grant_id: str) -> None:
        """Take back a grant whose Allocate was refused after all."""
        grant = self.grants.pop(grant_id, None)
        if grant is not None:
            self._count_out(grant.uid, grant.container)

    def name(self, grant_id: str) -> Grant:
        """Record that the cards of a grant are told to the container now and cannot be changed any more."""
        grant = self.grants[grant_id]
        named = replace(grant, named=tuple(share.card for share in grant.shares), named_for=grant.pod)
        self.grants[grant_id] = named
        return named

    def amend(self, grant_id: str, shares: tuple[SliceShare, ...], identity: Identity) -> Grant:
        """Give a grant shares that do not come from the scheduler."""
        grant = replace(self.grants[grant_id], shares=shares, identity=identity)
        self.grants[grant_id] = grant
        return grant

    def settle(self, grant_id: str, *, late: bool, modes: Mapping[str, str]) -> Grant:
        """Fix what the grant's container keeps for life: how the runtime was told, and the mode of each card."""
        grant = self.grants[grant_id]
        kept = {**modes, **grant.modes}
        if grant.late != late or grant.modes != kept:
            grant = self.grants[grant_id] = replace(grant, late=late, modes=kept)
        return grant

    # -- layer 3: the checkpoint's word ---------------------------------------------------------------------------

    def confirm(self, grant_id: str, tenant: Tenant, container: str) -> Grant | None:
        """Record what the kubelet's checkpoint says about a grant: its pod and container, and so its shares.

        Returns:
            The corrected grant, or None when the container needs nothing of this resource.
        """
        grant = self.grants.get(grant_id)
        need = next((need for need in tenant.of(self.resource) if need.container == container), None)
        if grant is None or need is None:
            return None
        confirmed = replace(
            grant,
            uid=tenant.uid,
            container=container,
            pod=tenant.full_name,
            shares=need.shares,
            priority=need.priority,
            confirmed=True,
        )
        self.grants[grant_id] = confirmed
        if (grant.uid, grant.container) != (tenant.uid, container):
            self._correct_progress(grant, confirmed)
        return confirmed

    def _correct_progress(self, assumed: Grant, confirmed: Grant) -> None:
        """Let the container that a grant was assumed to be for wait again, unless another grant is its own."""
        others = (grant for grant in self.grants.values() if grant.uid == assumed.uid)
        if not any(grant.container == assumed.container for grant in others):
            self._count_out(assumed.uid, assumed.container)
        self._count_in(confirmed.uid, confirmed.container)
