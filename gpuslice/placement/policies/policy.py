"""What a policy is: an order of cards within a node, and a score of nodes.

Every ranking exists twice, for one node in plain Python and for many in columns; property tests hold the two equal. So
keys and scores are integers, or floats made by the same operations in the same order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gpuslice.devices.value import Value
from gpuslice.placement.fleet import Bools, Floats, Ints
from gpuslice.placement.room import Room
from gpuslice.placement.scan import Scan
from gpuslice.placement.shape import Block, PodShape
from gpuslice.placement.view import NodeView


class CardRanking(Protocol):
    """Order of the cards that can hold a slice of a block."""

    name: str

    def keys(self, view: NodeView, block: Block, usable: Sequence[int]) -> list[int]:
        """Return a key for each usable column, higher is better."""
        ...

    def columns(self, scan: Scan, block: Block, usable: Bools) -> Ints:
        """Return a key for each row and column; those of unusable cards do not matter."""
        ...


class NodeRanking(Protocol):
    """Score of the nodes that can hold a pod."""

    name: str

    def score(self, view: NodeView, shape: PodShape) -> float:
        """Return the score of one node on which the pod has been planned; higher is better."""
        ...

    def scores(self, scan: Scan, shape: PodShape) -> Floats:
        """Return the score of every row of a scan in which the pod has been planned."""
        ...


class JointRanking(Protocol):
    """Both rankings in one, for pods of one slice on nodes whose cards are of one kind. Says what they say."""

    def best(self, view: NodeView, block: Block, rooms: Sequence[tuple[int, Room]]) -> tuple[int, float]:
        """Return the column of the best of some cards, and the score of the node with the slice on it.

        Cards in the same state must get the same key: only the first of them is among ``rooms``.
        """
        ...


class Weights(Value, frozen=True):
    """How much slots, compute and memory count in the load of a card or node."""

    slots: int = 1
    cores: int = 1
    memory: int = 1


@dataclass(frozen=True, slots=True)
class Policy:
    """The rankings in force for one pod."""

    name: str
    node: NodeRanking
    cards: tuple[CardRanking, ...]
    """Applied one after the other; a later one decides among what the earlier ones find equal."""
    idle_only: bool = False
    """The pod shares its cards with nobody."""
    reads_cpu: bool = False
    """Scores depend on the pod's CPU and on the mix of requests."""
    joint: JointRanking | None = None
    """The same rankings in one, if there is such a way."""
    affine: bool = False
    """Nodes that hold pods of the same group come first."""
