"""What a node has: cards, their state, and the links between them."""

from dataclasses import dataclass
from enum import IntEnum

SLICE_SEPARATOR = "::"


class Link(IntEnum):
    """How closely two cards are connected; higher is better. One NVLink lane counts 100, so more lanes count more.

    The order is NVIDIA's own (``nvidia-smi topo``): SYS, NODE, PHB, PXB, PIX, same board, NVn.
    """

    UNKNOWN = 0
    CROSS_SOCKET = 10
    SAME_NUMA = 20
    HOST_BRIDGE = 30
    MULTIPLE_SWITCHES = 40
    SINGLE_SWITCH = 50
    SAME_BOARD = 60
    NVLINK = 100


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One MIG geometry a card can hold."""

    name: str
    memory_mib: int
    core_percent: int
    placements: tuple[tuple[int, int], ...] = ()
    """(start, size) in memory slices of the card."""


@dataclass(frozen=True, slots=True)
class Card:
    """One physical device (or static MIG instance) and what of it may be shared."""

    uuid: str
    memory_mib: int
    """Memory that may be promised, MiB; after the node's memory scaling."""
    slots: int = 10
    """How many containers may share the card."""
    cores: int = 100
    """Compute that may be promised, percent; after the node's core scaling."""
    model: str = ""
    family: str = "nvidia"
    index: int = 0
    numa: int | None = None
    """NUMA node, or None when the machine does not say."""
    healthy: bool = True
    cordoned: bool = False
    """An administrator took the card out of service for new pods."""
    mode: str = "hami-core"
    """How the node shares it: hami-core, exclusive, time-slicing, mps, mig-static, mig-dynamic."""
    mig_profiles: tuple[MigProfile, ...] = ()
    core_units: int = 100
    """How many units the vendor counts a whole card's compute in (AMD: compute units)."""
    equal_shares: bool = False
    """All shares of the card have the same size: the first one decides, until the card is idle again."""


@dataclass(frozen=True, slots=True)
class NodeCards:
    """Every card of one node, with pairwise links.

    ``links[i][j]`` is the Link value (or 100 × NVLink lanes) between ``cards[i]`` and ``cards[j]``; empty when unknown.
    """

    node: str
    cards: tuple[Card, ...]
    links: tuple[tuple[int, ...], ...] = ()
    identity_known: bool = True
    """The node's kubelet can tell its plugin which pod is being admitted (podresources, Kubernetes 1.34 or later)."""

    def link(self, first: int, second: int) -> int:
        """Return the link value between two positions in ``cards``."""
        return self.links[first][second] if self.links else int(Link.UNKNOWN)


def slice_id(uuid: str, number: int) -> str:
    """Return the identity of slice ``number`` (from 0) of a card, as the kubelet knows it."""
    return f"{uuid}{SLICE_SEPARATOR}{number}"


def card_of_slice(slice_name: str) -> str:
    """Return the card UUID in a slice identity."""
    return slice_name.rpartition(SLICE_SEPARATOR)[0]


def number_of_slice(slice_name: str) -> int:
    """Return the slice number in a slice identity."""
    return int(slice_name.rpartition(SLICE_SEPARATOR)[2])
