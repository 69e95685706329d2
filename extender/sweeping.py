"""Forgets pods that do not exist.

kube-scheduler may ask about a pod a moment after we have heard of its deletion, and an answer of the API server may
show a pod that the watch has told to be gone already. Such a pod would wait, or hold its share, until the next list:
nothing tells a second time that it is gone. So now and then all that is kept is compared with what the watch has. A pod
that is younger than the watch is missing as well, but not twice in a row.
"""

from collections.abc import Callable, Iterable

from gpuslice.placement.events import PodKey

SWEEP_SECONDS = 60.0


class Sweeper:
    """Remembers who was missing at the last look."""

    def __init__(self, exists: Callable[[PodKey], bool], clock: Callable[[], float]) -> None:
        """``exists`` tells whether the watch has this very pod."""
        self._exists = exists
        self._clock = clock
        self._missing: set[str] = set()
        self._next = clock() + SWEEP_SECONDS

    def due(self) -> bool:
        """Whether it is time to look again."""
        return self._clock() >= self._next

    def sweep(self, known: Iterable[PodKey]) -> list[PodKey]:
        """Return those of the pods that were missing the last time and are missing now."""
        self._next = self._clock() + SWEEP_SECONDS
        missing = {key.uid: key for key in known if not self._exists(key)}
        gone = [key for uid, key in missing.items() if uid in self._missing]
        self._missing = missing.keys() - {key.uid for key in gone}
        return gone
