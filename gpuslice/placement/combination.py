"""Find cards for all blocks of a pod together, where the best card for each in turn leaves a later one without.

A depth-first search over the blocks, hardest first, each over its cards in the order that the policy gives them on the
node as it is: the first plan found is the first in that order. Three things keep it short without losing a plan:

- cards in the same state are the same choice: only the first of them is tried;
- a state of the cards from which the rest did not fit is not searched twice, whoever of equal blocks sits where;
- the search ends after :data:`STEPS` looks at a card. Then the pod is refused, as if it did not fit; pods of up to four
  containers on machines of eight cards stay far below.
"""

from collections.abc import Hashable, Iterator, Sequence
from typing import Final

from gpuslice.placement.fleet import UNKNOWN_NUMA
from gpuslice.placement.rejection import Obstacle
from gpuslice.placement.shape import Block, PodShape
from gpuslice.placement.view import NodeView, apart_columns, numa_home, obstacle, take, take_back

STEPS: Final = 4_096
MOST_BLOCKS: Final = 64
"""Containers with cards, roughly; beyond, only the plan in turn is tried."""


class Allowance:
    """Looks at a card that several searches may take together."""

    __slots__ = ("left",)

    def __init__(self, steps: int) -> None:
        self.left = steps


class Combination:
    """One search on one node. A plan that is found stays in the view."""

    def __init__(self, view: NodeView, shape: PodShape, orders: Sequence[Sequence[int]], *, idle_only: bool) -> None:
        """Prepare; ``orders`` are the columns that can hold a slice of each block when it is alone, best first."""
        self._view = view
        self._shape = shape
        self._orders = orders
        self._idle_only = idle_only
        self._kinds = _kinds(shape)
        self._steps = STEPS
        self._same_numa = shape.request.selection.same_numa
        self._card_kinds = self._tell_cards_apart()
        self._placed: list[tuple[int, ...]] = [()] * len(view.cards)
        """Kinds of the blocks on each card, in ascending order."""
        self._dead_ends: set[Hashable] = set()

    def search(self, allowance: Allowance | None = None) -> bool:
        """Plan every block; False when there is no plan, or none was found in time."""
        if len(self._shape.blocks) > MOST_BLOCKS:
            return False
        found = self._plan(0)
        if allowance is not None:
            allowance.left = max(0, allowance.left - (STEPS - self._steps))
        return found

    def _plan(self, position: int) -> bool:
        if position == len(self._shape.blocks):
            return True
        state = (position, tuple(sorted(zip(self._card_kinds, self._placed, strict=True))))
        if state in self._dead_ends:
            return False
        block, kind = self._shape.blocks[position], self._kinds[position]
        for columns in self._sets(position, block):
            before = [self._placed[column] for column in columns]
            take(self._view, block, columns, exclusive=block.exclusive or self._idle_only)
            for column in columns:
                self._placed[column] = tuple(sorted((*self._placed[column], kind)))
            if self._plan(position + 1):
                return True
            take_back(self._view, block, exclusive=block.exclusive or self._idle_only)
            for column, kinds in zip(columns, before, strict=True):
                self._placed[column] = kinds
            if self._steps <= 0:
                return False
        self._dead_ends.add(state)
        return False

    def _sets(self, position: int, block: Block) -> Iterator[tuple[int, ...]]:
        """Yield the sets of cards that can hold a block beside the plan so far, in the policy's order."""
        free = self._free(position, block)
        if self._shape.numa_groups[position] < 0:
            yield from self._subsets(free, block.cards)
            return
        settled = numa_home(self._view, self._shape, position)
        for home in dict.fromkeys(self._view.cards[column].numa for column in free):
            if home != UNKNOWN_NUMA and settled in (None, home):
                here = [column for column in free if self._view.cards[column].numa == home]
                yield from self._subsets(here, block.cards)

    def _free(self, position: int, block: Block) -> list[int]:
        taken = apart_columns(self._view, self._shape, position)
        cards, selection = self._view.cards, self._shape.selection
        self._steps -= len(self._orders[position])
        return [
            column
            for column in self._orders[position]
            if column not in taken
            and obstacle(cards[column], block, selection, idle_only=self._idle_only) is Obstacle.NONE
        ]

    def _subsets(self, columns: Sequence[int], wanted: int) -> Iterator[tuple[int, ...]]:
        """Yield subsets of a size; of cards in the same state always the first ones."""
        if not wanted:
            yield ()
            return
        passed: set[Hashable] = set()
        for at in range(len(columns) - wanted + 1):
            if self._steps <= 0:
                return
            column = columns[at]
            state = (self._card_kinds[column], self._placed[column])
            if state in passed:
                continue
            passed.add(state)
            self._steps -= 1
            for others in self._subsets(columns[at + 1 :], wanted - 1):
                yield (column, *others)

    def _tell_cards_apart(self) -> list[int]:
        """Number the cards so that those which no block can tell apart have the same number."""
        numbers: dict[Hashable, int] = {}
        found = []
        for column, card in enumerate(self._view.cards):
            totals = (card.total_slots, card.total_memory, card.total_cores)
            used = (card.used_slots, card.used_memory, card.used_cores, card.exclusive)
            usable = tuple(column in order for order in self._orders)
            size = (card.equal_shares, card.share_mib)
            state = (usable, totals, used, size, card.numa if self._same_numa else 0)
            found.append(numbers.setdefault(state, len(numbers)))
        return found


def _kinds(shape: PodShape) -> list[int]:
    """Number the blocks so that those which a card cannot tell apart have the same number.

    A block from which another must stay apart is one of its own: where it sits matters to that other one.
    """
    numbers: dict[Hashable, int] = {}
    return [
        numbers.setdefault((block.steps, position if block.apart else -1), len(numbers))
        for position, block in enumerate(shape.blocks)
    ]
