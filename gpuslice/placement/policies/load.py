"""binpack and spread: by the share in use after the pod is placed."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from gpuslice.placement.columns import ratio, row_sum
from gpuslice.placement.fleet import Bools, Floats, Ints
from gpuslice.placement.policies.policy import Weights
from gpuslice.placement.scan import Scan
from gpuslice.placement.shape import Block, PodShape
from gpuslice.placement.view import NodeView

FULL: Final = 1_000_000
"""A card or node in full use, in millionths; integers make the two implementations equal to the last digit."""


class CardLoad:
    """Fuller cards first (binpack) or emptier ones (spread)."""

    def __init__(self, name: str, weights: Weights, sign: int) -> None:
        self.name = name
        self._weights = weights
        self._sign = sign

    def keys(self, view: NodeView, block: Block, usable: Sequence[int]) -> list[int]:
        """Return the load of each card with one slice of the block on it."""
        weights = self._weights
        found = []
        for column in usable:
            card = view.cards[column]
            memory, cores = block.share_mib(card.total_memory), block.core_percent
            load = (
                weights.slots * _share(card.slots_after + 1, card.total_slots)
                + weights.cores * _share(card.cores_after + cores, card.total_cores)
                + weights.memory * _share(card.memory_after + memory, card.total_memory)
            )
            found.append(self._sign * load)
        return found

    def columns(self, scan: Scan, block: Block, usable: Bools) -> Ints:  # noqa: ARG002  the load of any card is defined
        """Return the same in columns."""
        weights = self._weights
        memory, cores = scan.peaks(block)
        load = (
            weights.slots * _shares(scan.slots_after() + 1, scan.total_slots)
            + weights.cores * _shares(scan.cores_after() + cores, scan.total_cores)
            + weights.memory * _shares(scan.memory_after() + memory, scan.total_memory)
        )
        return self._sign * load


class NodeLoad:
    """Fuller nodes first (binpack) or emptier ones (spread), over all cards of the families the pod wants."""

    def __init__(self, name: str, weights: Weights, sign: int) -> None:
        self.name = name
        self._weights = weights
        self._sign = sign

    def score(self, view: NodeView, shape: PodShape) -> float:
        """Return the node's load with the pod on it, in millionths."""
        cards = [card for card in view.cards if card.family in shape.families]
        weights = self._weights
        load = (
            weights.slots * _share(sum(c.slots_after for c in cards), sum(c.total_slots for c in cards))
            + weights.cores * _share(sum(c.cores_after for c in cards), sum(c.total_cores for c in cards))
            + weights.memory * _share(sum(c.memory_after for c in cards), sum(c.total_memory for c in cards))
        )
        return float(self._sign * load)

    def scores(self, scan: Scan, shape: PodShape) -> Floats:
        """Return the same for every row."""
        mine = scan.of_families(shape.families)
        weights = self._weights
        load = (
            weights.slots * _shares(_sum(scan.slots_after(), mine), _sum(scan.total_slots, mine))
            + weights.cores * _shares(_sum(scan.cores_after(), mine), _sum(scan.total_cores, mine))
            + weights.memory * _shares(_sum(scan.memory_after(), mine), _sum(scan.total_memory, mine))
        )
        return (self._sign * load).astype(np.float64)


def _share(used: int, total: int) -> int:
    return used * FULL // total if total else 0


def _shares(used: Ints, total: Ints) -> Ints:
    return ratio(used * FULL, total)


def _sum(amounts: Ints, mine: Bools) -> Ints:
    return row_sum(amounts * mine)
