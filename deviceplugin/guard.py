"""The last check before a container starts: nobody else may live on its slices.

A refusal here heals by itself (the kubelet asks again every 10 to 14 seconds); the text names both pods and reaches the
user through `kubectl describe pod`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

from deviceplugin.backend import Refused
from deviceplugin.cgroups import PodProcesses
from deviceplugin.offers import Offers
from deviceplugin.tenants import Tenant
from gpuslice.devices.value import Value

# The kubelet gives a PreStartContainer 30 s.
WAIT_SECONDS = 25.0
_LOOK_AGAIN_SECONDS = 0.2


class Conflict(Value, frozen=True):
    """Two living pods on one slice."""

    slice: str
    first: str
    """UID of the pod that has it."""
    second: str
    """UID of the pod that wants it."""


class Owner(Value, frozen=True):
    """The pod that a slice was last delivered to."""

    uid: str
    pod: str
    """``namespace/name``"""


class Guard:
    """Remembers each slice's last owner and waits for its processes to end."""

    def __init__(
        self,
        processes: PodProcesses,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._processes = processes
        self._clock = clock
        self._sleep = sleep
        self._wait_seconds = wait_seconds
        self.owners: dict[str, Owner] = {}
        self.waits = 0
        self._delivered: set[str] = set()

    def delivered(self, slices: Iterable[str], owner: Owner) -> None:
        """Record that a container of `owner` is about to start on `slices`."""
        self._delivered.add(owner.uid)
        for name in slices:
            self.owners[name] = owner

    def ended(self, uid: str) -> None:
        """Forget a pod that has neither an object nor a process any more."""
        self._delivered.discard(uid)
        self.owners = {name: owner for name, owner in self.owners.items() if owner.uid != uid}

    def lives(self, uid: str) -> bool:
        """Tell whether the pod has processes on this node."""
        return bool(self._processes.of(uid))

    def has_started(self, uid: str) -> bool:
        """Tell whether a container of the pod was let through here, or runs."""
        return uid in self._delivered or self.lives(uid)

    def pods_by_process(self, uids: Iterable[str]) -> dict[int, str]:
        """Return process id to pod UID for the processes of these pods."""
        return {pid: uid for uid in uids for pid in self._processes.of(uid)}

    async def until_left(self, slices: Sequence[str], tenant: Tenant) -> bool:
        """Wait until no earlier owner of these slices has a process left; tell whether there was anything to wait for.

        Raises:
            Refused: An earlier owner still runs after the wait.
        """
        deadline = self._clock() + self._wait_seconds
        waited = False
        while lingering := self._lingering(slices, tenant.uid):
            if not waited:
                self.waits += 1
            waited = True
            if self._clock() >= deadline:
                slice_name, owner, pids = lingering
                raise Refused(
                    f"pod {tenant.full_name} waits for slice {slice_name}: its last owner, pod {owner.pod} "
                    f"(uid {owner.uid}), was deleted but still runs processes {', '.join(map(str, pids[:5]))}; "
                    "the start is tried again; if they do not end, stop that container on the node"
                )
            await self._sleep(_LOOK_AGAIN_SECONDS)
        return waited

    def _lingering(self, slices: Sequence[str], uid: str) -> tuple[str, Owner, tuple[int, ...]] | None:
        for name in slices:
            owner = self.owners.get(name)
            if owner is not None and owner.uid != uid and (pids := self._processes.of(owner.uid)):
                return name, owner, pids
        return None


def conflicts(
    tenant: Tenant, slices: Iterable[str], others: Iterable[Tenant], lives: Callable[[str], bool]
) -> list[Conflict]:
    """Find living pods that hold one of `slices` and are ahead of `tenant`: delivered, started or with processes.

    Args:
        tenant: The pod about to start.
        slices: What it is to get.
        others: All pods with slices of the same cards.
        lives: Whether a pod (by UID) has been delivered its slices or has processes.
    """
    wanted = set(slices)
    found: list[Conflict] = []
    for other in others:
        if other.uid == tenant.uid or other.terminal:
            continue
        if wanted.isdisjoint(other.slices):
            continue
        shared = wanted.intersection(other.slices)
        # Whether a pod has processes is asked of the file system, so only of those that matter.
        if other.started or lives(other.uid):
            found.extend(Conflict(name, other.uid, tenant.uid) for name in sorted(shared))
    return found


def overload(tenant: Tenant, cards: Iterable[str], others: Iterable[Tenant], offers: Offers) -> str:
    """Say which card cannot hold this pod beside those that have started; empty when all fits.

    Args:
        tenant: The pod about to start.
        cards: The cards of what its container is to get, each once.
        others: The pods that were let through before: whoever came first stays.
        offers: The node's cards.
    """
    before = [other for other in others if other.uid != tenant.uid and not other.terminal]
    for uuid in cards:
        offer = offers.by_uuid.get(uuid)
        if offer is None:
            return f"node has no card {uuid} any more; delete pod {tenant.full_name} so that it is scheduled anew"
        holders = [tenant, *[other for other in before if uuid in other.cards]]
        memory = cores = 0
        for other in holders:
            memory_mib, core_percent = other.share_of(uuid)
            memory, cores = memory + memory_mib, cores + core_percent
        if memory > offer.card.memory_mib or cores > offer.card.cores:
            names = ", ".join(sorted(other.full_name for other in holders))
            return (
                f"card {uuid} is promised beyond what it has: {memory} of {offer.card.memory_mib} MiB, "
                f"{cores} of {offer.card.cores} percent of compute, by pods {names}; delete one of them"
            )
    return ""
