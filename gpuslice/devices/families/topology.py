"""Links between cards whose plugins do not measure them: known from how the vendor builds machines.

The values are :class:`gpuslice.devices.inventory.Link`, so that one placement ranks measured and known links alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gpuslice.devices.families.family import Family
from gpuslice.devices.inventory import Card, Link

Matrix = tuple[tuple[int, ...], ...]
_BLOCKS = ((2, Link.SAME_BOARD), (4, Link.SINGLE_SWITCH), (8, Link.MULTIPLE_SWITCHES), (16, Link.HOST_BRIDGE))


@dataclass(frozen=True, slots=True)
class Seat:
    """A card, its kind, and the name of the group it told to be in."""

    card: Card
    family: Family
    group: str = ""


def known_links(seats: Sequence[Seat]) -> Matrix:
    """Return the links between cards; empty when no rule says anything about them."""
    if not any(seat.family.topology in ("ring", "group") for seat in seats):
        return ()
    return tuple(tuple(_link(first, second) for second in seats) for first in seats)


def _link(first: Seat, second: Seat) -> int:
    family = first.family
    if first is second or family.name != second.family.name:
        return Link.UNKNOWN
    a, b = first.card.index, second.card.index
    if family.topology == "ring":
        return next((link for size, link in _BLOCKS if a // size == b // size), Link.SAME_NUMA)
    if family.topology == "group":
        return _link_of_groups(first, second)
    return Link.UNKNOWN


def _link_of_groups(first: Seat, second: Seat) -> int:
    form = first.family.node
    a, b = first.card.index, second.card.index
    if form.group_size:
        if a // form.group_size == b // form.group_size:
            return Link.SINGLE_SWITCH
        twins = form.twins and a % form.group_size == b % form.group_size
        return Link.MULTIPLE_SWITCHES if twins else Link.SAME_NUMA
    if not first.group or not second.group:
        return Link.UNKNOWN
    return Link.SINGLE_SWITCH if first.group == second.group else Link.SAME_NUMA


def joined(own: Matrix, own_cards: int, foreign: Matrix, foreign_cards: int) -> Matrix:
    """Put two matrices into one; nothing is known of links between cards of the two."""
    if not own and not foreign:
        return ()
    first = own or tuple((Link.UNKNOWN,) * own_cards for _ in range(own_cards))
    second = foreign or tuple((Link.UNKNOWN,) * foreign_cards for _ in range(foreign_cards))
    right, left = (int(Link.UNKNOWN),) * foreign_cards, (int(Link.UNKNOWN),) * own_cards
    return (*((*row, *right) for row in first), *((*left, *row) for row in second))
