"""What a container really got: asked of a probe that runs with the container's own environment.

The probe is an ordinary CUDA and NVML program; it knows nothing of quotas. What it sees and where it is refused is
compared with what the scheduler wrote on the pod.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from gpuslice.devices.allocation import SliceShare
from simulator.kubelet.kubelet import StubKubelet

_Event = TypeVar("_Event")
OUT_OF_MEMORY = 2
"""CUDA_ERROR_OUT_OF_MEMORY."""
STEP_MIB = 64
OVERHEAD_MIB = 512
"""What a process may spend of its quota on its own context before its first allocation."""
RESERVED_PART = 0.02
"""What the driver itself keeps of a whole card."""


class SeenCard(msgspec.Struct):
    """One card as CUDA or NVML shows it."""

    uuid: str
    name: str
    total_mib: int

    @property
    def card(self) -> str:
        """UUID as NVML writes it; CUDA gives the bare digits."""
        return self.uuid if self.uuid.startswith(("GPU-", "MIG-")) else f"GPU-{self.uuid}"


class Devices(msgspec.Struct):
    """The probe's ``devices`` line."""

    cuda: list[SeenCard]
    nvml: list[SeenCard]


class Allocated(msgspec.Struct):
    """The probe's ``allocated`` line."""

    granted_mib: int
    refused: bool
    result: int
    result_name: str


class _Line(msgspec.Struct):
    event: str


@dataclass(frozen=True, slots=True)
class ContainerOutcome:
    """One GPU container: what it was promised, what it saw, what is wrong."""

    pod: str
    container: str
    node: str
    shares: Sequence[SliceShare]
    environment: Mapping[str, str]
    devices: Devices | None
    refusals: Sequence[Allocated]
    """Per card, in the container's order: how much a greedy process got."""
    problems: Sequence[str] = field(default_factory=tuple)


async def inspect(
    kubelet: StubKubelet, *, pod: str, uid: str, container: str, shares: Sequence[SliceShare]
) -> ContainerOutcome:
    """Run the probe beside a running container, or read what it printed where the container has ended."""
    running = kubelet.container(uid, container)
    if running.finished_at is None:
        listing = (await kubelet.exec(uid, container, ["gpuprobe", "--list"])).output
        greedy = [(await kubelet.exec(uid, container, _take_all(number))).output for number in range(len(shares))]
    else:
        listing = running.log_file.read_text(errors="replace")
        greedy = [listing]
    devices = _find(listing, "devices", Devices)
    refusals = [found for text in greedy if (found := _find(text, "allocated", Allocated)) is not None]
    return ContainerOutcome(
        pod=pod,
        container=container,
        node=kubelet.node_name,
        shares=shares,
        environment=running.creation.env,
        devices=devices,
        refusals=refusals,
        problems=[*_wrong_view(shares, devices), *_wrong_quota(shares, refusals)],
    )


def _take_all(device: int) -> list[str]:
    return ["gpuprobe", "--device", str(device), "--allocate", "0", "--step", str(STEP_MIB)]


def _find(text: str, event: str, kind: type[_Event]) -> _Event | None:
    for line in text.splitlines():
        if line.startswith("{") and msgspec.json.decode(line, type=_Line).event == event:
            return msgspec.json.decode(line, type=kind)
    return None


def _wrong_view(shares: Sequence[SliceShare], devices: Devices | None) -> Iterable[str]:
    """Compare the visible cards and their sizes with the promise."""
    if devices is None:
        yield "the probe could not list its cards"
        return
    promised = {share.card: share.memory_mib for share in shares}
    for source, cards in (("CUDA", devices.cuda), ("NVML", devices.nvml)):
        seen = {card.card: card.total_mib for card in cards}
        if seen.keys() != promised.keys() or len(cards) != len(shares):
            yield f"{source} shows {sorted(seen)}, promised were {sorted(promised)}"
            continue
        for card, total_mib in seen.items():
            if not promised[card] * (1 - RESERVED_PART) <= total_mib <= promised[card]:
                yield f"{source} shows {total_mib} MiB of {card}, promised were {promised[card]}"


def _wrong_quota(shares: Sequence[SliceShare], refusals: Sequence[Allocated]) -> Iterable[str]:
    if len(refusals) != len(shares):
        yield f"{len(refusals)} of {len(shares)} quotas could be tried"
    for share, found in zip(shares, refusals, strict=False):
        if not found.refused or found.result != OUT_OF_MEMORY:
            yield f"{share.card}: no CUDA_ERROR_OUT_OF_MEMORY at {share.memory_mib} MiB, but {found.result_name}"
        if found.granted_mib > share.memory_mib:
            yield f"{share.card}: {found.granted_mib} MiB granted of a quota of {share.memory_mib}"
        if found.granted_mib < share.memory_mib * (1 - RESERVED_PART) - OVERHEAD_MIB:
            yield f"{share.card}: only {found.granted_mib} MiB usable of a quota of {share.memory_mib}"
