"""The pods of this node as the device plugin sees them: who needs which slices, in the order of admission.

Pure: built from a pod object, no I/O. A pod that did not come from our scheduler still appears (it asks the kubelet
for devices all the same), without shares and with the reason.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from gpuslice.devices import annotations
from gpuslice.devices.allocation import PodAllocation, SliceShare
from gpuslice.devices.errors import BadAnnotation, BadQuantity
from gpuslice.devices.pods import Container, ContainerStatus, Pod
from gpuslice.devices.quantity import whole_number
from gpuslice.devices.requests import Role
from gpuslice.devices.value import Value

_RESERVED = annotations.ALLOCATION
PRIORITY_RESOURCE = "nvidia.com/priority"
LOW_PRIORITY = 1


class Need(Value, frozen=True):
    """What one container asks of one resource."""

    container: str
    role: Role
    resource: str
    count: int
    """How many device IDs the kubelet will ask for."""
    shares: tuple[SliceShare, ...] = ()
    """The scheduler's choice, in the order in which the container sees its cards; empty when there is none."""
    priority: int = LOW_PRIORITY
    """0 goes before 1 where containers compete for a card's time."""


@dataclass(frozen=True)
class Tenant:
    """One pod that is bound to this node and needs devices. What it adds up to is worked out once, when it is asked."""

    uid: str
    namespace: str
    name: str
    needs: tuple[Need, ...]
    """In admission order: init containers and sidecars as written, then the app containers."""
    started: frozenset[str] = frozenset()
    """Containers that run or have run, by the pod's status."""
    terminal: bool = False
    """No container of the pod will ever run again."""
    terminating: bool = False
    initialized: bool = False
    """There are init containers, which have ended and hold nothing any more, as the scheduler counts too."""
    problem: str = ""
    """Why the pod has no usable reservation; empty when it has one."""

    @property
    def full_name(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def managed(self) -> bool:
        """Whether our scheduler chose this pod's slices on this node."""
        return not self.problem

    def of(self, resource: str) -> tuple[Need, ...]:
        """Return the needs of one resource."""
        return self._by_resource.get(resource, ())

    @cached_property
    def _by_resource(self) -> dict[str, tuple[Need, ...]]:
        names = {need.resource for need in self.needs}
        return {name: tuple(need for need in self.needs if need.resource == name) for name in names}

    @cached_property
    def slices(self) -> tuple[str, ...]:
        """Every slice the scheduler gave this pod, repeated when containers take turns on it."""
        return tuple([share.slice for need in self.needs for share in need.shares])

    @cached_property
    def cards(self) -> frozenset[str]:
        """UUIDs of the cards of these slices."""
        return frozenset([share.card for need in self.needs for share in need.shares])

    def share_of(self, card: str) -> tuple[int, int]:
        """Return memory (MiB) and cores (percent) that the pod may use of a card at any one time.

        Init containers run one after the other beside the sidecars before them, app containers run together; the
        larger counts, as in the scheduler's own resource rules. Init containers that have ended count no more: the
        scheduler may have given what they had to others.
        """
        return self._shares_of_cards.get(card, (0, 0))

    @cached_property
    def _shares_of_cards(self) -> dict[str, tuple[int, int]]:
        return {card: self._peak(card) for card in self.cards}

    def _peak(self, card: str) -> tuple[int, int]:
        peak_memory = peak_cores = sidecar_memory = sidecar_cores = app_memory = app_cores = 0
        for need in self.needs:
            there = [share for share in need.shares if share.card == card]
            memory = sum([share.memory_mib for share in there])
            cores = sum([share.core_percent for share in there])
            match need.role:
                case Role.SIDECAR:
                    sidecar_memory, sidecar_cores = sidecar_memory + memory, sidecar_cores + cores
                case Role.INIT if not self.initialized:
                    peak_memory = max(peak_memory, sidecar_memory + memory)
                    peak_cores = max(peak_cores, sidecar_cores + cores)
                case Role.APP:
                    app_memory, app_cores = app_memory + memory, app_cores + cores
        return max(peak_memory, sidecar_memory + app_memory), max(peak_cores, sidecar_cores + app_cores)


class Holders:
    """Which pods have slices of which card: a start concerns those of its own cards only."""

    def __init__(self) -> None:
        self._on_card: dict[str, dict[str, Tenant]] = {}

    def replace(self, before: Tenant | None, now: Tenant | None) -> None:
        """Put a pod in place of what was known of it; None: there was nothing, or it is gone."""
        if before is not None:
            for card in before.cards if now is None else before.cards - now.cards:
                self._drop(card, before.uid)
        if now is not None:
            for card in now.cards:
                self._on_card.setdefault(card, {})[now.uid] = now

    def _drop(self, card: str, uid: str) -> None:
        there = self._on_card[card]
        del there[uid]
        if not there:
            del self._on_card[card]

    def of(self, cards: Iterable[str]) -> list[Tenant]:
        """Return the pods that have slices of one of these cards, each once."""
        found = [self._on_card.get(card, {}) for card in cards]
        if len(found) == 1:
            return list(found[0].values())
        return list({uid: tenant for there in found for uid, tenant in there.items()}.values())


def read_tenant(pod: Pod, *, node: str, resources: Collection[str], schedulers: Collection[str] = ()) -> Tenant | None:
    """Read a pod of this node, or None when it needs none of `resources`.

    Args:
        pod: The pod.
        node: This node's name.
        resources: Extended resources that this node serves.
        schedulers: Names of the schedulers whose reservations count; empty: any. A reservation that another scheduler's
            pod carries was written by its author, and is worth nothing.
    """
    counts = [(c, role, resource, count) for c, role in _containers(pod) for resource, count in _counts(c, resources)]
    if not counts:
        return None
    allocation, problem = _reservation(pod, node, schedulers)
    needs = []
    for container, role, resource, count in counts:
        shares = allocation.containers.get(container.name, ()) if allocation else ()
        if allocation and len(shares) != count and not problem:
            problem = (
                f"container {container.name} asks for {count} {resource} but the reservation has {len(shares)}; "
                "delete the pod so that it is scheduled anew"
            )
        needs.append(Need(container.name, role, resource, count, shares, _priority(container)))
    metadata = pod.metadata
    return Tenant(metadata.uid, metadata.namespace, metadata.name, tuple(needs), *_state(pod), problem)


def asks_the_same(pod: Pod, before: Pod) -> bool:
    """Tell whether a pod differs in its state at most from what it was before: it has the same needs then."""
    now, then = pod.metadata, before.metadata
    reserved, reserved_then = now.annotations.get(_RESERVED), then.annotations.get(_RESERVED)
    return now.uid == then.uid and reserved == reserved_then and pod.spec == before.spec


def in_state_of(tenant: Tenant, pod: Pod) -> Tenant:
    """Return the tenant as its changed pod is now: itself where nothing changed that matters. See `asks_the_same`."""
    started, terminal, terminating, initialized = state = _state(pod)
    if state == (tenant.started, tenant.terminal, tenant.terminating, tenant.initialized):
        return tenant
    changed = replace(tenant, started=started, terminal=terminal, terminating=terminating, initialized=initialized)
    # What was worked out of the needs alone is as good as before.
    known = vars(tenant)
    kept = (*_OF_NEEDS, "_shares_of_cards") if initialized == tenant.initialized else _OF_NEEDS
    vars(changed).update({name: known[name] for name in kept if name in known})
    return changed


_OF_NEEDS = ("_by_resource", "slices", "cards")


def _containers(pod: Pod) -> Iterator[tuple[Container, Role]]:
    for container in pod.spec.init_containers or ():
        yield container, Role.SIDECAR if container.restart_policy == "Always" else Role.INIT
    for container in pod.spec.containers or ():
        yield container, Role.APP


def _counts(container: Container, resources: Collection[str]) -> Iterator[tuple[str, int]]:
    # The device manager looks at limits only.
    for name, quantity in (container.resources.limits if container.resources else {}).items():
        if name not in resources:
            continue
        try:
            count = _whole_number(quantity)
        except BadQuantity:
            continue
        if count:
            yield name, count


def _priority(container: Container) -> int:
    """Read HAMi's priority resource: 0 high, 1 low; anything else is low (the webhook refuses it)."""
    quantity = container.resources.limits.get(PRIORITY_RESOURCE) if container.resources else None
    return 0 if str(quantity) == "0" else LOW_PRIORITY


def _reservation(pod: Pod, node: str, schedulers: Collection[str]) -> tuple[PodAllocation | None, str]:
    text = pod.metadata.annotations.get(_RESERVED)
    if text is None or (schedulers and pod.spec.scheduler_name not in schedulers):
        return None, (
            f"pod {pod.full_name} was not placed by the gpuslice scheduler; set spec.schedulerName to "
            "gpuslice-scheduler (the webhook does it) and create the pod again"
        )
    try:
        allocation = _decode_allocation(f"pod {pod.full_name}", text)
    except BadAnnotation as error:
        return None, f"{error}; delete the pod so that it is scheduled anew"
    if allocation.node != node:
        return None, (
            f"pod {pod.full_name} has a reservation on node {allocation.node}, not on {node}; "
            "delete the pod so that it is scheduled anew"
        )
    return allocation, ""


# A pod changes about five times while it starts, what it asks for and its reservation never.
_whole_number = lru_cache(maxsize=64)(whole_number)
_decode_allocation = lru_cache(maxsize=256)(annotations.decode_allocation)


def _state(pod: Pod) -> tuple[frozenset[str], bool, bool, bool]:
    """Return which containers have started, and whether the pod is terminal, terminating, initialized."""
    # Without init containers the condition says nothing of what the pod holds.
    initialized = bool(pod.spec.init_containers) and pod.is_initialized
    return _started(pod), pod.is_terminal, pod.is_terminating, initialized


def _started(pod: Pod) -> frozenset[str]:
    statuses: tuple[ContainerStatus, ...] = (
        *(pod.status.init_container_statuses or ()),
        *(pod.status.container_statuses or ()),
    )
    return frozenset(
        [
            status.name
            for status in statuses
            if (state := status.state) is not None and (state.running is not None or state.terminated is not None)
        ]
    )
