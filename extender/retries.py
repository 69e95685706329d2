"""Retries of pods that were refused on a sample of the nodes.

kube-scheduler offers a part of a large cluster at a time and goes on from where it stopped at the next attempt. When
none of the nodes offered fits but another one does, the pod is sent back for the next part, as often as it takes to see
every node once, and not again until it was placed.
"""

from collections import OrderedDict

FEWEST_SAMPLED = 100
"""kube-scheduler never stops below 100 feasible nodes; a shorter offer is all there is."""
MOST_ROUNDS = 25
_CAPACITY = 20_000


class SampledRetries:
    """Counts the rounds of each pod."""

    def __init__(self) -> None:
        self._rounds: OrderedDict[str, int] = OrderedDict()

    def due(self, uid: str, *, offered: int, total: int) -> bool:
        """Whether the refused pod has rounds left; counts this one."""
        if not FEWEST_SAMPLED <= offered < total:
            return False
        rounds = self._rounds.get(uid, 0) + 1
        if rounds > min(MOST_ROUNDS, -(-total // offered)):
            return False
        self._rounds[uid] = rounds
        if len(self._rounds) > _CAPACITY:
            self._rounds.popitem(last=False)
        return True

    def settled(self, uid: str) -> None:
        """The pod was placed or is gone."""
        self._rounds.pop(uid, None)
