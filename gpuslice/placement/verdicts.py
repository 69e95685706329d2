"""Whether one pod fits on each of many nodes, and how well. Says what :mod:`gpuslice.placement.fit` says, faster.

The columns place the blocks of a pod in turn. A node where that fails, though another choice of cards may hold them
all, is searched in plain Python, as :func:`fit_node` does; but first the columns drop those where the blocks are too
large in sum, or two of them cannot be together whatever the choice. For pods of one container nothing of this is done.
"""

from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuslice.placement.columns import row_any, row_count, row_sum
from gpuslice.placement.combination import Allowance
from gpuslice.placement.fit import Fit, fit_node
from gpuslice.placement.fleet import Bools, Codes, Fleet, Floats, Ints
from gpuslice.placement.rejection import Obstacle
from gpuslice.placement.scan import Freed, Scan, accepted_cards, scan_in_turn, usable_cards
from gpuslice.placement.shape import PodShape

if TYPE_CHECKING:
    from gpuslice.placement.policies.policy import Policy

STEPS: Final = 100_000
"""Looks at a card that the searches of one scan may take, about a quarter of a second."""
_PAIRS: Final = 10
"""Pairs of blocks that are looked at; all of them for up to five blocks."""
_SIZES: Final = 8
"""Sizes of share that are counted, the largest first."""


def scan_nodes(
    fleet: Fleet, rows: Ints, shape: PodShape, policy: "Policy", freed: Freed | None = None
) -> tuple[Codes, Floats]:
    """Return each row's obstacle (0 where the pod fits) and score (0 where it does not).

    With ``freed`` a pod of several containers may be said to fit where it does not: such a caller looks closer.
    """
    codes, scores, _ = scan_and_tell(fleet, rows, shape, policy, freed)
    return codes, scores


def scan_and_tell(
    fleet: Fleet, rows: Ints, shape: PodShape, policy: "Policy", freed: Freed | None = None
) -> tuple[Codes, Floats, Ints]:
    """Do what :func:`scan_nodes` does, and name the positions of rows refused because :data:`STEPS` were spent.

    They are to be scanned again, with the searches that were done out of the way.
    """
    codes, scores = scan_in_turn(fleet, rows, shape, policy, freed)
    nothing: Ints = np.zeros(0, dtype=np.int64)
    failed = np.flatnonzero(codes == Obstacle.COMBINATION)
    if not len(failed):
        return codes, scores, nothing
    part = None if freed is None else freed.of(failed)
    hopeful = failed[_Hopes(fleet, rows[failed], shape, policy, part).rows()]
    if freed is not None:
        codes[hopeful] = Obstacle.NONE
        return codes, scores, nothing
    allowance = Allowance(STEPS)
    for done, at in enumerate(hopeful.tolist()):
        fit = fit_node(fleet, int(rows[at]), shape, policy, allowance=allowance)
        if isinstance(fit, Fit):
            codes[at], scores[at] = Obstacle.NONE, fit.score
        if not allowance.left:
            return codes, scores, hopeful[done + 1 :]
    return codes, scores, nothing


class _Hopes:
    """Necessary conditions for a pod of several blocks, in columns."""

    def __init__(self, fleet: Fleet, rows: Ints, shape: PodShape, policy: "Policy", freed: Freed | None) -> None:
        self._fleet = fleet
        self._rows = rows
        self._shape = shape
        self._freed = freed
        self._idle_only = policy.idle_only
        scan = self._scan()
        self._accepted = accepted_cards(scan, shape.request.selection)
        self._alone = [self._usable(scan, position) for position in range(len(shape.blocks))]
        self._left = np.ones(len(rows), dtype=np.bool_)

    def rows(self) -> Ints:
        """Return the positions of the rows that meet all conditions."""
        for block, usable in zip(self._shape.blocks, self._alone, strict=True):
            self._left &= row_count(usable) >= block.cards
        scan = self._scan()
        for step in range(self._shape.steps):
            self._left &= self._fits_in_sum(scan, step)
        for first, second in self._pairs():
            self._left &= self._together(first, second)
        found: Ints = np.flatnonzero(self._left)
        return found

    def _scan(self) -> Scan:
        return Scan(self._fleet, self._rows, self._shape, self._freed)

    def _usable(self, scan: Scan, position: int) -> Bools:
        return usable_cards(scan, self._shape, position, self._accepted, idle_only=self._idle_only)[0]

    def _pairs(self) -> Iterator[tuple[int, int]]:
        single = [position for position, block in enumerate(self._shape.blocks) if block.cards == 1]
        for number, pair in enumerate(combinations(single, 2)):
            if number == _PAIRS or not self._left.any():
                return
            yield pair

    def _together(self, first: int, second: int) -> Bools:
        """Mark the rows that hold two blocks of one card, on one card or on two."""
        one, other = self._alone[first], self._alone[second]
        on_two: Bools = row_any(one) & row_any(other) & (row_count(one | other) > 1)
        if first in self._shape.blocks[second].apart:
            return on_two
        scan, block = self._scan(), self._shape.blocks[first]
        scan.take(block, one, exclusive=block.exclusive or self._idle_only)
        return on_two | row_any(one & self._usable(scan, second))

    def _fits_in_sum(self, scan: Scan, step: int) -> Bools:
        """Mark the rows whose cards have enough left in all for one step, and enough room for its largest shares."""
        usable = np.logical_or.reduce(self._alone)
        memory: Ints = np.where(usable, np.maximum(scan.total_memory - scan.used_memory, 0), 0)
        cores: Ints = np.where(usable, np.maximum(scan.total_cores - scan.used_cores, 0), 0)
        slots: Ints = np.where(usable, np.maximum(scan.total_slots - scan.used_slots, 0), 0)
        wanted = [(request, block.cards) for block in self._shape.blocks if (request := block.steps[step]) is not None]
        fits: Bools = row_sum(memory) >= sum(request.memory_mib * cards for request, cards in wanted)
        fits &= row_sum(cores) >= sum(request.core_percent * cards for request, cards in wanted)
        for size in sorted({request.memory_mib for request, _ in wanted} - {0}, reverse=True)[:_SIZES]:
            count = sum(cards for request, cards in wanted if request.memory_mib >= size)
            fits &= row_sum(np.minimum(slots, memory // size)) >= count
        for size in sorted({request.core_percent for request, _ in wanted} - {0}, reverse=True)[:_SIZES]:
            count = sum(cards for request, cards in wanted if request.core_percent >= size)
            fits &= row_sum(np.minimum(slots, cores // size)) >= count
        return fits
