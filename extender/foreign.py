"""Pods that HAMi's scheduler placed: their shares count, so that one component can be exchanged at a time.

Their record names cards, MiB and percent by position, but no slices. So each share gets a slice number of our own, high
enough that it is never one of the kubelet's; it stands for the slot and nothing else.
"""

from gpuslice.devices.allocation import PodAllocation, SliceShare
from gpuslice.devices.annotations import MOST_SHARES
from gpuslice.devices.errors import BadAnnotation
from gpuslice.devices.families import Families, Family
from gpuslice.devices.inventory import slice_id
from gpuslice.devices.pods import Pod
from gpuslice.devices.requests import containers_of

FIRST_NUMBER = 1024


class ForeignShares:
    """Reads such pods and numbers their slices; a pod keeps its numbers until it is released."""

    def __init__(self, families: Families) -> None:
        self._families = families
        self._taken: dict[str, set[int]] = {}
        """Numbers in use by card."""
        self._held: dict[str, list[tuple[str, int]]] = {}
        """Cards and numbers by pod."""

    def __len__(self) -> int:
        return len(self._held)

    def allocation(self, pod: Pod) -> PodAllocation | None:
        """Give the allocation of a bound pod that another scheduler placed, or None if it holds nothing.

        Raises:
            BadAnnotation: Its record does not follow HAMi's grammar.
        """
        self.release(pod.metadata.uid)
        shares: dict[str, list[SliceShare]] = {}
        for family in self._families:
            text = pod.metadata.annotations.get(family.pod.allocated)
            if text:
                _read(pod, family, text, shares)
        if sum(map(len, shares.values())) > MOST_SHARES:
            problem = f"more than {MOST_SHARES} shares; delete the pod, to have it scheduled anew"
            raise BadAnnotation(_name(pod), "hami.io/…-devices-allocated", "", problem)
        if not shares:
            return None
        uid = pod.metadata.uid
        numbered = {name: tuple(self._numbered(share, uid) for share in given) for name, given in shares.items()}
        return PodAllocation(pod.spec.node_name, numbered)

    def release(self, uid: str) -> None:
        """Free the numbers of a pod."""
        for uuid, number in self._held.pop(uid, ()):
            taken = self._taken[uuid]
            taken.discard(number)
            if not taken:
                del self._taken[uuid]

    def _numbered(self, share: SliceShare, uid: str) -> SliceShare:
        uuid = share.slice
        taken = self._taken.setdefault(uuid, set())
        number = FIRST_NUMBER
        while number in taken:
            number += 1
        taken.add(number)
        self._held.setdefault(uid, []).append((uuid, number))
        return SliceShare(slice_id(uuid, number), share.memory_mib, share.core_percent, share.family)


def _read(pod: Pod, family: Family, text: str, shares: dict[str, list[SliceShare]]) -> None:
    """Add the shares of one family by container; their slices are card UUIDs yet."""
    names = [container.name for container, _ in containers_of(pod)]
    for name, part in zip(names, text.split(";"), strict=False):
        for device in filter(None, part.split(":")):
            fields = device.split(",")
            if not (len(fields) == 4 and fields[0] and _is_amount(fields[2]) and _is_amount(fields[3])):
                problem = f"{device[:40]!r} is not UUID,TYPE,MiB,CORES; delete the pod, to have it scheduled anew"
                raise BadAnnotation(_name(pod), family.pod.allocated, text, problem)
            share = SliceShare(fields[0], int(fields[2]), min(int(fields[3]), 100), family.name)
            shares.setdefault(name, []).append(share)


def _is_amount(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 10


def _name(pod: Pod) -> str:
    return f"pod {pod.full_name}"
