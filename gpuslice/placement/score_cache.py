"""Verdicts and scores of every node for the classes of pods seen lately.

Pods come in few classes, and between two decisions few nodes change. So each class keeps its verdict of every node, and
a look at it rescans only the rows that changed since the last one.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuslice.placement.fit import fit_node
from gpuslice.placement.fleet import Codes, Fleet, Floats, Ints
from gpuslice.placement.rejection import Obstacle
from gpuslice.placement.scan import scan_nodes
from gpuslice.placement.shape import PodShape

if TYPE_CHECKING:
    from gpuslice.placement.policies.policy import Policy

CLASSES: Final = 256
_ONE_BY_ONE: Final = 2
"""Up to so many rows, plain Python is quicker than columns."""


class _Verdicts:
    __slots__ = ("codes", "policy", "scores", "version")

    def __init__(self, policy: "Policy") -> None:
        self.policy = policy
        self.codes: Codes = np.zeros(0, dtype=np.uint8)
        self.scores: Floats = np.zeros(0, dtype=np.float64)
        self.version = 0


class ScoreCache:
    """Verdicts by class, least recently used dropped first."""

    def __init__(self, classes: int = CLASSES) -> None:
        self._classes = classes
        self._known: OrderedDict[Hashable, _Verdicts] = OrderedDict()

    def verdicts(self, fleet: Fleet, shape: PodShape, policy: "Policy") -> tuple[Codes, Floats]:
        """Return obstacle and score of every row, up to date. The arrays belong to the cache: do not write to them."""
        # A policy is made once for each outlook and lives as long as its classes: its identity stands for all of it.
        key = (shape.request, shape.cpu_milli if policy.reads_cpu else 0, id(policy))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = _Verdicts(policy)
            if len(self._known) > self._classes:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        if found.version != fleet.now:
            self._refresh(fleet, found, shape, policy)
        return found.codes, found.scores

    def _refresh(self, fleet: Fleet, found: _Verdicts, shape: PodShape, policy: "Policy") -> None:
        rows = fleet.rows
        if len(found.codes) < rows:
            found.codes = np.resize(found.codes, rows) if len(found.codes) else np.zeros(rows, dtype=np.uint8)
            found.scores = np.resize(found.scores, rows) if len(found.scores) else np.zeros(rows, dtype=np.float64)
        changed: Ints = np.flatnonzero(fleet.version[:rows] > found.version)
        if len(changed) <= _ONE_BY_ONE:
            for row in changed.tolist():
                fit = fit_node(fleet, row, shape, policy)
                found.codes[row], found.scores[row] = (fit, 0.0) if isinstance(fit, Obstacle) else (0, fit.score)
        else:
            found.codes[changed], found.scores[changed] = scan_nodes(fleet, changed, shape, policy)
        found.version = fleet.now
