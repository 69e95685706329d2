"""Events on refused pods: the figures a person needs, said once for each change of cause."""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Protocol

import structlog

from gpuslice.cluster.events import Subject
from gpuslice.cluster.resources import PODS
from gpuslice.placement.events import PodKey

log = structlog.get_logger(__name__)

REFUSED = "GpuShareRefused"
EVICTED = "GpuSharePreempted"
RESERVED = "GpuShareReserved"
CONFLICT = "GpuCardOvercommitted"
CARDS_UNREADABLE = "GpuCardsUnreadable"
REGISTER_AGAIN = "these cards take no pods; remove the annotation, or restart the daemon that writes it"
UNREADABLE = "GpuAllocationUnreadable"
PLACED = "GpuSharePlaced"
PLACED_KEPT = 100
"""Placements that wait to be told; of more only the last."""
PLACED_IN_BURST = 2
"""Told at each tick while more pods are placed than that."""
PLACED_IN_PEACE = 20


class Recorder(Protocol):
    """Writes Events; see gpuslice.cluster.events."""

    def record(self, subject: Subject, kind: str, reason: str, message: str) -> None:
        """Queue an Event."""


def subject_of(key: PodKey) -> Subject:
    """Refer to a pod by its key."""
    return Subject(PODS.api_version, PODS.kind, key.namespace, key.name, key.uid)


class Reports:
    """Remembers the last cause told for each pod. ``capacity`` bounds the memory, not the truth of what is told.

    Placements are told at the next tick, and while they come thick and fast most of them wait until that is over, or
    are not told: each costs a call of the API server, as much as the binding itself. What the cards are stands in the
    pod's annotations anyhow.
    """

    def __init__(self, recorder: Recorder, *, capacity: int = 20_000) -> None:
        self._recorder = recorder
        self._capacity = capacity
        self._untold: deque[tuple[PodKey, Callable[[], str]]] = deque(maxlen=PLACED_KEPT)
        self._placed = 0
        """Since the last tick."""
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
        """Tell soon where a pod was placed and why; ``message`` is asked then, if at all."""
        self._placed += 1
        self._untold.append((key, message))

    def tick(self) -> None:
        """Tell some of the placements, once a second."""
        most = PLACED_IN_BURST if self._placed > PLACED_IN_BURST else PLACED_IN_PEACE
        self._placed = 0
        for _ in range(min(most, len(self._untold))):
            key, message = self._untold.popleft()
            try:
                self.tell(key, "Normal", PLACED, message())
            except Exception:
                # Nobody's call is answered here, and the ticks go on whatever it is.
                log.exception("placement_not_told", pod=str(key))

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
