"""Read the cards of a node that our own daemon did not register: HAMi's and the vendors' annotations and capacities."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import TypeVar

import msgspec

from gpuslice.devices.annotations import CARDS, decode_cards
from gpuslice.devices.decoding import UNREADABLE
from gpuslice.devices.errors import BadAnnotation, BadQuantity
from gpuslice.devices.families.family import Family
from gpuslice.devices.families.loader import Families
from gpuslice.devices.families.topology import Seat, joined, known_links
from gpuslice.devices.inventory import Card, NodeCards
from gpuslice.devices.pods import Node
from gpuslice.devices.quantity import MAX_INT32, MIB, parse_quantity

CORDON = "hami.io/device-cordon"
"""Node annotation of HAMi with the UUIDs that take no new pods."""
_MAX_CARDS = 1024


def cards_of_node(node: Node, families: Families) -> NodeCards | None:
    """Return every card of a node, or None when it has none of any family.

    Our own annotation speaks for the families it names; the others are read from where their plugins write.

    Raises:
        BadAnnotation: An annotation is unreadable; :func:`read_node` gives the other cards all the same.
    """
    cards, problems = read_node(node, families)
    if problems:
        raise problems[0]
    return cards


def read_node(node: Node, families: Families) -> tuple[NodeCards | None, tuple[BadAnnotation, ...]]:
    """Return the cards that are readable, and what is not: one vendor's slip does not hide the cards of another."""
    name = node.metadata.name
    problems: list[BadAnnotation] = []
    own = _own_cards(node, families, problems)
    covered = {card.family for card in own.cards} if own is not None else {"nvidia"} if problems else set()
    seats: list[Seat] = []
    for family in families:
        if family.name in covered:
            continue
        try:
            seats.extend(_read(node, family))
        except BadAnnotation as error:
            problems.append(error)
    if not seats:
        return own, tuple(problems)
    own_cards = own.cards if own is not None else ()
    cards = (*own_cards, *_cordoned(node, [seat.card for seat in seats]))
    twin = _first_twin(cards)
    if twin is not None:
        problems.append(BadAnnotation(f"node {name}", "register annotations", twin, "two cards have the same id"))
        return own, tuple(problems)
    links = joined(own.links if own is not None else (), len(own_cards), known_links(seats), len(seats))
    known = own is not None and own.identity_known
    return NodeCards(name, cards, links=links, identity_known=known), tuple(problems)


def _own_cards(node: Node, families: Families, problems: list[BadAnnotation]) -> NodeCards | None:
    text = node.metadata.annotations.get(CARDS)
    if text is None:
        return None
    try:
        read = decode_cards(node.metadata.name, text)
    except BadAnnotation as error:
        problems.append(error)
        return None
    alike = {family.name for family in families if family.equal_shares}
    if alike.isdisjoint(card.family for card in read.cards):
        return read
    return replace(read, cards=tuple(replace(card, equal_shares=card.family in alike) for card in read.cards))


def _cordoned(node: Node, cards: list[Card]) -> Iterator[Card]:
    listed = {word.strip() for word in node.metadata.annotations.get(CORDON, "").split(",")}
    for card in cards:
        yield replace(card, cordoned=True) if card.uuid in listed else card


def _first_twin(cards: tuple[Card, ...]) -> str | None:
    """Return an id that two cards have."""
    seen: set[str] = set()
    for card in cards:
        if card.uuid in seen:
            return card.uuid
        seen.add(card.uuid)
    return None


def _read(node: Node, family: Family) -> tuple[Seat, ...]:
    form = family.node
    if form.grammar == "capacity":
        return tuple(Seat(card, family) for card in _from_capacity(node, family))
    text = node.metadata.annotations.get(form.register)
    if text is None:
        return ()
    readers: dict[str, Callable[[Node, Family, str], list[_Registered]]] = {
        "json": _from_json,
        "text": _from_text,
        "metax": _from_metax,
        "drs": _from_drs,
    }
    wires = readers[form.grammar](node, family, text)
    return tuple(Seat(_card(node, family, text, wire), family, _group(wire, form.group_key)) for wire in wires)


def _group(wire: "_Registered", key: str) -> str:
    found = (wire.custominfo or {}).get(key)
    return "" if found is None else str(found)


class _Registered(msgspec.Struct):
    """A card as HAMi's JSON writes it; the other grammars are brought into this form. Absent means 0."""

    id: str
    count: int = 0
    devmem: int = 0
    devcore: int = 0
    type: str = ""
    mode: str = ""
    index: int = 0
    numa: int = 0
    health: bool = False
    custominfo: dict[str, object] | None = None


def _from_json(node: Node, family: Family, text: str) -> list[_Registered]:
    return _decode(node, family, text, list[_Registered])


def _from_text(node: Node, family: Family, text: str) -> list[_Registered]:
    """Read ``id,count,mem,core,type,numa,health[,index,mode]:`` repeated."""
    parts = text.rstrip(":").split(":") if text.strip(":") else []
    return [_one_from_text(node, family, text, position, part) for position, part in enumerate(parts)]


def _one_from_text(node: Node, family: Family, text: str, position: int, part: str) -> _Registered:
    fields = part.split(",")
    if len(fields) not in (7, 9):
        raise _unreadable(node, family, text, f"card {position} has {len(fields)} fields, not 7 or 9")
    try:
        return _Registered(
            id=fields[0],
            count=int(fields[1]),
            devmem=int(fields[2]),
            devcore=int(fields[3]),
            type=fields[4],
            numa=int(fields[5]),
            health=fields[6] in ("1", "t", "T", "true", "TRUE", "True"),
            index=int(fields[7]) if len(fields) == 9 else position,
            mode=fields[8] if len(fields) == 9 else "",
        )
    except ValueError as error:
        raise _unreadable(node, family, text, f"card {position}: {error}") from error


class _MetaxCard(msgspec.Struct, rename="camel"):
    uuid: str
    model: str = ""
    total_dev_count: int = 0
    total_compute: int = 0
    total_v_ram: int = msgspec.field(name="totalVRam", default=0)
    numa: int = 0
    healthy: bool = False
    link_zone: int = 0


def _from_metax(node: Node, family: Family, text: str) -> list[_Registered]:
    return [
        _Registered(
            id=wire.uuid,
            count=wire.total_dev_count,
            devmem=wire.total_v_ram,
            devcore=wire.total_compute,
            type=wire.model or family.word,
            numa=wire.numa,
            health=wire.healthy,
            index=index,
            custominfo={family.node.group_key: wire.link_zone} if wire.link_zone else None,
        )
        for index, wire in enumerate(_decode(node, family, text, list[_MetaxCard]))
    ]


class _DrsDevice(msgspec.Struct):
    index: str
    capacity: int | str = 0


class _DrsCapacity(msgspec.Struct):
    devices: list[_DrsDevice]
    profiles: dict[str, str]


def _from_drs(node: Node, family: Family, text: str) -> list[_Registered]:
    """Read Enflame's capacity: slices of each card, and profiles named ``<slices>g.<GiB>gb``."""
    wire = _decode(node, family, text, _DrsCapacity)
    try:
        largest_gib = max(int(name.partition("g.")[2].removesuffix("gb")) for name in wire.profiles)
        return [
            _Registered(
                id=_card_name(node, family, int(device.index)),
                count=int(device.capacity),
                devmem=largest_gib * 1024,
                devcore=100,
                type=family.word,
                index=int(device.index),
                health=True,
            )
            for device in wire.devices
        ]
    except ValueError as error:
        raise _unreadable(node, family, text, str(error)) from error


def _from_capacity(node: Node, family: Family) -> Iterator[Card]:
    """Make up numbered cards from what the node's kubelet can allocate; capacities are totals of the node."""
    form, rule = family.node, family.cores
    units = rule.units_per_card if form.cards_from == "cores" else 1
    counted = family.resources.cores if form.cards_from == "cores" else form.count_resource or family.resources.count
    total = _capacity(node, counted)
    cards = int(total // units)
    if not 0 < cards <= _MAX_CARDS:
        return
    memory = family.memory.card_mib
    if memory is None:
        blocks = _capacity(node, family.resources.memory)
        mib = blocks / MIB if family.memory.bare_is_bytes else blocks * family.memory.unit_mib
        memory = int(mib // cards)
    if memory > MAX_INT32:
        where = f"capacity {family.resources.memory}"
        raise BadAnnotation(f"node {node.metadata.name}", where, str(memory), "more MiB than any card has")
    for index in range(cards):
        yield Card(
            uuid=_card_name(node, family, index),
            memory_mib=memory,
            slots=form.slots_per_card,
            cores=100,
            model=family.word,
            family=family.name,
            index=index,
            equal_shares=family.equal_shares,
        )


def _capacity(node: Node, resource: str | None) -> Fraction:
    quantity = node.status.capacity.get(resource, 0) if resource else 0
    try:
        return max(parse_quantity(quantity), Fraction(0))
    except BadQuantity as error:
        raise BadAnnotation(
            f"node {node.metadata.name}", f"capacity {resource}", str(quantity), error.problem
        ) from error


def _card_name(node: Node, family: Family, index: int) -> str:
    return family.node.card_name.format(node=node.metadata.name, index=index)


_Wire = TypeVar("_Wire")


def _decode(node: Node, family: Family, text: str, kind: type[_Wire]) -> _Wire:
    try:
        return msgspec.json.decode(text, type=kind)
    except UNREADABLE as error:
        raise _unreadable(node, family, text, str(error)) from error


def _unreadable(node: Node, family: Family, text: str, problem: str) -> BadAnnotation:
    return BadAnnotation(f"node {node.metadata.name}", family.node.register, text, problem)


def _card(node: Node, family: Family, text: str, wire: _Registered) -> Card:
    """Make a card of what a plugin wrote; compute becomes percent, and the vendor's own count of units is kept."""
    quantities = (wire.devmem, wire.count, wire.devcore)
    if not wire.id or min(quantities) < 0 or max(quantities) > MAX_INT32:
        raise _unreadable(node, family, text, f"card {wire.id!r} has no id, or a quantity below 0 or above {MAX_INT32}")
    in_units = family.node.compute == "units"
    return Card(
        uuid=wire.id,
        memory_mib=wire.devmem,
        slots=wire.count,
        cores=100 if in_units or not wire.devcore else wire.devcore * 100 // family.cores.units_per_card,
        core_units=wire.devcore if in_units and wire.devcore else 100,
        model=wire.type,
        family=family.name,
        index=wire.index,
        numa=wire.numa if wire.numa >= 0 else None,
        healthy=wire.health,
        mode=wire.mode or "hami-core",
        equal_shares=family.equal_shares,
    )
