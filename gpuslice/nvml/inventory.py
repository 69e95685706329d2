"""What NVML says the machine has: physical cards, their MIG instances, and how they are linked.

Blocking; runs on the NVML thread. One card that fails its calls costs that card only.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import pynvml

from gpuslice.devices.quantity import MIB
from gpuslice.nvml import topology

T = TypeVar("T")
SYSFS_PCI = Path("/sys/bus/pci/devices")


@dataclass(frozen=True, slots=True)
class MigInstance:
    """One MIG compute instance that exists on a card."""

    uuid: str
    profile: str
    """For example ``1g.10gb`` or ``1g.10gb+me``."""
    memory_mib: int
    gpu_instance: int
    compute_instance: int
    core_percent: int
    """Share of the card's multiprocessors, rounded down."""


@dataclass(frozen=True, slots=True)
class PhysicalCard:
    """One GPU as NVML reports it."""

    uuid: str
    index: int
    """NVML's index; not stable over reboots."""
    model: str
    memory_mib: int
    bus_id: str = ""
    minor: int = 0
    """N of ``/dev/nvidiaN``; differs from the index on some machines."""
    numa: int | None = None
    mig_enabled: bool = False
    mig_instances: tuple[MigInstance, ...] = ()

    @property
    def computing_uuids(self) -> tuple[str, ...]:
        """What processes compute on: the card, or its MIG instances.

        A card with MIG lists the processes of all its instances; only an instance tells which are its own.
        """
        return tuple(instance.uuid for instance in self.mig_instances) if self.mig_enabled else (self.uuid,)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A card that NVML counts but cannot describe."""

    index: int
    problem: str


@dataclass(frozen=True, slots=True)
class Machine:
    """One reading of the whole machine."""

    driver: str
    cards: tuple[PhysicalCard, ...]
    links: tuple[tuple[int, ...], ...] = ()
    """Between `cards`, in their order; see gpuslice.devices.inventory.Link."""
    unreadable: tuple[Unreadable, ...] = ()


def read_machine(sysfs: Path = SYSFS_PCI, *, linked_as: Machine | None = None) -> Machine:
    """Read everything. NVML must be open.

    Args:
        sysfs: The kernel's directory of PCI devices.
        linked_as: Where it has the same cards in the same places, their links are taken from it: to read those takes
            ten times as long as all the rest.

    Raises:
        pynvml.NVMLError: NVML as a whole fails (not one card).
    """
    cards: list[PhysicalCard] = []
    handles: list[object] = []
    unreadable: list[Unreadable] = []
    for index in range(int(pynvml.nvmlDeviceGetCount())):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            cards.append(_read_card(handle, index, sysfs))
            handles.append(handle)
        except pynvml.NVMLError as error:
            unreadable.append(Unreadable(index, str(error)))
    if linked_as is not None and linked_as.links and _places(linked_as.cards) == _places(cards):
        links = linked_as.links
    else:
        links = topology.read_links(handles, [card.bus_id for card in cards])
    return Machine(_text(pynvml.nvmlSystemGetDriverVersion()), tuple(cards), links, tuple(unreadable))


def _places(cards: Iterable[PhysicalCard]) -> list[tuple[str, str]]:
    return [(card.uuid, card.bus_id) for card in cards]


def _read_card(handle: object, index: int, sysfs: Path) -> PhysicalCard:
    pci = pynvml.nvmlDeviceGetPciInfo(handle)
    bus_id = topology.bus_address(_text(pci.busId))
    card = PhysicalCard(
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        index=index,
        model=_text(pynvml.nvmlDeviceGetName(handle)),
        memory_mib=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) // MIB,
        bus_id=bus_id,
        minor=optional(lambda: int(pynvml.nvmlDeviceGetMinorNumber(handle)), index),
        numa=_numa(handle, bus_id, sysfs),
    )
    if not optional(lambda: bool(pynvml.nvmlDeviceGetMigMode(handle)[0]), False):
        return card
    return replace(card, mig_enabled=True, mig_instances=_mig_instances(handle))


def _numa(handle: object, bus_id: str, sysfs: Path) -> int | None:
    """NUMA node from sysfs, the kernel's own word; NVML's is the fallback (absent on most cards)."""
    try:
        node = int((sysfs / bus_id / "numa_node").read_text())
    except (OSError, ValueError):
        node = optional(lambda: int(pynvml.nvmlDeviceGetNumaNodeId(handle)), -1)
    return node if 0 <= node < 0xFFFF else None


def _mig_instances(parent: object) -> tuple[MigInstance, ...]:
    found: list[MigInstance] = []
    whole = optional(lambda: int(pynvml.nvmlDeviceGetAttributes_v2(parent).multiprocessorCount), 0)
    for position in range(optional(lambda: int(pynvml.nvmlDeviceGetMaxMigDeviceCount(parent)), 0)):
        # An empty place answers NOT_FOUND, which is normal.
        handle = optional(partial(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, parent, position), None)
        if handle is not None:
            found.append(_mig_instance(handle, whole))
    return tuple(found)


def _mig_instance(handle: object, whole_multiprocessors: int) -> MigInstance:
    attributes = pynvml.nvmlDeviceGetAttributes_v2(handle)
    memory_mib = int(attributes.memorySizeMB)
    slices = int(attributes.gpuInstanceSliceCount)
    name = _text(pynvml.nvmlDeviceGetName(handle))
    multiprocessors = int(attributes.multiprocessorCount)
    percent = multiprocessors * 100 // whole_multiprocessors if whole_multiprocessors else slices * 100 // 7
    return MigInstance(
        uuid=_text(pynvml.nvmlDeviceGetUUID(handle)),
        profile=name.rpartition("MIG ")[2] if "MIG " in name else f"{slices}g.{-(-memory_mib // 1024)}gb",
        memory_mib=memory_mib,
        gpu_instance=int(pynvml.nvmlDeviceGetGpuInstanceId(handle)),
        compute_instance=int(pynvml.nvmlDeviceGetComputeInstanceId(handle)),
        core_percent=min(percent, 100),
    )


def optional(call: Callable[[], T], default: T) -> T:
    """Make a call that a driver or card may not support; any NVML error gives `default`."""
    try:
        return call()
    except pynvml.NVMLError:
        return default


def _text(value: str | bytes) -> str:
    # Strings were bytes before driver package 11.515.
    return value.decode() if isinstance(value, bytes) else value
