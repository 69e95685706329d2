"""fgd, fgd-plus and balanced: place where it costs the least future.

``fgd`` is fragmentation gradient descent as published (see :mod:`fragments`), with its whole-number score: the
published curves depend on the ties that the rounding makes.

``fgd-plus`` and ``balanced`` do not round, and add two terms: idle share that the node's free CPU cannot feed
(*stranded*), and *pressure*, which keeps models of card that many pods insist on for those pods::

    score = -(growth of fragments) - stranded_weight * (growth of stranded) - pressure * (share placed)

all three in cards.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from gpuslice.devices.value import Value
from gpuslice.placement.columns import row_sum
from gpuslice.placement.fleet import Bools, Floats, Ints
from gpuslice.placement.mix import MILLI, cpu_per_card, typical
from gpuslice.placement.outlook import MILLION, Outlook
from gpuslice.placement.policies import fragments
from gpuslice.placement.policies.fragments import Meter, Standing
from gpuslice.placement.room import Room
from gpuslice.placement.scan import ENDLESS_CPU, Scan
from gpuslice.placement.shape import Block, PodShape
from gpuslice.placement.view import CardState, NodeView

_HUNDRED: Final = 100
_Number = TypeVar("_Number", float, Floats)


@dataclass(frozen=True, slots=True)
class Tuning:
    """What distinguishes the members of the family."""

    percent: int
    """Part of all pods that the typical tasks cover."""
    by_demand: bool = False
    cpu_only: bool = False
    rounded: bool = False
    stranded_weight: float = 0.0
    pressure_weight: float = 0.0
    idle_weight: float = 0.0
    """How much the share left on the node counts: fuller nodes first, so that emptier ones run empty in time."""


TUNINGS: Final = {
    "fgd": Tuning(percent=95, cpu_only=True, rounded=True),
    "fgd-plus": Tuning(percent=95, stranded_weight=1.0, pressure_weight=1.0),
    "balanced": Tuning(percent=100, by_demand=True, stranded_weight=0.1, pressure_weight=1.75),
}


class CardGradient:
    """Cards whose use makes the fewest fragments first."""

    def __init__(self, name: str, tuning: Tuning, meter: Meter) -> None:
        self.name = name
        self._tuning = tuning
        self._meter = meter

    def keys(self, view: NodeView, block: Block, usable: Sequence[int]) -> list[int]:
        """Return minus the fragments of the node with one slice on each card (for ``fgd`` its whole-number score)."""
        left = fragments.lefts_after(view)
        kinds = [card.kind for card in view.cards]
        cpu = max(0, fragments.free_cpu(view) - view.cpu_wanted)
        tries = [(column, _left_with(view.cards[column], block)) for column in usable]
        found = [-fragments_with for fragments_with in self._meter.tries(left, kinds, cpu, tries)]
        if self._tuning.rounded:
            before = self._meter.fragments(left, kinds, fragments.free_cpu(view))
            found = _rounded(np.array(found, dtype=np.int64) + before, self._meter.total).tolist()
        return found

    def columns(self, scan: Scan, block: Block, usable: Bools) -> Ints:
        """Return the same in columns."""
        left = fragments.columns_after(scan)
        after = _columns_with(scan, block)
        cpu = scan.cpu_free
        cpu_after = np.maximum(0, cpu - scan.cpu_wanted)
        kinds = scan.kind[:, 0].astype(np.int64)
        keys = -self._meter.trials(left, after, kinds, cpu_after)
        before = self._meter.columns(left, kinds, cpu) if self._tuning.rounded else np.zeros(len(left), dtype=np.int64)
        for at in scan.mixed:
            self._mixed_row(scan, at, (left, after, keys, before), (int(cpu[at]), int(cpu_after[at])), usable)
        return _rounded(keys + before[:, None], self._meter.total) if self._tuning.rounded else keys

    def _mixed_row(
        self, scan: Scan, at: int, columns: tuple[Ints, Ints, Ints, Ints], cpus: tuple[int, int], usable: Bools
    ) -> None:
        left, after, keys, before = columns
        mine = np.flatnonzero(scan.present[at]).tolist()
        kinds = scan.kind[at, mine].tolist()
        now = left[at, mine].tolist()
        if self._tuning.rounded:
            before[at] = self._meter.fragments(now, kinds, cpus[0])
        wanted = [(place, column) for place, column in enumerate(mine) if usable[at, column]]
        tries = [(place, int(after[at, column])) for place, column in wanted]
        for (_, column), found in zip(wanted, self._meter.tries(now, kinds, cpus[1], tries), strict=True):
            keys[at, column] = -found


@dataclass(frozen=True, slots=True)
class _Before:
    """Terms of a node without the plan, in their own whole units."""

    fragments: int
    left: int
    pressure: int


class NodeGradient:
    """Nodes on which the pod makes the fewest fragments first."""

    def __init__(self, name: str, tuning: Tuning, meter: Meter, outlook: Outlook) -> None:
        self.name = name
        self._tuning = tuning
        self._meter = meter
        self._cpu_per_card = cpu_per_card(outlook.counts)
        self._growth_unit = max(meter.total, 1) * float(MILLI)
        self._stranded_unit = self._cpu_per_card * float(MILLI)
        self._pressure = outlook.pressure()
        self._pressure_column: Ints = np.array(self._pressure, dtype=np.int64)

    def score(self, view: NodeView, shape: PodShape) -> float:
        """Return the score of one node."""
        after = fragments.lefts_after(view)
        kinds = [card.kind for card in view.cards]
        cpu = fragments.free_cpu(view)
        cpu_after = max(0, cpu - shape.cpu_milli)
        before = self._before(view, kinds, cpu)
        growth = self._meter.fragments(after, kinds, cpu_after) - before.fragments
        if self._tuning.rounded:
            return float(_rounded(np.array([-growth]), self._meter.total)[0])
        left = sum(after)
        stranded = self._stranded(left, cpu_after) - self._stranded(before.left, cpu)
        pressed = before.pressure - sum(self._pressure[kind] * milli for kind, milli in zip(kinds, after, strict=True))
        return self._combine((float(growth), float(stranded), float(pressed), float(left)))

    def _before(self, view: NodeView, kinds: Sequence[int], cpu: int) -> "_Before":
        """Work out the terms of a node without the plan, once for each view."""
        known = view.before.get(self)
        if isinstance(known, _Before):
            return known
        left = fragments.lefts_before(view)
        found = view.before[self] = _Before(
            fragments=self._meter.fragments(left, kinds, cpu),
            left=sum(left),
            pressure=sum(self._pressure[kind] * milli for kind, milli in zip(kinds, left, strict=True)),
        )
        return found

    def score_with(self, kind: int, growth: int, lefts: tuple[int, int], cpus: tuple[int, int]) -> float:
        """Return the score of a node with cards of one kind; left share and free CPU are given before and after."""
        stranded = self._stranded(lefts[1], cpus[1]) - self._stranded(lefts[0], cpus[0])
        pressed = self._pressure[kind] * (lefts[0] - lefts[1])
        return self._combine((float(growth), float(stranded), float(pressed), float(lefts[1])))

    def scores(self, scan: Scan, shape: PodShape) -> Floats:
        """Return the score of every row."""
        before, after = fragments.columns_before(scan), fragments.columns_after(scan)
        cpu = scan.cpu_free
        cpu_after = np.maximum(0, cpu - shape.cpu_milli)
        kinds = scan.kind[:, 0].astype(np.int64)
        growth = self._meter.columns(after, kinds, cpu_after) - self._meter.columns(before, kinds, cpu)
        for at in scan.mixed:
            mine = np.flatnonzero(scan.present[at]).tolist()
            each = scan.kind[at, mine].tolist()
            growth[at] = self._meter.fragments(
                after[at, mine].tolist(), each, int(cpu_after[at])
            ) - self._meter.fragments(before[at, mine].tolist(), each, int(cpu[at]))
        if self._tuning.rounded:
            return _rounded(-growth, self._meter.total).astype(np.float64)
        stranded = self._stranded_column(row_sum(after), cpu_after) - self._stranded_column(row_sum(before), cpu)
        pressed = row_sum(self._pressure_column.take(scan.kind) * (before - after))
        terms = tuple(term.astype(np.float64) for term in (growth, stranded, pressed, row_sum(after)))
        return self._combine(terms)

    def _stranded(self, left: int, cpu: int) -> int:
        """Return idle share beyond what the free CPU can feed, in thousandths of a card times CPU per card."""
        if cpu >= ENDLESS_CPU // 2:
            return 0
        return max(0, left * self._cpu_per_card - cpu * MILLI)

    def _stranded_column(self, left: Ints, cpu: Ints) -> Ints:
        return np.where(cpu >= ENDLESS_CPU // 2, 0, np.maximum(0, left * self._cpu_per_card - cpu * MILLI))

    def _combine(self, terms: tuple[_Number, ...]) -> _Number:
        """Return the score from its terms in their own whole units; the same operations for one and for many."""
        growth, stranded, pressed, left = terms
        cards = growth / self._growth_unit
        starved = self._tuning.stranded_weight * (stranded / self._stranded_unit)
        scarce = self._tuning.pressure_weight * (pressed / (MILLION * float(MILLI)))
        idle = self._tuning.idle_weight * (left / float(MILLI))
        return 0.0 - cards - starved - scarce - idle


class _Outset(Value, frozen=True):
    """A node without the plan, and with the CPU of the pod taken."""

    fragments: int
    left: int
    cpus: tuple[int, int]
    """Free CPU before and after."""
    after: Standing


class JointGradient:
    """Both rankings in one: what tells the best card says what the node is worth with the slice on it."""

    def __init__(self, meter: Meter, node: NodeGradient) -> None:
        self._meter = meter
        self._node = node

    def best(self, view: NodeView, block: Block, rooms: Sequence[tuple[int, Room]]) -> tuple[int, float]:
        """Return the column of the card whose use makes the fewest fragments, and the node's score."""
        # The meter is shared by the policies of all classes of pods.
        outset: _Outset | None = view.before.get((self._meter, view.cpu_wanted))
        if outset is None:
            outset = view.before[self._meter, view.cpu_wanted] = self._set_out(view)
        column, best = rooms[0]
        now = best.left_with(block)
        fewest = outset.after.fragments_with(best.left, now)
        for at, room in rooms[1:]:
            left = room.left_with(block)
            fragments_with = outset.after.fragments_with(room.left, left)
            if fragments_with < fewest:
                column, best, now, fewest = at, room, left, fragments_with
        lefts = outset.left, outset.left - best.left + now
        return column, self._node.score_with(best.kind, fewest - outset.fragments, lefts, outset.cpus)

    def _set_out(self, view: NodeView) -> _Outset:
        left, kind = [room.left for room in view.rooms], view.rooms[0].kind
        cpu = fragments.free_cpu(view)
        cpu_after = max(0, cpu - view.cpu_wanted)
        before, after = self._meter.standing(left, kind, cpu), self._meter.standing(left, kind, cpu_after)
        return _Outset(before.fragments(), before.left, (cpu, cpu_after), after)


def _left_with(card: CardState, block: Block) -> int:
    """Return what is left of a card with one slice of the block on top of the plan."""
    if len(block.steps) == 1:
        request = block.wanted[0][1]
        memory = card.extra_memory[0] + request.memory_on(card.total_memory)
        cores = card.extra_cores[0] + request.core_percent
    else:
        by_step = list(enumerate(block.steps))
        memory = max(card.extra_memory[n] + (step.memory_on(card.total_memory) if step else 0) for n, step in by_step)
        cores = max(card.extra_cores[n] + (step.core_percent if step else 0) for n, step in by_step)
    exclusive = card.exclusive + card.extra_exclusive > 0 or block.exclusive
    return fragments.left_of(
        card,
        card.used_slots + card.extra_slots + 1,
        card.used_memory + memory,
        card.used_cores + cores,
        exclusive=exclusive,
    )


def _columns_with(scan: Scan, block: Block) -> Ints:
    memory, cores = scan.extra_memory[0] + scan.wanted(block, 0), scan.extra_cores[0] + _core_percent(block, 0)
    for step in range(1, len(block.steps)):
        memory = np.maximum(memory, scan.extra_memory[step] + scan.wanted(block, step))
        cores = np.maximum(cores, scan.extra_cores[step] + _core_percent(block, step))
    exclusive = np.ones_like(scan.exclusive) if block.exclusive else scan.exclusive
    return fragments.left_columns(
        scan, scan.slots_after() + 1, scan.used_memory + memory, scan.used_cores + cores, exclusive
    )


def _core_percent(block: Block, step: int) -> int:
    request = block.steps[step]
    return request.core_percent if request is not None else 0


def _rounded(gain: Ints, total: int) -> Ints:
    """Return int(100 x sigmoid(gain in cards)), the published score."""
    rounded: Ints = (_HUNDRED * (1.0 / (1.0 + np.exp(-(gain / (max(total, 1) * float(MILLI))))))).astype(np.int64)
    return rounded


def meter_of(tuning: Tuning, outlook: Outlook) -> Meter:
    """Return the meter for a member of the family."""
    mix = typical(outlook.counts, percent=tuning.percent, by_demand=tuning.by_demand, cpu_only=tuning.cpu_only)
    return Meter(mix, outlook)
