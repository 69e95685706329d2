"""Events on refused pods: the figures a person needs, said once for each change of cause."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Protocol

from gpuslice.cluster.events import Subject
from gpuslice.cluster.resources import PODS
from gpuslice.placement.events import PodKey

REFUSED = "GpuShareRefused"
EVICTED = "GpuSharePreempted"
RESERVED = "GpuShareReserved"
CONFLICT = "GpuCardOvercommitted"
CARDS_UNREADABLE = "GpuCardsUnreadable"
REGISTER_AGAIN = "these cards take no pods; remove the annotation, or restart the daemon that writes it"
UNREADABLE = "GpuAllocationUnreadable"
PLACED = "GpuSharePlaced"
PLACED_PER_SECOND = 2.0
PLACED_AT_ONCE = 20


class Recorder(Protocol):
    """Writes Events; see gpuslice.cluster.events."""

    def record(self, subject: Subject, kind: str, reason: str, message: str) -> None:
        """Queue an Event."""


def subject_of(key: PodKey) -> Subject:
    """Refer to a pod by its key."""
    return Subject(PODS.api_version, PODS.kind, key.namespace, key.name, key.uid)


class Pace:
    """Lets so many through a second, and a few more at once after a quiet time."""

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float]) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._left = float(burst)
        self._at = clock()

    def allows(self) -> bool:
        """Take one, if there is one left."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Reports:
    """Remembers the last cause told for each pod. ``capacity`` bounds the memory, not the truth of what is told.

    Of placements only some are told when they come thick and fast: each costs a call of the API server, as much as the
    binding itself. What the cards are stands in the pod's annotations anyhow.
    """

    def __init__(self, recorder: Recorder, *, clock: Callable[[], float], capacity: int = 20_000) -> None:
        self._recorder = recorder
        self._capacity = capacity
        self._placements = Pace(PLACED_PER_SECOND, PLACED_AT_ONCE, clock)
        self._causes: OrderedDict[str, Hashable] = OrderedDict()

    def refused(self, key: PodKey, cause: Hashable, message: Callable[[], str]) -> None:
        """Tell why a pod fits nowhere, unless that was the last thing told of it; ``message`` is asked only then."""
        if self._causes.get(key.uid) == cause:
            return
        self._causes[key.uid] = cause
        self._causes.move_to_end(key.uid)
        while len(self._causes) > self._capacity:
            self._causes.popitem(last=False)
        self._recorder.record(subject_of(key), "Warning", REFUSED, message())

    def placed(self, key: PodKey, message: Callable[[], str]) -> None:
        """Tell where a pod was placed and why, if that is not too much just now; ``message`` is asked only then."""
        if self._placements.allows():
            self.tell(key, "Normal", PLACED, message())

    def settled(self, uid: str) -> None:
        """The pod was placed or is gone: a later refusal is news again."""
        self._causes.pop(uid, None)

    def unreadable(self, key: PodKey, problem: str, *, node: str) -> None:
        """Tell that a bound pod's record cannot be read; ``node`` is closed by it, empty if its share is known."""
        effect = "its share goes on to count as it was known from elsewhere"
        if node:
            effect = f"nobody knows which cards it holds, so node {node} takes no more pods until it has ended"
        remedy = "put the annotation back as it was, or delete the pod"
        self.tell(key, "Warning", UNREADABLE, f"{problem}: {effect}; {remedy}")

    def tell(self, key: PodKey, kind: str, reason: str, message: str) -> None:
        """Record an Event of another kind on a pod."""
        self._recorder.record(subject_of(key), kind, reason, message)
