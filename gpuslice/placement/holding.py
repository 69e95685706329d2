"""What one pod holds, reduced to amounts per card."""

from enum import Enum
from typing import NamedTuple

from gpuslice.devices.allocation import PodAllocation, SliceShare
from gpuslice.devices.inventory import SLICE_SEPARATOR, card_of_slice, number_of_slice
from gpuslice.devices.requests import Role
from gpuslice.devices.traits import PLAIN, PodTraits
from gpuslice.placement.events import PodKey, Roles
from gpuslice.placement.fleet import MAX_AMOUNT, MAX_SLICES, MIXED


class Phase(Enum):
    """Life of a share: assumed (with a deadline), bound, and then gone from the ledger."""

    ASSUMED = "assumed"
    BOUND = "bound"


class CardUse(NamedTuple):
    """What a pod takes of one card at most, over the rest of its life."""

    uuid: str
    slices: int
    """Bit n is set when slice n is the pod's."""
    memory_mib: int
    core_percent: int
    exclusive: bool
    family: str = "nvidia"
    share_mib: int = 0
    """Size of each of its slices; :data:`MIXED` when they differ."""


class Holding:
    """One pod's share on record. Mutable, owned by the ledger alone."""

    __slots__ = (
        "allocation",
        "cpu_milli",
        "created_at",
        "expires_at",
        "group",
        "init_done",
        "key",
        "node",
        "phase",
        "priority",
        "roles",
        "seen",
        "terminating",
        "traits",
        "unreadable",
        "uses",
    )

    def __init__(self, key: PodKey, node: str, allocation: PodAllocation) -> None:
        self.key = key
        self.node = node
        self.allocation = allocation
        self.roles: Roles = ()
        self.phase = Phase.BOUND
        self.expires_at: float | None = None
        self.init_done = False
        self.terminating = False
        self.seen = False
        self.priority = 0
        self.cpu_milli = 0
        self.group = ""
        self.created_at = ""
        self.traits: PodTraits = PLAIN
        self.unreadable = ""
        """Why the pod's record cannot be read, if it cannot."""
        self.uses: tuple[CardUse, ...] = ()

    @property
    def is_unclear(self) -> bool:
        """Whether nobody knows what the pod holds: its node takes no pods meanwhile."""
        return bool(self.unreadable) and not self.allocation.containers


def uses_of(allocation: PodAllocation, roles: Roles, *, init_done: bool) -> tuple[CardUse, ...]:
    """Return the most a pod takes of each card: the maximum over its steps of the sum within a step.

    After the init containers have ended only the last step counts; their slices stay with the pod, because the kubelet
    keeps them on its books until the pod is gone.

    Args:
        allocation: The shares by container.
        roles: Roles of the pod's init containers in pod order.
        init_done: Whether all regular init containers have ended.
    """
    if len(allocation.containers) == 1 and not (roles and init_done):
        (shares,) = allocation.containers.values()
        if len(shares) == 1:
            return (_only_use(shares[0]),)
    return add_up(allocation, roles, init_done=init_done)


def _only_use(share: SliceShare) -> CardUse:
    """Return what :func:`add_up` finds for one share that counts: most pods have just that, and are booked often."""
    uuid, _, number = share.slice.rpartition(SLICE_SEPARATOR)
    memory, cores = max(0, min(share.memory_mib, MAX_AMOUNT)), max(0, min(share.core_percent, MAX_AMOUNT))
    return CardUse(uuid, 1 << min(int(number), MAX_SLICES), memory, cores, share.exclusive, share.family, memory)


def add_up(allocation: PodAllocation, roles: Roles, *, init_done: bool) -> tuple[CardUse, ...]:
    """Return the uses of a pod with any number of shares; see :func:`uses_of`."""
    cards: dict[str, _Tally] = {}
    for _, share in allocation.shares():
        uuid = card_of_slice(share.slice)
        tally = cards.get(uuid)
        if tally is None:
            tally = cards[uuid] = _Tally(share.family)
        tally.see(share)
    steps = steps_of(allocation, roles)
    for step in steps[-1:] if init_done else steps:
        touched = [cards[card_of_slice(share.slice)] for share in step]
        for share, tally in zip(step, touched, strict=True):
            tally.add(share)
        for tally in touched:
            tally.end_step()
    return tuple(cards[uuid].use(uuid) for uuid in sorted(cards))


class _Tally:
    """What one pod takes of one card, while it is being added up."""

    __slots__ = ("cores", "exclusive", "family", "memory", "sizes", "slices", "step_cores", "step_memory")

    def __init__(self, family: str) -> None:
        self.family = family
        self.slices = 0
        self.sizes: dict[int, int] = {}
        """MiB by slice: the most that any of its users has, over the pod's whole life."""
        self.memory = self.cores = 0
        self.step_memory = self.step_cores = 0
        self.exclusive = False

    def see(self, share: SliceShare) -> None:
        number = min(number_of_slice(share.slice), MAX_SLICES)
        self.slices |= 1 << number
        self.sizes[number] = max(self.sizes.get(number, 0), share.memory_mib)

    def add(self, share: SliceShare) -> None:
        self.step_memory += min(share.memory_mib, MAX_AMOUNT)
        self.step_cores += min(share.core_percent, MAX_AMOUNT)
        self.exclusive = self.exclusive or share.exclusive

    def end_step(self) -> None:
        self.memory = max(self.memory, self.step_memory)
        self.cores = max(self.cores, self.step_cores)
        self.step_memory = self.step_cores = 0

    def use(self, uuid: str) -> CardUse:
        sizes = set(self.sizes.values())
        size = min(sizes.pop(), MAX_AMOUNT) if len(sizes) == 1 else MIXED
        return CardUse(uuid, self.slices, self.memory, self.cores, self.exclusive, self.family, size)


def steps_of(allocation: PodAllocation, roles: Roles) -> list[list[SliceShare]]:
    """Return the shares in use in each step: one for each regular init container with devices, then the last one."""
    steps: list[list[SliceShare]] = []
    sidecars: list[SliceShare] = []
    for name, role in roles:
        shares = allocation.containers.get(name, ())
        if role is Role.SIDECAR:
            sidecars.extend(shares)
        elif role is Role.INIT and shares:
            steps.append([*sidecars, *shares])
    last = list(sidecars)
    before = {name for name, _ in roles}
    for name, shares in allocation.containers.items():
        if name not in before:
            last.extend(shares)
    steps.append(last)
    return steps
