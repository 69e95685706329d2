"""How much idle share a node has that the typical pods cannot use.

Fragmentation as defined by Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation
Gradient Descent", USENIX ATC 2023: for a task m, the idle share of a node is a fragment as a whole if m does not fit on
the node (CPU, number of cards with enough left, model) or needs no card; otherwise the shares left on cards too
small for m are. The measure is the sum over the typical tasks, weighted. Here it is a whole number: thousandths of a
card times weight.

For tasks of one card the usable part is a sum over cards, ``left * (weight of the tasks that fit into left)``. So one
table of weights by size answers for every card, and trying a card changes one term.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpuslice.placement.columns import ratio, row_count, row_sum
from gpuslice.placement.fleet import UNKNOWN_CPU, Bools, Ints
from gpuslice.placement.mix import MILLI, Mix, Task
from gpuslice.placement.outlook import Outlook, allows
from gpuslice.placement.room import part_left
from gpuslice.placement.scan import ENDLESS_CPU, Scan
from gpuslice.placement.view import CardState, NodeView


@dataclass(frozen=True, slots=True)
class _Several:
    """The tasks of so many cards with so much of each."""

    share_milli: int
    cards: int
    weights: Ints
    """Weight of those that can be served, by kind of card and number of CPU steps."""
    lists: list[list[int]]


class Meter:
    """Measures fragments against one mix."""

    def __init__(self, mix: Mix, outlook: Outlook) -> None:
        self.total = mix.total
        tasks = [(task, weight) for task, weight in mix.tasks if task.cards]
        self._kinds = outlook.kinds
        self._cpus = sorted({task.cpu_milli for task, _ in tasks})
        self._cpu_column: Ints = np.array(self._cpus, dtype=np.int64)
        single = [(task, weight) for task, weight in tasks if task.cards == 1]
        self._sizes = sorted({task.share_milli for task, _ in single})
        self._tables: Ints = np.zeros((len(self._kinds), len(self._cpus) + 1, len(self._sizes) + 1), dtype=np.int64)
        """Weight of the tasks of one card that can be served, by kind of card, number of CPU steps and of sizes."""
        for task, weight in single:
            self._add(self._tables[..., self._sizes.index(task.share_milli) + 1 :], task, weight)
        self._flat: Ints = self._tables.reshape(-1)
        self._lists: list[list[list[int]]] = self._tables.tolist()
        self._level_of: Ints = np.searchsorted(self._sizes, np.arange(MILLI + 1), side="right").astype(np.int64)
        self._levels: list[int] = self._level_of.tolist()
        self._several = tuple(self._group([(task, weight) for task, weight in tasks if task.cards > 1]))

    def _group(self, several: Sequence[tuple[Task, int]]) -> Iterator[_Several]:
        for share, cards in sorted({(task.share_milli, task.cards) for task, _ in several}):
            weights: Ints = np.zeros((len(self._kinds), len(self._cpus) + 1), dtype=np.int64)
            for task, weight in several:
                if (task.share_milli, task.cards) == (share, cards):
                    self._add(weights, task, weight)
            yield _Several(share, cards, weights, weights.tolist())

    def _add(self, table: Ints, task: Task, weight: int) -> None:
        """Add a task's weight for every kind that it accepts, from the CPU that it needs upward."""
        step = self._cpus.index(task.cpu_milli) + 1
        for at, kind in enumerate(self._kinds):
            if allows(kind, task.family, task.models):
                table[at, step:] += weight

    # -- one node ----------------------------------------------------------------------------------------------------

    def fragments(self, left: Sequence[int], kinds: Sequence[int], cpu: int) -> int:
        """Return the fragments of one node.

        Args:
            left: Thousandths left of each card.
            kinds: Kind of each card.
            cpu: Free CPU.
        """
        step = bisect_right(self._cpus, cpu)
        usable = sum(
            milli * self._lists[kind][step][self._levels[milli]] for milli, kind in zip(left, kinds, strict=True)
        )
        for group in self._several:
            fitting = [(milli, kind) for milli, kind in zip(left, kinds, strict=True) if milli >= group.share_milli]
            usable += _usable_together(group, fitting, step)
        return self.total * sum(left) - usable

    def tries(self, left: Sequence[int], kinds: Sequence[int], cpu: int, tries: Sequence[tuple[int, int]]) -> list[int]:
        """Return the fragments of one node for each try: if the card at ``try[0]`` had ``try[1]`` left."""
        if len(set(kinds)) > 1:
            return [self.fragments([*left[:at], after, *left[at + 1 :]], kinds, cpu) for at, after in tries]
        if not tries:
            return []
        standing = self.standing(left, kinds[0], cpu)
        return [standing.fragments_with(left[at], after) for at, after in tries]

    def standing(self, left: Sequence[int], kind: int, cpu: int) -> "Standing":
        """Measure one node whose cards are all of one kind, to try changes on."""
        step = bisect_right(self._cpus, cpu)
        groups = []
        for group in self._several:
            fitting = [milli for milli in left if milli >= group.share_milli]
            groups.append((group.share_milli, group.cards, group.lists[kind][step], len(fitting), sum(fitting)))
        return Standing(self.total, left, self._lists[kind][step], self._levels, groups)

    # -- many nodes --------------------------------------------------------------------------------------------------

    def columns(self, left: Ints, kinds: Ints, cpu: Ints) -> Ints:
        """Return the fragments of many nodes whose cards are all of one kind (``kinds``, one a row)."""
        steps = np.searchsorted(self._cpu_column, cpu, side="right")
        usable: Ints = row_sum(left * self._served(left, kinds, steps))
        for group in self._several:
            fits = left >= group.share_milli
            amount = row_sum(left * fits)
            usable += np.where(row_count(fits) >= group.cards, group.weights[kinds, steps] * amount, 0)
        fragments: Ints = self.total * row_sum(left) - usable
        return fragments

    def trials(self, left: Ints, after: Ints, kinds: Ints, cpu: Ints) -> Ints:
        """Return the fragments of many nodes if one card (by column) had ``after`` left instead of ``left``."""
        steps = np.searchsorted(self._cpu_column, cpu, side="right")
        terms = left * self._served(left, kinds, steps)
        usable: Ints = row_sum(terms)[:, None] - terms + after * self._served(after, kinds, steps)
        for group in self._several:
            fits, fits_after = left >= group.share_milli, after >= group.share_milli
            count = row_count(fits)[:, None] - fits + fits_after
            part = left * fits
            amount = row_sum(part)[:, None] - part + after * fits_after
            usable += np.where(count >= group.cards, group.weights[kinds, steps][:, None] * amount, 0)
        fragments: Ints = self.total * (row_sum(left)[:, None] - left + after) - usable
        return fragments

    def _served(self, left: Ints, kinds: Ints, steps: Ints) -> Ints:
        """Return, for every card, the weight of the tasks of one card that fit into what is left of it."""
        rows = (kinds * (len(self._cpus) + 1) + steps) * (len(self._sizes) + 1)
        served: Ints = self._flat.take(rows[:, None] + self._level_of.take(left))
        return served


class Standing:
    """One node with cards of one kind, added up: trying another amount on one card changes a term of each sum."""

    __slots__ = ("_groups", "_levels", "_total", "_usable", "_weights", "left")

    def __init__(
        self,
        total: int,
        left: Sequence[int],
        weights: Sequence[int],
        levels: Sequence[int],
        groups: Sequence[tuple[int, int, int, int, int]],
    ) -> None:
        """Add up; ``groups`` are share, cards and weight of tasks, and number and sum of the cards they fit on."""
        self._total = total
        self.left = sum(left)
        self._usable = sum([milli * weights[levels[milli]] for milli in left])
        self._weights = weights
        self._levels = levels
        self._groups = groups

    def fragments_with(self, before: int, after: int) -> int:
        """Return the fragments of the node if a card that has ``before`` left had ``after``."""
        weights, levels = self._weights, self._levels
        usable = self._usable - before * weights[levels[before]] + after * weights[levels[after]]
        for share, cards, weight, fitting, fitting_left in self._groups:
            was, now = before >= share, after >= share
            if fitting - was + now >= cards:
                usable += weight * (fitting_left - was * before + now * after)
        return self._total * (self.left - before + after) - usable

    def fragments(self) -> int:
        """Return the fragments of the node as it is."""
        return self.fragments_with(0, 0)


def _usable_together(group: _Several, fitting: Sequence[tuple[int, int]], step: int) -> int:
    """Return weight times share that tasks of several cards can use of one node's cards of sufficient share."""
    if len(fitting) < group.cards:
        return 0
    kinds = {kind for _, kind in fitting}
    if len(kinds) == 1:
        return group.lists[kinds.pop()][step] * sum(milli for milli, _ in fitting)
    # On a node of several kinds a task's cards are of one kind: pods that mix kinds of cards are rare.
    by_kind = {kind: [milli for milli, its in fitting if its == kind] for kind in kinds}
    return sum(group.lists[kind][step] * sum(lefts) for kind, lefts in by_kind.items() if len(lefts) >= group.cards)


def left_of(card: CardState, slots: int, memory: int, cores: int, *, exclusive: bool) -> int:
    """Return the thousandths of a card that are left, given what is used of it."""
    if exclusive or slots >= card.total_slots or not card.healthy or card.cordoned:
        return 0
    return part_left(card.total_memory, card.total_memory - memory, card.total_cores, card.total_cores - cores)


def left_before(card: CardState) -> int:
    """Return what is left of a card without the plan."""
    return left_of(card, card.used_slots, card.used_memory, card.used_cores, exclusive=card.exclusive > 0)


def left_after(card: CardState) -> int:
    """Return what is left of a card with the plan."""
    if not card.extra_slots:
        return left_before(card)
    exclusive = card.exclusive + card.extra_exclusive > 0
    return left_of(card, card.slots_after, card.memory_after, card.cores_after, exclusive=exclusive)


def lefts_before(view: NodeView) -> list[int]:
    """Return what is left of each card without the plan. The list is the view's own."""
    if len(view.left_before) != len(view.cards):
        view.left_before[:] = [left_before(card) for card in view.cards]
    return view.left_before


def lefts_after(view: NodeView) -> list[int]:
    """Return what is left of each card with the plan. The list is the view's own."""
    left, cards = view.left, view.cards
    if len(left) != len(cards):
        left[:] = lefts_before(view)
    for column in view.moved:
        left[column] = left_after(cards[column])
    view.moved.clear()
    return left


def left_columns(scan: Scan, slots: Ints, memory: Ints, cores: Ints, exclusive: Bools) -> Ints:
    """Return the thousandths left of every card of a scan, given what is used of them."""
    shut = exclusive | (slots >= scan.total_slots) | scan.shut
    by_memory = ratio(MILLI * np.maximum(scan.total_memory - memory, 0), scan.total_memory)
    by_cores = ratio(MILLI * np.maximum(scan.total_cores - cores, 0), scan.total_cores)
    left: Ints = np.minimum(by_memory, by_cores)
    left[shut] = 0
    return left


def columns_before(scan: Scan) -> Ints:
    """Return what is left of every card without the plan."""
    if scan.left_before is None:
        scan.left_before = left_columns(scan, scan.used_slots, scan.used_memory, scan.used_cores, scan.exclusive_before)
    return scan.left_before


def columns_after(scan: Scan) -> Ints:
    """Return what is left of every card with the plan."""
    if not scan.chosen:
        return columns_before(scan)
    return left_columns(scan, scan.slots_after(), scan.memory_after(), scan.cores_after(), scan.exclusive)


def free_cpu(view: NodeView) -> int:
    """Return the free CPU of a node; endless when unknown."""
    return ENDLESS_CPU if view.cpu_free == UNKNOWN_CPU else view.cpu_free
