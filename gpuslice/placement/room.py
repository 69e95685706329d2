"""What the cards of a node have left for one slice more: the short way for pods of one container with one card.

Most pods are such, and most nodes are looked at for them. What depends on a card alone is worked out once for all
classes of pods, and again only when that card changes; cards in the same state, on whatever nodes, share it.
:func:`gpuslice.placement.view.obstacle` says the same of each card.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from gpuslice.devices.requests import CardSelection
from gpuslice.placement.mix import MILLI
from gpuslice.placement.rejection import Obstacle
from gpuslice.placement.selection import card_accepted
from gpuslice.placement.shape import Block
from gpuslice.placement.view import CardState, NodeView, barred

ANY_SIZE: Final = -2
_KEPT: Final = 8_192
"""States of cards; 450 bytes each."""


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """A state of a card, without a plan on it. Compared by identity: equal states are one object, or are forgotten."""

    family: str
    kind: int
    is_open: bool
    """The card takes new slices."""
    idle: bool
    last_slot: bool
    """With one slice more the card takes no other."""
    total_memory: int
    total_cores: int
    memory: int
    """MiB that are free."""
    cores: int
    """Percent that are free."""
    share_mib: int
    """Size that a slice must have; :data:`ANY_SIZE` if it may have any."""
    left: int
    """Thousandths left of the card; see :mod:`gpuslice.placement.policies.fragments`."""

    def left_with(self, block: Block) -> int:
        """Return the thousandths left with the one slice of a block on the card, which can hold it."""
        if block.exclusive or self.last_slot:
            return 0
        request = block.wanted[0][1]
        memory = self.memory - request.memory_on(self.total_memory)
        return part_left(self.total_memory, memory, self.total_cores, self.cores - request.core_percent)


def part_left(total_memory: int, memory: int, total_cores: int, cores: int) -> int:
    """Return free memory or free compute as a part of all of it, in thousandths: whichever is less."""
    by_memory = MILLI * memory // total_memory if total_memory else 0
    by_cores = MILLI * cores // total_cores if total_cores else 0
    return max(0, min(by_memory, by_cores))


@lru_cache(maxsize=_KEPT)
def _room(
    kind: tuple[str, int], shut: Obstacle, total: tuple[int, int, int], used: tuple[int, int, int], share_mib: int
) -> Room:
    slots, memory, cores = (has - taken for has, taken in zip(total, used, strict=True))
    is_open = not shut and slots > 0
    left = part_left(total[1], memory, total[2], cores) if is_open else 0
    return Room(*kind, is_open, not used[0], slots == 1, total[1], total[2], memory, cores, share_mib, left)


def _room_of(card: CardState) -> Room:
    return _room(
        (card.family, card.kind),
        barred(card),
        (card.total_slots, card.total_memory, card.total_cores),
        (card.used_slots, card.used_memory, card.used_cores),
        card.share_mib if card.equal_shares and card.used_slots else ANY_SIZE,
    )


def look_round(view: NodeView) -> None:
    """Bring ``rooms``, ``state`` and ``firsts`` of a node's view up to date; the plan on it does not count."""
    if len(view.rooms) != len(view.cards):
        view.rooms[:] = map(_room_of, view.cards)
    elif view.changed:
        for column in view.changed:
            view.rooms[column] = _room_of(view.cards[column])
    else:
        return
    view.changed.clear()
    view.state = tuple(view.rooms)
    firsts: dict[Room, int] = {}
    for column, room in enumerate(view.rooms):
        firsts.setdefault(room, column)
    view.firsts = [(column, room) for room, column in firsts.items()]


def that_hold(rooms: Iterable[tuple[int, Room]], block: Block, *, idle_only: bool) -> list[tuple[int, Room]]:
    """Return those of some cards, with their columns, that can hold the one slice of a block."""
    request = block.wanted[0][1]
    family, cores, idle_only = block.family, request.core_percent or 1, idle_only or block.exclusive
    percent, memory = request.memory_percent, request.memory_mib
    found = []
    for column, room in rooms:
        if not room.is_open or cores > room.cores or room.family != family or (idle_only and not room.idle):
            continue
        if percent:
            memory = request.memory_on(room.total_memory)
        if memory <= room.memory and room.share_mib in (ANY_SIZE, memory):
            found.append((column, room))
    return found


def accepted(view: NodeView, selection: CardSelection) -> list[tuple[int, Room]]:
    """Return the cards that a selection accepts, with their columns."""
    return [
        (column, room)
        for column, (card, room) in enumerate(zip(view.cards, view.rooms, strict=True))
        if card_accepted(selection, card.uuid, card.model, card.mode)
    ]
