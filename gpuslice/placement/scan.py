"""Fit one pod on many nodes at once, in columns: the part of :mod:`gpuslice.placement.verdicts` that serves all pods.

The tests run in the order of :class:`Obstacle`, and a node is refused by the first test that leaves it too few cards.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuslice.devices.requests import CardSelection
from gpuslice.placement.columns import row_any, row_count, row_max
from gpuslice.placement.fleet import UNKNOWN_NUMA, Bools, Codes, Fleet, Floats, Ints
from gpuslice.placement.holding import CardUse
from gpuslice.placement.rejection import Obstacle
from gpuslice.placement.selection import model_accepted
from gpuslice.placement.shape import Block, PodShape

if TYPE_CHECKING:
    from gpuslice.placement.policies.policy import Policy

_WORST: Final = np.iinfo(np.int64).min
ENDLESS_CPU: Final = 2**40


@dataclass(slots=True)
class Freed:
    """What to leave out of the books in a scan: as if some pods had ended."""

    slots: Ints
    memory: Ints
    cores: Ints
    exclusive: Ints

    @classmethod
    def nothing(cls, rows: int, columns: int) -> "Freed":
        """Return zeros."""
        zeros = [np.zeros((rows, columns), dtype=np.int64) for _ in range(4)]
        return cls(*zeros)

    def add(self, at: int, column: int, use: CardUse) -> None:
        """Leave one use out."""
        self.slots[at, column] += use.slices.bit_count()
        self.memory[at, column] += use.memory_mib
        self.cores[at, column] += use.core_percent
        self.exclusive[at, column] += int(use.exclusive)

    def of(self, at: Ints) -> "Freed":
        """Return the part of some rows."""
        return Freed(self.slots[at], self.memory[at], self.cores[at], self.exclusive[at])


class Scan:
    """State of some rows and the plan that grows on all of them together."""

    def __init__(self, fleet: Fleet, rows: Ints, planned: PodShape, freed: Freed | None = None) -> None:
        self.fleet = fleet
        self.rows = rows
        self.cpu_wanted = planned.cpu_milli
        self.total_slots: Ints = fleet.total_slots[rows].astype(np.int64)
        self.total_memory: Ints = fleet.total_memory[rows].astype(np.int64)
        self.total_cores: Ints = fleet.total_cores[rows].astype(np.int64)
        self.used_slots: Ints = fleet.used_slots[rows]
        self.used_memory: Ints = fleet.used_memory[rows]
        self.used_cores: Ints = fleet.used_cores[rows]
        holders: Ints = fleet.exclusive[rows].astype(np.int64)
        if freed is not None:
            self.used_slots -= freed.slots
            self.used_memory -= freed.memory
            self.used_cores -= freed.cores
            holders -= freed.exclusive
        self.exclusive: Bools = holders > 0
        """Held exclusively, by the books and by the plan."""
        self.exclusive_before: Bools = self.exclusive
        self.present: Bools = fleet.present[rows]
        self.family = fleet.family[rows]
        self.model = fleet.model[rows]
        self.kind = fleet.kind[rows]
        self.numa = fleet.numa[rows]
        self.wiring: Ints = fleet.wiring[rows].astype(np.int64)
        shape = self.present.shape
        self.extra_slots: Ints = np.zeros(shape, dtype=np.int64)
        self.extra_memory: Ints = np.zeros((planned.steps, *shape), dtype=np.int64)
        self.extra_cores: Ints = np.zeros((planned.steps, *shape), dtype=np.int64)
        self.planned_mib: Ints = np.zeros(shape if fleet.any_equal_shares else (0, 0), dtype=np.int64)
        """Size of the shares that the plan has on each card, where all of a card must have the same."""
        self.chosen: list[Bools] = []
        self.healthy: Bools = fleet.healthy[rows]
        self.cordoned: Bools = fleet.cordoned[rows]
        self.shut: Bools = self.cordoned | ~(self.present & self.healthy)
        """Cards that hold nothing new whatever is left of them."""
        total = fleet.cpu_total[rows]
        self.cpu_free: Ints = np.where(total < 0, ENDLESS_CPU, total - fleet.cpu_used[rows])
        """Thousandths of a core; endless where unknown."""
        several = self.present & (self.kind != self.kind[:, :1])
        self.mixed: list[int] = np.flatnonzero(row_any(several)).tolist() if several.any() else []
        """Rows with cards of more than one kind."""
        self.left_before: Ints | None = None
        """Thousandths left of each card without the plan, once :mod:`fragments` was asked."""

    def slots_after(self) -> Ints:
        """Slots in use with the plan."""
        return self.used_slots + self.extra_slots

    def memory_after(self) -> Ints:
        """MiB in use with the plan, at its peak."""
        return self.used_memory + _peak(self.extra_memory)

    def cores_after(self) -> Ints:
        """Percent in use with the plan, at its peak."""
        return self.used_cores + _peak(self.extra_cores)

    def of_families(self, families: Iterable[str]) -> Bools:
        """Mark the cards of some families."""
        numbers = [self.fleet.families.number(family) for family in families]
        mine: Bools = self.present & np.isin(self.family, numbers)
        return mine

    def wanted(self, block: Block, step: int) -> Ints | int:
        """MiB that one slice of the block takes of each card in a step, or of every card."""
        request = block.steps[step]
        if request is None:
            return 0
        if request.memory_percent:
            of_each: Ints = self.total_memory * request.memory_percent // 100
            return of_each
        return request.memory_mib

    def peaks(self, block: Block) -> tuple[Ints | int, int]:
        """Most MiB of each card, and most percent, that one slice of the block takes."""
        memory = self.wanted(block, 0)
        for step in range(1, len(block.steps)):
            memory = np.maximum(memory, self.wanted(block, step))
        return memory, block.core_percent

    def take(self, block: Block, chosen: Bools, *, exclusive: bool) -> None:
        """Put a block on the chosen cards of every row."""
        self.extra_slots += chosen
        if self.fleet.any_equal_shares:
            self.planned_mib = np.where(chosen, self.peaks(block)[0], self.planned_mib)
        for step, request in block.wanted:
            self.extra_memory[step] += np.where(chosen, self.wanted(block, step), 0)
            self.extra_cores[step] += np.where(chosen, request.core_percent, 0)
        if exclusive:
            self.exclusive = self.exclusive | chosen
        self.chosen.append(chosen)


def _peak(by_step: Ints) -> Ints:
    peak: Ints = by_step[0] if len(by_step) == 1 else by_step.max(axis=0)
    return peak


def scan_in_turn(
    fleet: Fleet, rows: Ints, shape: PodShape, policy: "Policy", freed: Freed | None = None
) -> tuple[Codes, Floats]:
    """Return each row's obstacle (0 where the pod fits) and score (0 where it does not).

    Blocks are placed in turn, each on its best cards. ``COMBINATION`` says that one of them then found too few, so
    that another choice for the blocks before it might help.
    """
    codes = np.zeros(len(rows), dtype=np.uint8)
    scores = np.zeros(len(rows), dtype=np.float64)
    if not len(rows):
        return codes, scores
    codes[fleet.unclear[rows] > 0] = Obstacle.UNCLEAR
    codes[~fleet.ready[rows]] = Obstacle.NOT_READY
    codes[~row_any(fleet.present[rows])] = Obstacle.UNKNOWN_NODE
    scan = Scan(fleet, rows, shape, freed)
    accepted = accepted_cards(scan, shape.request.selection)
    for position, block in enumerate(shape.blocks):
        usable, found = usable_cards(scan, shape, position, accepted, idle_only=policy.idle_only)
        if shape.numa_groups[position] >= 0:
            usable = _on_big_enough_numa(scan, _at_home(scan, shape, position, usable), block.cards)
            found = np.where((found == 0) & ~row_any(usable), np.uint8(Obstacle.NUMA), found)
        refused = (codes == 0) & (found != 0)
        codes[refused] = Obstacle.COMBINATION if position else found[refused]
        chosen = _choose(scan, shape, position, usable, policy)
        scan.take(block, chosen, exclusive=block.exclusive or policy.idle_only)
    fits = codes == 0
    if fits.any():
        scores[fits] = policy.node.scores(scan, shape)[fits]
    return codes, scores


def accepted_cards(scan: Scan, selection: CardSelection) -> Bools:
    """Mark the cards that a selection accepts."""
    fleet = scan.fleet
    models = np.fromiter((model_accepted(selection, word) for word in fleet.models.words), dtype=np.bool_)
    accepted: Bools = models[scan.model]
    if selection.modes:
        modes = np.fromiter((word in selection.modes for word in fleet.modes.words), dtype=np.bool_)
        accepted = accepted & modes[fleet.mode[scan.rows]]
    if selection.use_uuids:
        accepted = accepted & _named(scan, frozenset(selection.use_uuids))
    if selection.refuse_uuids:
        accepted = accepted & ~_named(scan, frozenset(selection.refuse_uuids))
    return accepted


def _named(scan: Scan, uuids: frozenset[str]) -> Bools:
    named = np.zeros(scan.present.shape, dtype=np.bool_)
    for at, row in enumerate(scan.rows.tolist()):
        for column, uuid in enumerate(scan.fleet.uuids(row)):
            if uuid in uuids:
                named[at, column] = True
    return named


def usable_cards(
    scan: Scan, shape: PodShape, position: int, accepted: Bools, *, idle_only: bool
) -> tuple[Bools, Codes]:
    """Return the cards that can hold a slice of a block, and the first test that left a row too few of them."""
    block = shape.blocks[position]
    left = scan.present & (scan.family == scan.fleet.families.number(block.family))
    first = left
    tests = list(_tests(scan, shape, position, accepted, idle_only=idle_only))
    for _, passed in tests:
        left = left & passed
    found: Codes = np.zeros(len(left), dtype=np.uint8)
    short = np.flatnonzero(row_count(left) < block.cards)
    if len(short):
        found[short] = _first_shortage(first[short], [(what, passed[short]) for what, passed in tests], block.cards)
    return left, found


def _first_shortage(left: Bools, tests: Sequence[tuple[Obstacle, Bools]], wanted: int) -> Codes:
    """Return the first test that left each row too few cards, for rows that have too few in the end."""
    stages = np.logical_and.accumulate(np.stack([left, *(passed for _, passed in tests)]))
    short = np.einsum("ijk->ij", stages, dtype=np.int64) < wanted
    what: Codes = np.array([Obstacle.TOO_FEW_CARDS, *(obstacle for obstacle, _ in tests)], dtype=np.uint8)
    found: Codes = what[short.argmax(axis=0)]
    return found


def _tests(
    scan: Scan, shape: PodShape, position: int, accepted: Bools, *, idle_only: bool
) -> Iterable[tuple[Obstacle, Bools]]:
    block = shape.blocks[position]
    fleet, slots = scan.fleet, scan.slots_after()
    yield Obstacle.SELECTION, accepted
    yield Obstacle.UNHEALTHY, scan.healthy
    yield Obstacle.CORDONED, ~scan.cordoned
    yield Obstacle.EXCLUSIVE, ~scan.exclusive
    if block.exclusive or idle_only:
        yield Obstacle.BUSY, slots == 0
    yield Obstacle.SLOTS, slots < scan.total_slots
    fits_memory: Bools | np.bool_ = np.True_
    fits_cores: Bools | np.bool_ = np.True_
    for step, request in block.wanted:
        memory = scan.used_memory + scan.extra_memory[step] + scan.wanted(block, step)
        cores = scan.extra_cores[step] + request.core_percent if request.core_percent else 1
        fits_memory = fits_memory & (memory <= scan.total_memory)
        fits_cores = fits_cores & (scan.used_cores + cores <= scan.total_cores)
    yield Obstacle.MEMORY, np.asarray(fits_memory)
    yield Obstacle.CORES, np.asarray(fits_cores)
    if fleet.any_equal_shares:
        yield Obstacle.SHARE_SIZE, _same_size(scan, block)
    apart = [scan.chosen[other] for other in block.apart if other < len(scan.chosen)]
    if apart:
        yield Obstacle.COMBINATION, ~np.logical_or.reduce(apart)


def _same_size(scan: Scan, block: Block) -> Bools:
    """Mark the cards whose shares may have any size, or have that of the block."""
    fleet, rows = scan.fleet, scan.rows
    size = scan.peaks(block)[0]
    like_others = (scan.used_slots == 0) | (fleet.share_mib[rows] == size)
    like_planned = (scan.extra_slots == 0) | (scan.planned_mib == size)
    same: Bools = ~fleet.equal_shares[rows] | (like_others & like_planned)
    return same


def _on_big_enough_numa(scan: Scan, usable: Bools, wanted: int) -> Bools:
    kept = np.zeros_like(usable)
    for numa in np.unique(scan.numa[usable]).tolist():
        if numa == UNKNOWN_NUMA:
            continue
        here = usable & (scan.numa == numa)
        kept |= here & (row_count(here) >= wanted)[:, None]
    return kept


def _at_home(scan: Scan, shape: PodShape, position: int, usable: Bools) -> Bools:
    """Leave the cards on the NUMA node of blocks in the plan with which a block must share it, if there are any."""
    for other in range(position):
        if shape.numa_groups[other] == shape.numa_groups[position]:
            home = row_max(np.where(scan.chosen[other], scan.numa, UNKNOWN_NUMA))
            usable = usable & (scan.numa == home[:, None])
            break
    return usable


def _choose(scan: Scan, shape: PodShape, position: int, usable: Bools, policy: "Policy") -> Bools:
    """Mark the best cards of each row; rows with too few get what there is."""
    block = shape.blocks[position]
    keys = [np.where(usable, ranking.columns(scan, block, usable), _WORST) for ranking in policy.cards]
    if shape.numa_groups[position] >= 0:
        home = np.take_along_axis(scan.numa, _best(keys, usable)[:, None], axis=1)
        usable = usable & (scan.numa == home)
        keys = [np.where(usable, key, _WORST) for key in keys]
    chosen = np.zeros_like(usable)
    if block.cards == 1:
        np.put_along_axis(chosen, _best(keys, usable)[:, None], values=True, axis=1)
    else:
        order = _order(keys, usable)[:, : block.cards]
        np.put_along_axis(chosen, order, values=True, axis=1)
    return chosen & usable


def _best(keys: Sequence[Ints], usable: Bools) -> Ints:
    left = usable
    for key in keys[:-1]:
        narrowed = np.where(left, key, _WORST)
        left = left & (narrowed == row_max(narrowed)[:, None])
    best: Ints = np.where(left, keys[-1], _WORST).argmax(axis=1)
    return best


def _order(keys: Sequence[Ints], usable: Bools) -> Ints:
    """Return columns of each row, best first; ties by column."""
    descending = [np.where(usable, -key, np.iinfo(np.int64).max) for key in keys]
    order: Ints = np.lexsort(tuple(reversed(descending)), axis=1)
    return order
