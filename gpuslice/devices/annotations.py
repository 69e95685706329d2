"""The annotations that carry decisions and inventories.

Two formats side by side: our own versioned JSON, the authority, by container name; and HAMi's positional grammar, so
that its tools read what we decide and we read nodes that its plugins registered.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from gpuslice.devices.allocation import PodAllocation, SliceShare
from gpuslice.devices.decoding import UNREADABLE
from gpuslice.devices.errors import BadAnnotation
from gpuslice.devices.inventory import Card, MigProfile, NodeCards
from gpuslice.devices.quantity import MAX_INT32

ALLOCATION = "gpuslice.io/allocation"
CARDS = "gpuslice.io/cards"
OWN_PREFIX = "gpuslice.io/"

HAMI_NODE = "hami.io/vgpu-node"
HAMI_TIME = "hami.io/vgpu-time"
HAMI_ALLOCATED = "hami.io/vgpu-devices-allocated"
HAMI_TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
HAMI_BIND_PHASE = "hami.io/bind-phase"
HAMI_BIND_TIME = "hami.io/bind-time"
HAMI_NODE_REGISTER = "hami.io/node-nvidia-register"

VERSION = 1
_LONGEST_NUMBER = 10
"""Digits of a slice number; Python refuses to read numbers of thousands of digits."""
MOST_SHARES = 4_096
"""Shares of one pod: no more fit into the 256 KiB of annotations that a pod may have."""
_Decoded = TypeVar("_Decoded")


class _ShareWire(msgspec.Struct, rename="camel", omit_defaults=True):
    slice: str
    memory_mib: int = msgspec.field(name="memoryMiB", default=0)
    cores: int = 0
    family: str = msgspec.field(default_factory=lambda: "nvidia")
    """Always written: msgspec omits a string only if it is the very object of the default."""
    exclusive: bool = False


class _AllocationWire(msgspec.Struct):
    v: int
    node: str
    containers: dict[str, list[_ShareWire]]


class _MigWire(msgspec.Struct, rename="camel", omit_defaults=True):
    name: str
    memory_mib: int = msgspec.field(name="memoryMiB")
    cores: int
    placements: tuple[tuple[int, int], ...] = ()


class _CardWire(msgspec.Struct, rename="camel", omit_defaults=True):
    uuid: str
    memory_mib: int = msgspec.field(name="memoryMiB")
    slots: int
    cores: int
    model: str = ""
    family: str = "nvidia"
    index: int = 0
    numa: int | None = None
    healthy: bool = True
    cordoned: bool = False
    mode: str = "hami-core"
    core_units: int = 100
    mig: tuple[_MigWire, ...] = ()


class _CardsWire(msgspec.Struct, omit_defaults=True):
    v: int
    cards: tuple[_CardWire, ...]
    links: tuple[tuple[int, ...], ...] = ()
    identity: bool = True


_encoder = msgspec.json.Encoder(order="deterministic")
_allocation_decoder = msgspec.json.Decoder(_AllocationWire)
_cards_decoder = msgspec.json.Decoder(_CardsWire)


def encode_allocation(allocation: PodAllocation) -> str:
    """Write a decision as the value of ``gpuslice.io/allocation``."""
    wire = _AllocationWire(
        v=VERSION,
        node=allocation.node,
        containers={
            name: [
                _ShareWire(
                    slice=share.slice,
                    memory_mib=share.memory_mib,
                    cores=share.core_percent,
                    family=share.family,
                    exclusive=share.exclusive,
                )
                for share in shares
            ]
            for name, shares in allocation.containers.items()
        },
    )
    return _encoder.encode(wire).decode()


def decode_allocation(owner: str, text: str) -> PodAllocation:
    """Read ``gpuslice.io/allocation``.

    Args:
        owner: The pod, for the error message.
        text: The annotation's value.

    Raises:
        BadAnnotation: It is not valid JSON of a version we know, has more than :data:`MOST_SHARES` shares, or a
            quantity is negative.
    """
    wire = _decode(owner, ALLOCATION, text, _allocation_decoder.decode)
    if wire.v != VERSION:
        raise BadAnnotation(owner, ALLOCATION, text, f"version {wire.v} is not {VERSION}")
    count = sum(map(len, wire.containers.values()))
    if count > MOST_SHARES:
        problem = (
            f"containers hold {count} shares, more than {MOST_SHARES}; delete the pod so that it is scheduled anew"
        )
        raise BadAnnotation(owner, ALLOCATION, text, problem)
    containers = {
        name: tuple(_share(owner, text, share) for share in shares) for name, shares in wire.containers.items()
    }
    return PodAllocation(node=wire.node, containers=containers)


def _share(owner: str, text: str, wire: _ShareWire) -> SliceShare:
    card, separator, number = wire.slice.rpartition("::")
    if not (card and separator and number.isascii() and number.isdecimal() and len(number) <= _LONGEST_NUMBER):
        raise BadAnnotation(owner, ALLOCATION, text, f"slice {wire.slice!r} is not <card uuid>::<number>")
    if wire.memory_mib < 0 or not 0 <= wire.cores <= 100:
        raise BadAnnotation(owner, ALLOCATION, text, "memoryMiB must be 0 or more, cores 0 to 100")
    return SliceShare(
        slice=wire.slice,
        memory_mib=wire.memory_mib,
        core_percent=wire.cores,
        family=wire.family,
        exclusive=wire.exclusive,
    )


def encode_cards(cards: NodeCards) -> str:
    """Write a node's inventory as the value of ``gpuslice.io/cards``."""
    wire = _CardsWire(
        v=VERSION,
        cards=tuple(_card_to_wire(card) for card in cards.cards),
        links=cards.links,
        identity=cards.identity_known,
    )
    return _encoder.encode(wire).decode()


def decode_cards(node: str, text: str) -> NodeCards:
    """Read ``gpuslice.io/cards``.

    Raises:
        BadAnnotation: It is not valid JSON of a version we know, two cards share a UUID, a quantity is negative, or
            ``links`` is not a square matrix over the cards.
    """
    owner = f"node {node}"
    wire = _decode(owner, CARDS, text, _cards_decoder.decode)
    if wire.v != VERSION:
        raise BadAnnotation(owner, CARDS, text, f"version {wire.v} is not {VERSION}")
    if len({card.uuid for card in wire.cards}) != len(wire.cards):
        raise BadAnnotation(owner, CARDS, text, "two cards have the same uuid")
    if any(not _in_range(card) for card in wire.cards):
        raise BadAnnotation(
            owner, CARDS, text, f"memoryMiB, slots, cores and coreUnits must be 0 or more, at most {MAX_INT32}"
        )
    size = len(wire.cards)
    if wire.links and (len(wire.links) != size or any(len(row) != size for row in wire.links)):
        raise BadAnnotation(owner, CARDS, text, f"links must be a {size} by {size} matrix")
    cards = tuple(_card_from_wire(card) for card in wire.cards)
    return NodeCards(node=node, cards=cards, links=wire.links, identity_known=wire.identity)


def _in_range(card: _CardWire) -> bool:
    quantities = (card.memory_mib, card.slots, card.cores, card.core_units)
    return min(quantities) >= 0 and max(quantities) <= MAX_INT32


def _card_to_wire(card: Card) -> _CardWire:
    return _CardWire(
        uuid=card.uuid,
        memory_mib=card.memory_mib,
        slots=card.slots,
        cores=card.cores,
        model=card.model,
        family=card.family,
        index=card.index,
        numa=card.numa,
        healthy=card.healthy,
        cordoned=card.cordoned,
        mode=card.mode,
        core_units=card.core_units,
        mig=tuple(
            _MigWire(name=p.name, memory_mib=p.memory_mib, cores=p.core_percent, placements=p.placements)
            for p in card.mig_profiles
        ),
    )


def _card_from_wire(wire: _CardWire) -> Card:
    return Card(
        uuid=wire.uuid,
        memory_mib=wire.memory_mib,
        slots=wire.slots,
        cores=wire.cores,
        model=wire.model,
        family=wire.family,
        index=wire.index,
        numa=wire.numa,
        healthy=wire.healthy,
        cordoned=wire.cordoned,
        mode=wire.mode,
        core_units=wire.core_units,
        mig_profiles=tuple(MigProfile(p.name, p.memory_mib, p.cores, p.placements) for p in wire.mig),
    )


def _decode(owner: str, key: str, text: str, decode: Callable[[str], _Decoded]) -> _Decoded:
    try:
        return decode(text)
    except UNREADABLE as error:
        raise BadAnnotation(owner, key, text, str(error)) from error


def encode_hami_pod(allocation: PodAllocation, container_names: Iterable[str], words: dict[str, str]) -> str:
    """Write a decision in HAMi's grammar: ``UUID,WORD,MiB,cores:`` per card, ``;`` after each container.

    Args:
        allocation: The decision.
        container_names: *All* containers of the pod, init containers first, in the pod's order; the grammar is
            positional and an empty container is a bare ``;``.
        words: Family name to HAMi's vendor word.
    """
    parts: list[str] = []
    for name in container_names:
        parts.extend(
            f"{share.card},{words[share.family]},{share.memory_mib},{share.core_percent}:"
            for share in allocation.containers.get(name, ())
        )
        parts.append(";")
    return "".join(parts)


class _HamiCard(msgspec.Struct, omit_defaults=True):
    id: str
    count: int = 0
    devmem: int = 0
    devcore: int = 0
    type: str = ""
    mode: str = ""
    index: int = 0
    numa: int = 0
    health: bool = False


_hami_cards_decoder = msgspec.json.Decoder(list[_HamiCard])


def encode_hami_register(cards: Sequence[Card]) -> str:
    """Write an inventory as HAMi's node register: a JSON array in which zero values are left out."""
    wire = [
        _HamiCard(
            id=card.uuid,
            index=card.index,
            count=card.slots,
            devmem=card.memory_mib,
            devcore=card.cores,
            type=_hami_model(card),
            numa=card.numa or 0,
            mode=card.mode,
            health=card.healthy and not card.cordoned,
        )
        for card in cards
    ]
    return _encoder.encode(wire).decode()


def decode_hami_register(node: str, text: str, *, family: str = "nvidia") -> NodeCards:
    """Read a node that HAMi's plugin registered.

    Raises:
        BadAnnotation: The value is not HAMi's JSON.
    """
    wire = _decode(f"node {node}", HAMI_NODE_REGISTER, text, _hami_cards_decoder.decode)
    cards = tuple(
        Card(
            uuid=card.id,
            memory_mib=card.devmem,
            slots=card.count,
            cores=card.devcore,
            model=card.type,
            family=family,
            index=card.index,
            numa=card.numa,
            healthy=card.health,
            mode=card.mode or "hami-core",
        )
        for card in wire
    )
    return NodeCards(node=node, cards=cards, identity_known=False)


def _hami_model(card: Card) -> str:
    if card.family != "nvidia" or card.model.startswith("NVIDIA"):
        return card.model
    return f"NVIDIA-{card.model}"
