"""Why a node or a card cannot take a pod.

The texts are constant per kind of obstacle. kube-scheduler copies them into the pod's condition, and a condition that
changes from attempt to attempt wakes the pod at once, for ever. Figures belong in :mod:`sentences`, for people.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum


class Obstacle(IntEnum):
    """Kinds of obstacle, in the order in which cards are tested. 0 means that nothing stands in the way."""

    NONE = 0
    UNKNOWN_NODE = 1
    NOT_READY = 2
    UNCLEAR = 3
    TOO_FEW_CARDS = 4
    SELECTION = 5
    UNHEALTHY = 6
    CORDONED = 7
    EXCLUSIVE = 8
    BUSY = 9
    SLOTS = 10
    MEMORY = 11
    CORES = 12
    SHARE_SIZE = 13
    NUMA = 14
    COMBINATION = 15


TEXTS: Mapping[Obstacle, str] = {
    Obstacle.NONE: "",
    Obstacle.UNKNOWN_NODE: "node has no registered cards",
    Obstacle.NOT_READY: "device plugin of the node is not ready",
    Obstacle.UNCLEAR: "a pod on the node has a record of devices that cannot be read",
    Obstacle.TOO_FEW_CARDS: "node has fewer cards of the requested kind than requested",
    Obstacle.SELECTION: "not enough cards match the card selection of the pod",
    Obstacle.UNHEALTHY: "not enough healthy cards",
    Obstacle.CORDONED: "not enough cards that are not cordoned",
    Obstacle.EXCLUSIVE: "not enough cards that no other pod holds exclusively",
    Obstacle.BUSY: "not enough idle cards",
    Obstacle.SLOTS: "not enough cards with a free slot",
    Obstacle.MEMORY: "not enough free GPU memory on any card",
    Obstacle.CORES: "not enough free GPU compute on any card",
    Obstacle.SHARE_SIZE: "not enough cards whose other shares have the requested size",
    Obstacle.NUMA: "not enough suitable cards on one NUMA node",
    Obstacle.COMBINATION: "containers of the pod do not fit on the node together",
}


@dataclass(frozen=True, slots=True)
class Rejection:
    """The answer "does not fit": what stands in the way."""

    obstacle: Obstacle

    @property
    def reason(self) -> str:
        """Constant text of the obstacle."""
        return TEXTS[self.obstacle]
