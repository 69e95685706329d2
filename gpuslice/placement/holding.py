"""What one pod holds, reduced to amounts per card."""

from enum import Enum
from typing import NamedTuple

from gpuslice.devices.allocation import PodAllocation, SliceShare
from gpuslice.devices.inventory import card_of_slice, number_of_slice
from gpuslice.devices.requests import Role
from gpuslice.placement.events import PodKey, Roles
from gpuslice.placement.fleet import MAX_AMOUNT, MAX_SLICES


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
        self.uses: tuple[CardUse, ...] = ()


def uses_of(allocation: PodAllocation, roles: Roles, *, init_done: bool) -> tuple[CardUse, ...]:
    """Return the most a pod takes of each card: the maximum over its steps of the sum within a step.

    After the init containers have ended only the last step counts; their slices stay with the pod, because the kubelet
    keeps them on its books until the pod is gone.

    Args:
        allocation: The shares by container.
        roles: Roles of the pod's init containers in pod order.
        init_done: Whether all regular init containers have ended.
    """
    steps = steps_of(allocation, roles)
    counted = steps[-1:] if init_done else steps
    slices: dict[str, int] = {}
    families: dict[str, str] = {}
    for _, share in allocation.shares():
        uuid = card_of_slice(share.slice)
        slices[uuid] = slices.get(uuid, 0) | 1 << min(number_of_slice(share.slice), MAX_SLICES)
        families[uuid] = share.family
    return tuple(
        CardUse(uuid, mask, *_peak(counted, uuid), family=families[uuid]) for uuid, mask in sorted(slices.items())
    )


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


def _peak(steps: list[list[SliceShare]], uuid: str) -> tuple[int, int, bool]:
    memory = cores = 0
    exclusive = False
    for step in steps:
        here = [share for share in step if card_of_slice(share.slice) == uuid]
        memory = max(memory, sum(min(share.memory_mib, MAX_AMOUNT) for share in here))
        cores = max(cores, sum(min(share.core_percent, MAX_AMOUNT) for share in here))
        exclusive = exclusive or any(share.exclusive for share in here)
    return memory, cores, exclusive
