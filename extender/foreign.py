"""Pods that HAMi's scheduler placed: their shares count, so that one component can be exchanged at a time.

Their record names cards, MiB and percent by position, but no slices. So each share gets a slice number of our own, high
enough that it is never one of the kubelet's; it stands for the slot and nothing else.
"""

from collections.abc import Iterator

import structlog

from gpuslice.devices.allocation import PodAllocation, SliceShare
from gpuslice.devices.families import Families, Family
from gpuslice.devices.inventory import slice_id
from gpuslice.devices.pods import Pod
from gpuslice.devices.requests import containers_of

log = structlog.get_logger(__name__)

FIRST_NUMBER = 1024


class ForeignShares:
    """Reads such pods and numbers their slices; a pod keeps its numbers until it is released."""

    def __init__(self, families: Families) -> None:
        self._families = families
        self._numbers: dict[str, dict[int, str]] = {}
        """Numbers in use by card, and the pod that has each."""

    def allocation(self, pod: Pod) -> PodAllocation | None:
        """Give the allocation of a bound pod that another scheduler placed, or None if it holds nothing."""
        notes = pod.metadata.annotations
        shares: dict[str, list[SliceShare]] = {}
        self.release(pod.metadata.uid)
        for family in self._families:
            text = notes.get(family.pod.allocated)
            if text:
                self._read(pod, family, text, shares)
        if not shares:
            return None
        return PodAllocation(pod.spec.node_name, {name: tuple(given) for name, given in shares.items()})

    def release(self, uid: str) -> None:
        """Free the numbers of a pod."""
        for owners in self._numbers.values():
            for number in [number for number, owner in owners.items() if owner == uid]:
                del owners[number]

    def _read(self, pod: Pod, family: Family, text: str, shares: dict[str, list[SliceShare]]) -> None:
        names = [container.name for container, _ in containers_of(pod)]
        for name, part in zip(names, text.split(";"), strict=False):
            for uuid, memory_mib, core_percent in _devices(part):
                number = self._next(uuid, pod.metadata.uid)
                share = SliceShare(slice_id(uuid, number), memory_mib, min(core_percent, 100), family.name)
                shares.setdefault(name, []).append(share)

    def _next(self, uuid: str, uid: str) -> int:
        owners = self._numbers.setdefault(uuid, {})
        number = FIRST_NUMBER
        while number in owners:
            number += 1
        owners[number] = uid
        return number


def _devices(text: str) -> Iterator[tuple[str, int, int]]:
    """Read ``UUID,TYPE,MiB,CORES:`` repeated; what does not follow the grammar is logged and skipped."""
    for device in filter(None, text.split(":")):
        fields = device.split(",")
        if len(fields) == 4 and fields[2].isdecimal() and fields[3].isdecimal():
            yield fields[0], int(fields[2]), int(fields[3])
        else:
            log.warning("foreign_device_unreadable", text=device[:80])
