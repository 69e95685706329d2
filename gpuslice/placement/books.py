"""Per-node books: which pods hold or reserve what on a node, mirrored into the fleet's columns.

A use is booked on a card by UUID. A card that the node does not have (any more) is *lost*: the pod stays on record and
visible, nothing is counted anywhere, and the use is booked when the card is back.
"""

from collections.abc import Iterator
from dataclasses import replace

from gpuslice.devices.inventory import NodeCards
from gpuslice.placement.fleet import MAX_CARDS, MIXED, Fleet
from gpuslice.placement.holding import CardUse, Holding


class NodeBook:
    """One node: its cards if it is known, its holders whether it is known or not. Owned by :class:`Books`."""

    __slots__ = ("cards", "holders", "masks", "name", "reserved", "row")

    def __init__(self, name: str) -> None:
        self.name = name
        self.row = -1
        """Row in the fleet; -1 while the node is unknown."""
        self.cards: NodeCards | None = None
        self.masks: list[int] = []
        """Slices held of each card, by column; bit n is slice n."""
        self.holders: dict[str, Holding] = {}
        self.reserved: dict[str, tuple[CardUse, ...]] = {}


class Books:
    """All node books, and the only writer of usage in the fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.nodes: dict[str, NodeBook] = {}

    def open(self, name: str) -> NodeBook:
        """Return a node's book, new if need be."""
        book = self.nodes.get(name)
        if book is None:
            book = self.nodes[name] = NodeBook(name)
        return book

    def describe(self, name: str, cards: NodeCards) -> None:
        """Register a node's cards and book its holders on them."""
        fleet = self._fleet
        book = self.open(name)
        if book.row < 0:
            book.row = fleet.add(name)
        previous = book.cards
        book.cards = cards
        cards = _bounded(cards)
        if previous is not None and {c.uuid for c in _bounded(previous).cards} == {c.uuid for c in cards.cards}:
            fleet.rewrite(book.row, cards)
            self._measure_shares(book)
            return
        fleet.describe(book.row, cards)
        book.masks = [0] * len(fleet.uuids(book.row))
        fleet.unclear[book.row] = fleet.cpu_used[book.row] = 0
        for holding in book.holders.values():
            self._count(book, holding.uses, +1)
            self._count_node(book, holding, +1)
        for uses in book.reserved.values():
            self._count(book, uses, +1)
        self._mark_all(book)

    def close(self, name: str) -> None:
        """Forget a node's cards; its holders stay on record."""
        book = self.nodes[name]
        self._fleet.remove(name)
        book.row = -1
        book.cards = None
        book.masks = []
        self._drop_if_empty(book)

    def enter(self, holding: Holding) -> None:
        """Book a pod's uses on its node."""
        book = self.open(holding.node)
        book.holders[holding.key.uid] = holding
        if book.row < 0:
            return
        self._count(book, holding.uses, +1)
        self._count_node(book, holding, +1)
        for column, use in self.present(book, holding.uses):
            book.masks[column] |= use.slices
        self._fleet.touch(book.row)

    def leave(self, holding: Holding) -> None:
        """Take a pod's uses out of its node's book."""
        book = self.nodes[holding.node]
        del book.holders[holding.key.uid]
        if book.row >= 0:
            self._count(book, holding.uses, -1)
            self._count_node(book, holding, -1)
            for column, use in self.present(book, holding.uses):
                book.masks[column] = self._mask(book, use.uuid)
            self._fleet.touch(book.row)
        self._drop_if_empty(book)

    def reserve(self, node: str, uid: str, uses: tuple[CardUse, ...]) -> None:
        """Keep amounts on a node's cards for one pod."""
        book = self.open(node)
        book.reserved[uid] = uses
        if book.row >= 0:
            self._count(book, uses, +1)
            self._fleet.touch(book.row)

    def unreserve(self, node: str, uid: str) -> None:
        """Drop what was kept for one pod."""
        book = self.nodes[node]
        uses = book.reserved.pop(uid)
        if book.row >= 0:
            self._count(book, uses, -1)
            self._fleet.touch(book.row)
        self._drop_if_empty(book)

    def present(self, book: NodeBook, uses: tuple[CardUse, ...]) -> Iterator[tuple[int, CardUse]]:
        """Yield (column, use) for uses of cards that the node has now."""
        for use in uses:
            column = self._fleet.column(book.row, use.uuid)
            if column >= 0:
                yield column, use

    def lost(self, book: NodeBook, holding: Holding) -> tuple[str, ...]:
        """Return the cards on a pod's record that its node does not have."""
        here = {use.uuid for _, use in self.present(book, holding.uses)} if book.row >= 0 else set()
        return tuple(use.uuid for use in holding.uses if use.uuid not in here)

    def card_mask_conflicts(self, book: NodeBook, column: int) -> bool:
        """Tell whether two holders have the same slice of a card on record."""
        uuid = self._fleet.uuids(book.row)[column]
        seen = 0
        for holding in book.holders.values():
            for use in holding.uses:
                if use.uuid == uuid:
                    if seen & use.slices:
                        return True
                    seen |= use.slices
        return False

    def share_mib(self, book: NodeBook, uuid: str) -> int:
        """Return the size of a card's shares, held and reserved; 0 when there is none."""
        reserved = (use for uses in book.reserved.values() for use in uses)
        held = (use for holding in book.holders.values() for use in holding.uses)
        sizes = {use.share_mib for use in (*held, *reserved) if use.uuid == uuid}
        return sizes.pop() if len(sizes) == 1 else MIXED if sizes else 0

    def _measure_shares(self, book: NodeBook) -> None:
        """Tell the size of the shares of every card again: a card may have become one that is cut into equal ones."""
        fleet, row = self._fleet, book.row
        for column, uuid in enumerate(fleet.uuids(row)):
            fleet.share_mib[row, column] = self.share_mib(book, uuid) if fleet.equal_shares[row, column] else 0

    def _mask(self, book: NodeBook, uuid: str) -> int:
        mask = 0
        for holding in book.holders.values():
            for use in holding.uses:
                if use.uuid == uuid:
                    mask |= use.slices
        return mask

    def _mark_all(self, book: NodeBook) -> None:
        for holding in book.holders.values():
            for column, use in self.present(book, holding.uses):
                book.masks[column] |= use.slices

    def _count(self, book: NodeBook, uses: tuple[CardUse, ...], sign: int) -> None:
        fleet = self._fleet
        kept = fleet.views.get(book.row)
        for column, use in self.present(book, uses):
            at = (book.row, column)
            fleet.used_slots[at] += sign * use.slices.bit_count()
            fleet.used_memory[at] += sign * use.memory_mib
            fleet.used_cores[at] += sign * use.core_percent
            fleet.exclusive[at] += sign * int(use.exclusive)
            if fleet.equal_shares[at]:
                fleet.share_mib[at] = self.share_mib(book, use.uuid)
            if kept is not None:
                kept[1].changed.add(column)

    def _count_node(self, book: NodeBook, holding: Holding, sign: int) -> None:
        self._fleet.cpu_used[book.row] += sign * holding.cpu_milli
        self._fleet.unclear[book.row] += sign * int(holding.is_unclear)

    def _drop_if_empty(self, book: NodeBook) -> None:
        if book.row < 0 and not book.holders and not book.reserved:
            self.nodes.pop(book.name, None)


def _bounded(cards: NodeCards) -> NodeCards:
    """Return the cards that are used: no more than :data:`MAX_CARDS`."""
    if len(cards.cards) <= MAX_CARDS:
        return cards
    links = tuple(row[:MAX_CARDS] for row in cards.links[:MAX_CARDS])
    return replace(cards, cards=cards.cards[:MAX_CARDS], links=links)
