"""Columns over all nodes: what the scan of 5,000 nodes reads.

One row a node, one column a card, cards of a node ordered by UUID so that the lower column is the lower UUID. Every
change of a row stamps it with a rising version; a cache rescores only the rows stamped since its own last look.

``share_mib`` is kept for cards with ``equal_shares`` alone: size of the shares in use, :data:`MIXED` if they differ.

``unclear`` counts the pods of a node of which nobody knows what they hold.

``used`` includes reservations, so it may exceed ``total`` while a reservation waits for its victims to end. Free is
then negative and nobody fits.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from gpuslice.devices.inventory import Card, NodeCards

if TYPE_CHECKING:
    from gpuslice.placement.view import NodeView

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.uint8]

UNKNOWN_NUMA: Final = -1
UNKNOWN_CPU: Final = -1
MIXED: Final = -1
MAX_CARDS: Final = 128
"""Cards of a node that are used; bounds what one node's annotation can cost everybody."""
MAX_SLICES: Final = 4_096
MAX_AMOUNT: Final = 2**31 - 1
MAX_NUMA: Final = 1_024
MAX_LINK: Final = 2**18
KIND_SEPARATOR: Final = "\n"
Links = tuple[tuple[int, ...], ...]
_FIRST_ROWS: Final = 16
_FIRST_COLUMNS: Final = 8


class Vocabulary:
    """Numbers for words (models, families, modes, domains). Number 0 is the empty word."""

    __slots__ = ("_numbers", "words")

    def __init__(self) -> None:
        self.words: list[str] = [""]
        self._numbers: dict[str, int] = {"": 0}

    def __len__(self) -> int:
        return len(self.words)

    def number(self, word: str) -> int:
        """Return the number of a word, new or known."""
        known = self._numbers.get(word)
        if known is None:
            known = self._numbers[word] = len(self.words)
            self.words.append(word)
        return known


_Kinds = tuple[tuple[str, type[np.generic]], ...]
CARD_COLUMNS: Final[_Kinds] = (
    ("total_slots", np.int32),
    ("total_memory", np.int32),
    ("total_cores", np.int32),
    ("used_slots", np.int64),
    ("used_memory", np.int64),
    ("used_cores", np.int64),
    ("exclusive", np.int32),
    ("present", np.bool_),
    ("healthy", np.bool_),
    ("cordoned", np.bool_),
    ("equal_shares", np.bool_),
    ("share_mib", np.int64),
    ("model", np.int32),
    ("kind", np.int32),
    ("family", np.int16),
    ("mode", np.int16),
    ("numa", np.int16),
)
NODE_COLUMNS: Final[_Kinds] = (
    ("known", np.bool_),
    ("ready", np.bool_),
    ("unclear", np.int32),
    ("cpu_total", np.int64),
    ("cpu_used", np.int64),
    ("domain", np.int32),
    ("wiring", np.int32),
    ("version", np.int64),
)


class Fleet:
    """All cards of all nodes as arrays, plus the words and names behind the numbers."""

    total_slots: npt.NDArray[np.int32]
    total_memory: npt.NDArray[np.int32]
    total_cores: npt.NDArray[np.int32]
    used_slots: Ints
    used_memory: Ints
    used_cores: Ints
    exclusive: npt.NDArray[np.int32]
    present: Bools
    healthy: Bools
    cordoned: Bools
    equal_shares: Bools
    share_mib: Ints
    model: npt.NDArray[np.int32]
    kind: npt.NDArray[np.int32]
    family: npt.NDArray[np.int16]
    mode: npt.NDArray[np.int16]
    numa: npt.NDArray[np.int16]
    known: Bools
    ready: Bools
    unclear: npt.NDArray[np.int32]
    cpu_total: npt.NDArray[np.int64]
    cpu_used: npt.NDArray[np.int64]
    domain: npt.NDArray[np.int32]
    wiring: npt.NDArray[np.int32]
    version: npt.NDArray[np.int64]

    def __init__(self) -> None:
        self.models = Vocabulary()
        self.kinds = Vocabulary()
        """Family and model together, joined by :data:`KIND_SEPARATOR`."""
        self.families = Vocabulary()
        self.modes = Vocabulary()
        self.domains = Vocabulary()
        self.names: list[str] = []
        self.row_of: dict[str, int] = {}
        self.now = 0
        """Version of the youngest change."""
        self.layout = 0
        """Rises when a node or card comes, goes or moves: row numbers looked up before are void."""
        self.any_equal_shares = False
        """Whether there is, or was, any card whose shares all have the same size."""
        self.views: dict[int, tuple[int, NodeView]] = {}
        """Rows in plain Python with the version they had; see :func:`gpuslice.placement.view.planning_view`."""
        self._uuids: list[tuple[str, ...]] = []
        self.wirings: list[Links] = [()]
        """Distinct link matrices; number 0 is the unknown one."""
        self._wiring_numbers: dict[Links, int] = {(): 0}
        self._free_rows: list[int] = []
        self._rank: npt.NDArray[np.int32] | None = None
        for name, kind in CARD_COLUMNS:
            setattr(self, name, np.zeros((_FIRST_ROWS, _FIRST_COLUMNS), dtype=kind))
        for name, kind in NODE_COLUMNS:
            setattr(self, name, np.zeros(_FIRST_ROWS, dtype=kind))

    @property
    def rows(self) -> int:
        """How many rows are in use or were."""
        return len(self.names)

    @property
    def rank(self) -> npt.NDArray[np.int32]:
        """Position of each row's node in the order of names; the tie-break."""
        if self._rank is None:
            order = sorted(range(len(self.names)), key=self.names.__getitem__)
            self._rank = np.empty(len(order), dtype=np.int32)
            self._rank[order] = np.arange(len(order), dtype=np.int32)
        return self._rank

    def set_rank(self, rank: Sequence[int]) -> None:
        """Replace the tie-break order, one number a row (a replay of a scheduler with another order of nodes)."""
        self._rank = np.asarray(rank, dtype=np.int32)

    def uuids(self, row: int) -> tuple[str, ...]:
        """Return the card UUIDs of a row, in column order."""
        return self._uuids[row]

    def links(self, row: int) -> Links:
        """Return the link values between the cards of a row, in column order; empty when unknown."""
        return self.wirings[int(self.wiring[row])]

    def column(self, row: int, uuid: str) -> int:
        """Return the column of a card in its node's row, or -1 if the node does not have it."""
        try:
            return self._uuids[row].index(uuid)
        except ValueError:
            return -1

    def touch(self, row: int) -> None:
        """Stamp a row as changed."""
        self.now += 1
        self.version[row] = self.now

    def touch_all(self) -> None:
        """Stamp every row as changed (the policy's own inputs changed)."""
        self.now += 1
        self.version[: self.rows] = self.now

    def add(self, name: str) -> int:
        """Give a node a row; its cards come with :meth:`describe`."""
        row = self._free_rows.pop() if self._free_rows else len(self.names)
        if row == len(self.names):
            self.names.append(name)
            self._uuids.append(())
            self._grow_rows(row + 1)
        self.names[row] = name
        self.row_of[name] = row
        self.known[row] = True
        self._relaid(row)
        return row

    def remove(self, name: str) -> None:
        """Take a node's row back."""
        row = self.row_of.pop(name)
        self._forget_cards(row)
        for column, _ in NODE_COLUMNS[:-1]:
            getattr(self, column)[row] = 0
        self.names[row] = ""
        self._free_rows.append(row)
        self._relaid(row)

    def describe(self, row: int, cards: NodeCards) -> None:
        """Set a node's cards. Usage of every card is zeroed: the caller books its holders again."""
        ordered = sorted(cards.cards, key=lambda card: card.uuid)
        self._grow_columns(len(ordered))
        self._forget_cards(row)
        self._uuids[row] = tuple(card.uuid for card in ordered)
        for column, card in enumerate(ordered):
            self._write(row, column, card)
        self._relink(row, cards)
        self._relaid(row)

    def rewrite(self, row: int, cards: NodeCards) -> None:
        """Update cards that stay where they are (health, cordon, totals, links); usage is kept."""
        self.views.pop(row, None)
        for column, card in enumerate(sorted(cards.cards, key=lambda card: card.uuid)):
            self._write(row, column, card)
        self._relink(row, cards)
        self.touch(row)

    def _write(self, row: int, column: int, card: Card) -> None:
        at = (row, column)
        self.present[at] = True
        self.total_slots[at] = min(max(card.slots, 0), MAX_SLICES)
        self.total_memory[at] = min(max(card.memory_mib, 0), MAX_AMOUNT)
        self.total_cores[at] = min(max(card.cores, 0), MAX_AMOUNT)
        self.healthy[at] = card.healthy
        self.cordoned[at] = card.cordoned
        self.equal_shares[at] = card.equal_shares
        self.any_equal_shares |= card.equal_shares
        self.model[at] = self.models.number(card.model)
        self.kind[at] = self.kinds.number(f"{card.family}{KIND_SEPARATOR}{card.model}")
        self.family[at] = self.families.number(card.family)
        self.mode[at] = self.modes.number(card.mode)
        self.numa[at] = card.numa if card.numa is not None and 0 <= card.numa < MAX_NUMA else UNKNOWN_NUMA

    def _relink(self, row: int, cards: NodeCards) -> None:
        """Keep the link matrix in column order; equal matrices of many nodes are kept once."""
        if not cards.links:
            self.wiring[row] = 0
            return
        order = sorted(range(len(cards.cards)), key=lambda at: cards.cards[at].uuid)
        links = tuple(tuple(min(max(cards.links[a][b], 0), MAX_LINK) for b in order) for a in order)
        number = self._wiring_numbers.setdefault(links, len(self.wirings))
        if number == len(self.wirings):
            self.wirings.append(links)
        self.wiring[row] = number

    def _forget_cards(self, row: int) -> None:
        self._uuids[row] = ()
        self.views.pop(row, None)
        for name, _ in CARD_COLUMNS:
            getattr(self, name)[row] = 0

    def _relaid(self, row: int) -> None:
        self.layout += 1
        self._rank = None
        self.touch(row)

    def _grow_rows(self, needed: int) -> None:
        capacity = len(self.known)
        if needed <= capacity:
            return
        capacity = max(needed, capacity + capacity // 2)
        for name, kind in (*CARD_COLUMNS, *NODE_COLUMNS):
            old = getattr(self, name)
            new = np.zeros((capacity, *old.shape[1:]), dtype=kind)
            new[: len(old)] = old
            setattr(self, name, new)

    def _grow_columns(self, needed: int) -> None:
        rows, width = self.present.shape
        if needed <= width:
            return
        for name, kind in CARD_COLUMNS:
            new = np.zeros((rows, needed), dtype=kind)
            new[:, :width] = getattr(self, name)
            setattr(self, name, new)
