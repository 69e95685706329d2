"""topology-aware: well-connected cards for pods that want several, and the least missed card for pods that want one."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from gpuslice.placement.columns import row_count, row_masks
from gpuslice.placement.fleet import Bools, Floats, Ints, Links
from gpuslice.placement.policies.load import FULL, NodeLoad
from gpuslice.placement.policies.policy import Weights
from gpuslice.placement.scan import Scan
from gpuslice.placement.shape import Block, PodShape
from gpuslice.placement.topology import best_set, worst_link
from gpuslice.placement.view import NodeView

NAME: Final = "topology-aware"
_LOAD_RANGE: Final = 4 * FULL


class CardWiring:
    """The cards of the best set first."""

    name = NAME

    def keys(self, view: NodeView, block: Block, usable: Sequence[int]) -> list[int]:
        """Return 1 for the cards of the best set and 0 for the others; 0 for all where links are unknown."""
        if not view.links:
            return [0] * len(usable)
        chosen = best_set(view.links, sum(1 << column for column in usable), block.cards)
        return [int(column in chosen) for column in usable]

    def columns(self, scan: Scan, block: Block, usable: Bools) -> Ints:
        """Return the same in columns."""
        keys = np.zeros(usable.shape, dtype=np.int64)
        at = np.flatnonzero((row_count(usable) >= block.cards) & (scan.wiring > 0))
        if not len(at):
            return keys
        for (wiring, mask), members in _cases(scan.wiring[at], (usable[at],)).items():
            chosen = best_set(scan.fleet.wirings[wiring], mask, block.cards)
            keys[at[members][:, None], list(chosen)] = 1
        return keys


class NodeWiring:
    """Nodes whose chosen cards have the better worst link first; among equals fuller nodes."""

    name = NAME

    def __init__(self, weights: Weights) -> None:
        self._load = NodeLoad("binpack", weights, +1)
        self._range = float(_LOAD_RANGE * max(1, weights.slots + weights.cores + weights.memory))

    def score(self, view: NodeView, shape: PodShape) -> float:
        """Return the worst link of the pod's worst set, plus the node's load as a fraction below one."""
        worst = min((worst_link(view.links, columns) for columns in view.chosen if len(columns) > 1), default=0)
        return worst + self._load.score(view, shape) / self._range

    def scores(self, scan: Scan, shape: PodShape) -> Floats:
        """Return the same for every row."""
        worst: Floats = np.zeros(len(scan.rows), dtype=np.float64)
        several = [chosen for block, chosen in zip(shape.blocks, scan.chosen, strict=True) if block.cards > 1]
        if several:
            for (wiring, *masks), members in _cases(scan.wiring, several).items():
                worst[members] = _worst(scan.fleet.wirings[wiring], masks)
        return worst + self._load.scores(scan, shape) / self._range


def _worst(links: Links, masks: Sequence[int]) -> int:
    return min(worst_link(links, [n for n in range(mask.bit_length()) if mask >> n & 1]) for mask in masks)


def _cases(wiring: Ints, marks: Sequence[Bools]) -> dict[tuple[int, ...], list[int]]:
    """Group rows by wiring and marked cards (bits, lowest column first): most nodes are alike."""
    masks = [row_masks(each) for each in marks]
    cases: dict[tuple[int, ...], list[int]] = {}
    for at, case in enumerate(zip(wiring.tolist(), *masks, strict=True)):
        cases.setdefault(case, []).append(at)
    return cases
