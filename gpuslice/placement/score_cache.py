"""Verdicts and scores of nodes for the classes of pods seen lately.

Pods come in few classes, and between two decisions few nodes change. So each class keeps its verdicts, and a look at
some nodes rescans only those of them that changed since they were last looked at.
"""

from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuslice.placement.fit import Known, fit_again
from gpuslice.placement.fleet import Codes, Fleet, Floats, Ints
from gpuslice.placement.rejection import Obstacle
from gpuslice.placement.shape import PodShape
from gpuslice.placement.states import NodeStates
from gpuslice.placement.verdicts import scan_and_tell

if TYPE_CHECKING:
    from gpuslice.placement.policies.policy import Policy

CLASSES: Final = 256
_ONE_BY_ONE: Final = 12
"""Up to so many rows, plain Python is quicker than columns."""
_SLICE_BY_SLICE: Final = 32
"""The same for pods of one slice."""
_AHEAD_CLASSES: Final = 8
_AHEAD_ROWS: Final = 8
"""What is judged ahead of time: so many rows of so many classes, half a millisecond at most."""


class _Verdicts:
    __slots__ = ("codes", "judged_at", "known", "policy", "rows", "rows_again", "scores", "shape", "versions")

    def __init__(self, shape: PodShape, policy: "Policy") -> None:
        self.shape = shape
        """Of one pod of the class."""
        self.policy = policy
        self.known: Known = {}
        self.rows: Ints = np.zeros(0, dtype=np.int64)
        """What was looked at last."""
        self.rows_again = False
        """The same was looked at before."""
        self.judged_at = 0
        """Version of the fleet when all of them had been judged."""
        self.codes: Codes = np.zeros(0, dtype=np.uint8)
        self.scores: Floats = np.zeros(0, dtype=np.float64)
        self.versions: Ints = np.zeros(0, dtype=np.int64)
        """Version of each row when it was scanned; 0 before the first scan."""

    def grow(self, rows: int) -> None:
        more = rows - len(self.codes)
        if more > 0:
            self.codes = np.append(self.codes, np.zeros(more, dtype=np.uint8))
            self.scores = np.append(self.scores, np.zeros(more, dtype=np.float64))
            self.versions = np.append(self.versions, np.zeros(more, dtype=np.int64))

    def stale(self, fleet: Fleet, rows: Ints) -> Ints:
        """Return those of some rows that have changed since they were judged."""
        return rows.take((self.versions.take(rows) < fleet.version.take(rows)).nonzero()[0])

    def judge(self, fleet: Fleet, rows: Ints, shape: PodShape) -> None:
        """Judge one row after the other."""
        for row in rows.tolist():
            fit = fit_again(self.known, fleet, row, shape, self.policy)
            self.codes[row], self.scores[row] = (fit, 0.0) if isinstance(fit, Obstacle) else (0, fit.score)


class ScoreCache:
    """Verdicts by class, least recently used dropped first."""

    def __init__(self, classes: int = CLASSES) -> None:
        self._classes = classes
        self._known: OrderedDict[tuple[int, int], _Verdicts] = OrderedDict()
        self._states = NodeStates()

    def look_round(self, fleet: Fleet) -> None:
        """See which nodes are equal, all at once: 30 ms for 5,000 after a list, which takes longer itself."""
        rows: Ints = np.fromiter(fleet.row_of.values(), dtype=np.int64)
        self._states.numbers(fleet, rows, at_once=len(rows))

    def verdicts(self, fleet: Fleet, rows: Ints, shape: PodShape, policy: "Policy") -> tuple[Codes, Floats]:
        """Return obstacle and score of some rows (all of them known to the fleet), up to date."""
        found = self._class(shape, policy)
        found.grow(fleet.rows)
        found.rows, found.rows_again = rows, rows is found.rows
        stale = found.stale(fleet, rows)
        if len(stale):
            self._rescan(fleet, found, stale, shape)
        found.judged_at = fleet.now
        return found.codes.take(rows), found.scores.take(rows)

    def look_ahead(self, fleet: Fleet) -> None:
        """Judge what has changed for the classes asked for last, if that is little: they will be asked for again.

        Only where the same array of rows was asked for twice: a scheduler that samples comes to other nodes first.
        """
        latest = islice(reversed(self._known.values()), _AHEAD_CLASSES)
        classes = [found for found in latest if found.rows_again and found.shape.is_one_slice]
        # Most classes were asked about the same rows: those that changed are looked for once.
        since = min((found.judged_at for found in classes), default=0)
        changed: dict[int, Ints] = {}
        for found in classes:
            rows = found.rows
            if id(rows) not in changed:
                changed[id(rows)] = rows.take((fleet.version.take(rows) > since).nonzero()[0])
            stale = found.stale(fleet, changed[id(rows)])
            if len(stale) > _AHEAD_ROWS:
                continue
            if len(stale):
                self._rescan(fleet, found, stale, found.shape)
            found.judged_at = fleet.now

    def _class(self, shape: PodShape, policy: "Policy") -> _Verdicts:
        # A policy is made once for each request and outlook, and lives as long as its classes: its identity will do.
        key = (id(policy), shape.cpu_milli if policy.reads_cpu else 0)
        found = self._known.get(key)
        if found is not None:
            self._known.move_to_end(key)
            return found
        found = self._known[key] = _Verdicts(shape, policy)
        if len(self._known) > self._classes:
            self._known.popitem(last=False)
        return found

    def _rescan(self, fleet: Fleet, found: _Verdicts, rows: Ints, shape: PodShape) -> None:
        if len(rows) <= (_SLICE_BY_SLICE if shape.is_one_slice else _ONE_BY_ONE):
            found.judge(fleet, rows, shape)
        elif not (shape.is_one_slice and shape.selection is None and self._rescan_alike(fleet, found, rows, shape)):
            found.codes[rows], found.scores[rows], unsearched = scan_and_tell(fleet, rows, shape, found.policy)
            rows = np.delete(rows, unsearched) if len(unsearched) else rows
        found.versions[rows] = fleet.version[rows]

    def _rescan_alike(self, fleet: Fleet, found: _Verdicts, rows: Ints, shape: PodShape) -> bool:
        """Judge one of all equal rows for each of them, if there are few different ones."""
        numbers = self._states.numbers(fleet, rows)
        if numbers is None:
            return False
        _, firsts, which = np.unique(numbers, return_index=True, return_inverse=True)
        if len(firsts) > _SLICE_BY_SLICE:
            return False
        examples = rows[firsts]
        found.judge(fleet, examples, shape)
        found.codes[rows], found.scores[rows] = found.codes[examples[which]], found.scores[examples[which]]
        return True
