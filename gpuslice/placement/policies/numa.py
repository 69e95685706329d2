"""numa: keep a container's cards on one NUMA node, and NUMA nodes with many usable cards for those that need them."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from gpuslice.placement.columns import row_count
from gpuslice.placement.fleet import UNKNOWN_NUMA, Bools, Floats, Ints
from gpuslice.placement.scan import Scan
from gpuslice.placement.shape import Block, PodShape
from gpuslice.placement.view import NodeView

_ENOUGH: Final = 1 << 20
_PLACES: Final = 1 << 10
"""More than there are NUMA nodes or cards in a machine."""


class CardNuma:
    """Cards of the smallest NUMA node that has enough of them first; if none has, of the largest."""

    name = "numa"

    def keys(self, view: NodeView, block: Block, usable: Sequence[int]) -> list[int]:
        """Return a key that is equal for cards of one NUMA node and different between NUMA nodes."""
        homes = [view.cards[column].numa for column in usable]
        return [_key(homes.count(home), home, block.cards) for home in homes]

    def columns(self, scan: Scan, block: Block, usable: Bools) -> Ints:
        """Return the same in columns."""
        numa: Ints = scan.numa.astype(np.int64)
        sizes = np.zeros_like(numa)
        for home in np.unique(numa[usable]).tolist():
            here = usable & (numa == home)
            sizes[here] = np.broadcast_to(row_count(here)[:, None], here.shape)[here]
        fitting = _ENOUGH - sizes * _PLACES - numa
        partial = sizes * _PLACES - numa - _ENOUGH
        keys: Ints = np.where((sizes >= block.cards) & (numa != UNKNOWN_NUMA), fitting, partial)
        return keys


class NodeNuma:
    """Nodes that can give every container all its cards from one NUMA node first."""

    name = "numa"

    def score(self, view: NodeView, shape: PodShape) -> float:
        """Return minus the number of NUMA borders that containers of the pod cross."""
        crossed = 0
        for columns in view.chosen:
            homes = {view.cards[column].numa for column in columns}
            crossed += len(homes) - 1 + int(len(columns) > 1 and UNKNOWN_NUMA in homes)
        del shape
        return float(-crossed)

    def scores(self, scan: Scan, shape: PodShape) -> Floats:
        """Return the same for every row."""
        crossed = np.zeros(len(scan.rows), dtype=np.int64)
        homes = np.unique(scan.numa)
        for block, chosen in zip(shape.blocks, scan.chosen, strict=True):
            for home in homes.tolist():
                here = (chosen & (scan.numa == home)).any(axis=1)
                crossed += here
                if home == UNKNOWN_NUMA and block.cards > 1:
                    crossed += here
            crossed -= 1
        return -crossed.astype(np.float64)


def _key(size: int, home: int, wanted: int) -> int:
    if size >= wanted and home != UNKNOWN_NUMA:
        return _ENOUGH - size * _PLACES - home
    return size * _PLACES - home - _ENOUGH
