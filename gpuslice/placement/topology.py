"""Choose cards that are well connected.

The best set has the best worst link; among those the best sum of links; then the one that leaves the best sum among the
usable cards that remain, so that big sets stay whole for others; then the lowest positions. For one card only the last
two count: it is the card whose loss hurts the others least. :func:`rank_of` is this definition.

Up to :data:`EXACT_CARDS` usable cards the answer is exact: a table holds worst link and sum of *every* set of cards of
a machine. It is built by doubling (each card joins all sets of the cards before it), about a millisecond for 16 cards,
and kept for each wiring; a cluster has few of them. Above, a greedy search from every card bounds the time for any
input.

Links are symmetric, higher is better (:class:`gpuslice.devices.inventory.Link`).
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np

from gpuslice.placement.fleet import Ints, Links

EXACT_CARDS: Final = 16
_BITS: Final = 22
_LARGEST: Final = (1 << _BITS) - 1
_KEPT_WIRINGS: Final = 16


@lru_cache(maxsize=65536)
def best_set(links: Links, usable: int, wanted: int) -> tuple[int, ...]:
    """Return the best set of cards, in ascending order.

    Args:
        links: Link values by position.
        usable: Bit n is set when card n may be chosen.
        wanted: How many, 1..number of usable cards.
    """
    cards = [card for card in range(len(links)) if usable >> card & 1]
    if wanted >= len(cards):
        return tuple(cards)
    if len(links) <= EXACT_CARDS:
        return _positions(_table(links).best(usable, wanted))
    near = tuple(tuple(links[a][b] for b in cards) for a in cards)
    if len(cards) <= EXACT_CARDS:
        chosen = _positions(_Table(near).best((1 << len(cards)) - 1, wanted))
    else:
        chosen = _greedy(near, wanted)
    return tuple(cards[position] for position in chosen)


def worst_link(links: Links, chosen: Sequence[int]) -> int:
    """Return the worst link within a set; 0 for a single card or where nothing is known."""
    if not links:
        return 0
    return min((links[a][b] for at, a in enumerate(chosen) for b in chosen[:at]), default=0)


def total_links(links: Links, chosen: Sequence[int]) -> int:
    """Return the sum of the links within a set."""
    return sum(links[a][b] for at, a in enumerate(chosen) for b in chosen[:at])


def rank_of(links: Links, usable: Sequence[int], chosen: Sequence[int]) -> tuple[int, int, int, tuple[int, ...]]:
    """Return the place of a set in the order of sets: the smallest is best."""
    rest = [card for card in usable if card not in chosen]
    return (-worst_link(links, chosen), -total_links(links, chosen), -total_links(links, rest), tuple(sorted(chosen)))


def _positions(mask: int) -> tuple[int, ...]:
    return tuple(position for position in range(mask.bit_length()) if mask >> position & 1)


class _Table:
    """Worst link and sum of links of every set of cards of one machine."""

    def __init__(self, links: Links) -> None:
        self._cards = len(links)
        size = 1 << self._cards
        self._worst: Ints = np.full(size, _LARGEST, dtype=np.int64)
        self._total: Ints = np.zeros(size, dtype=np.int64)
        for card, row in enumerate(links):
            half = 1 << card
            least: Ints = np.full(half, _LARGEST, dtype=np.int64)
            added: Ints = np.zeros(half, dtype=np.int64)
            for other in range(card):
                step = 1 << other
                least[step : 2 * step] = np.minimum(least[:step], row[other])
                added[step : 2 * step] = added[:step] + row[other]
            self._worst[half : 2 * half] = np.minimum(self._worst[:half], least)
            self._total[half : 2 * half] = self._total[:half] + added

    def best(self, usable: int, wanted: int) -> int:
        """Return the best set among the usable cards, as bits."""
        sets = _sets(self._cards, wanted)
        sets = sets[sets & ~np.int64(usable) == 0]
        keys = (self._worst[sets] << 2 * _BITS) + (self._total[sets] << _BITS) + self._total[usable & ~sets]
        return int(sets[keys.argmax()])


@lru_cache(maxsize=_KEPT_WIRINGS)
def _table(links: Links) -> _Table:
    return _Table(links)


@lru_cache(maxsize=4 * EXACT_CARDS)
def _sets(cards: int, wanted: int) -> Ints:
    """Return all sets of a size as bits, lowest positions first."""
    sets: Ints = np.arange(1 << cards, dtype=np.int64)
    sizes = np.zeros_like(sets)
    mirrored = np.zeros_like(sets)
    for card in range(cards):
        bit = sets >> card & 1
        sizes += bit
        mirrored += bit << (cards - 1 - card)
    chosen = np.flatnonzero(sizes == wanted)
    ordered: Ints = chosen[np.argsort(-mirrored[chosen], kind="stable")]
    return ordered


def _greedy(links: Links, wanted: int) -> tuple[int, ...]:
    """Grow a set from every card, by best worst link and then best sum; return the best of them."""
    matrix: Ints = np.array(links, dtype=np.int64)
    np.fill_diagonal(matrix, 0)
    cards = len(links)
    starts = np.arange(cards)
    members = np.eye(cards, dtype=np.bool_)
    worst: Ints = matrix.copy()
    total: Ints = matrix.copy()
    for _ in range(wanted - 1):
        keys = np.where(members, -1, (worst << _BITS) + total)
        joined = keys.argmax(axis=1)
        members[starts, joined] = True
        worst = np.minimum(worst, matrix[joined])
        total = total + matrix[joined]
    sets = [tuple(np.flatnonzero(row).tolist()) for row in members]
    return min(sets, key=lambda chosen: rank_of(links, range(cards), chosen))
