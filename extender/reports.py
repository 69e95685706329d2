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
UNREADABLE = "GpuAllocationUnreadable"


class Recorder(Protocol):
    """Writes Events; see gpuslice.cluster.events."""

    def record(self, subject: Subject, kind: str, reason: str, message: str) -> None:
        """Queue an Event."""


def subject_of(key: PodKey) -> Subject:
    """Refer to a pod by its key."""
    return Subject(PODS.api_version, PODS.kind, key.namespace, key.name, key.uid)


class Reports:
    """Remembers the last cause told for each pod. ``capacity`` bounds the memory, not the truth of what is told."""

    def __init__(self, recorder: Recorder, *, capacity: int = 20_000) -> None:
        self._recorder = recorder
        self._capacity = capacity
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
