"""best-fit: the least room left over, in CPU and in cards alike.

The node score is the one of the published baseline: half the CPU left plus half the share left, each relative to
128 cores and 8 cards, as a whole number 0..100.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from gpuslice.placement.columns import row_sum
from gpuslice.placement.fleet import Bools, Floats, Ints
from gpuslice.placement.mix import MILLI
from gpuslice.placement.policies import fragments
from gpuslice.placement.scan import ENDLESS_CPU, Scan
from gpuslice.placement.shape import Block, PodShape
from gpuslice.placement.view import NodeView

LARGEST_CPU: Final = 128_000
LARGEST_LEFT: Final = 8 * MILLI
_HALF: Final = 0.5


class CardBestFit:
    """Cards with the least left first."""

    name = "best-fit"

    def keys(self, view: NodeView, block: Block, usable: Sequence[int]) -> list[int]:  # noqa: ARG002  equal for all
        """Return minus what is left of each card."""
        return [-fragments.left_after(view.cards[column]) for column in usable]

    def columns(self, scan: Scan, block: Block, usable: Bools) -> Ints:  # noqa: ARG002  equal for all
        """Return the same in columns."""
        return -fragments.columns_after(scan)


class NodeBestFit:
    """Nodes with the least left first."""

    name = "best-fit"

    def score(self, view: NodeView, shape: PodShape) -> float:
        """Return 0..100, lower the more is left."""
        left = sum(fragments.lefts_after(view))
        return float(_score(fragments.free_cpu(view) - shape.cpu_milli, left))

    def scores(self, scan: Scan, shape: PodShape) -> Floats:
        """Return the same for every row."""
        left = row_sum(fragments.columns_after(scan))
        cpu = scan.cpu_free - shape.cpu_milli
        part = _HALF * (np.where(cpu >= ENDLESS_CPU // 2, 0, cpu) / LARGEST_CPU) + _HALF * (left / LARGEST_LEFT)
        scores: Floats = ((1.0 - part) * 100.0).astype(np.int64).astype(np.float64)
        return scores


def _score(cpu: int, left: int) -> int:
    part = _HALF * ((0 if cpu >= ENDLESS_CPU // 2 else cpu) / LARGEST_CPU) + _HALF * (left / LARGEST_LEFT)
    return int((1.0 - part) * 100.0)
