"""Numbers for the states of nodes: two nodes of one number differ in nothing but their names and UUIDs.

Most nodes of most clusters are idle, and equal. A pod that does not ask for cards by UUID finds the same on each of
them, so that one look at one of them will do: at a class of pods seen for the first time, or when every score is new.
"""

from typing import Final

import numpy as np

from gpuslice.placement.fleet import CARD_COLUMNS, NODE_COLUMNS, Fleet, Ints

_KEPT: Final = 4_096
"""States that are remembered; up to 1 KiB each for nodes of 8 cards."""
_AT_ONCE: Final = 64
"""Nodes that are numbered in passing, for 6 us each."""
_COLUMNS: Final = tuple(name for name, _ in (*CARD_COLUMNS, *NODE_COLUMNS) if name != "version")


class NodeStates:
    """Remembers the numbers. A state that was forgotten gets a new number when it is met again."""

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}
        self._next = 0
        self._numbers: Ints = np.zeros(0, dtype=np.int64)
        self._versions: Ints = np.zeros(0, dtype=np.int64)
        """Version of each row when it was numbered."""

    def numbers(self, fleet: Fleet, rows: Ints, at_once: int = _AT_ONCE) -> Ints | None:
        """Return the number of each row's state, or None if more than ``at_once`` have none: some get theirs."""
        self._grow(fleet.rows)
        stale = rows[self._versions[rows] != fleet.version[rows]]
        columns = [getattr(fleet, name) for name in _COLUMNS]
        for row in stale[:at_once].tolist():
            state = b"".join([column[row].tobytes() for column in columns])
            self._numbers[row] = self._number(state)
            self._versions[row] = fleet.version[row]
        return self._numbers[rows] if len(stale) <= at_once else None

    def _number(self, state: bytes) -> int:
        number = self._known.get(state)
        if number is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            number = self._known[state] = self._next
            self._next += 1
        return number

    def _grow(self, rows: int) -> None:
        more = rows - len(self._numbers)
        if more > 0:
            self._numbers = np.append(self._numbers, np.zeros(more, dtype=np.int64))
            self._versions = np.append(self._versions, np.zeros(more, dtype=np.int64))
