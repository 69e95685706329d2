"""Who is tried next: kube-scheduler's three queues, as a pure state machine.

What wakes a refused pod was measured on kube-scheduler 1.34: a change of the pod's own labels, annotations or
conditions wakes that pod; a change of a node, or the end or change of a scheduled pod, wakes all. A failed call of the
extender or of bind backs off 1, 2, 4 … 10 s whatever happens.
"""

from dataclasses import dataclass

BACKOFF_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 10.0
FLUSH_SECONDS = 330.0
"""A pod that nothing woke is tried again after this long."""


@dataclass(slots=True)
class _Entry:
    name: str
    priority: int
    arrival: int
    attempts: int = 0
    failures: int = 0
    not_before: float = 0.0
    parked_at: float | None = None


class SchedulingQueue:
    """Pending pods by UID. Times are seconds of any monotonic clock."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._arrivals = 0
        self._wakes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, uid: str) -> bool:
        return uid in self._entries

    @property
    def wakes(self) -> int:
        """Counts events that wake all pods; see :meth:`refused`."""
        return self._wakes

    def add(self, uid: str, *, name: str, priority: int) -> None:
        """Take in a pending pod; a known one stays where it is."""
        if uid not in self._entries:
            self._arrivals += 1
            self._entries[uid] = _Entry(name, priority, self._arrivals)

    def remove(self, uid: str) -> None:
        """Forget a pod that is bound or gone."""
        self._entries.pop(uid, None)

    def pop(self, now: float) -> str | None:
        """Return the pod to try now: highest priority first, then first come; None when nobody is ready."""
        ready = [
            (-entry.priority, entry.arrival, uid) for uid, entry in self._entries.items() if self._is_ready(entry, now)
        ]
        if not ready:
            return None
        uid = min(ready)[2]
        self._entries[uid].attempts += 1
        return uid

    def next_time(self) -> float | None:
        """Return when the next pod becomes ready by itself, or None when only an event helps."""
        times = [e.not_before if e.parked_at is None else e.parked_at + FLUSH_SECONDS for e in self._entries.values()]
        return min(times, default=None)

    def refused(self, uid: str, now: float, *, wakes_before: int) -> None:
        """Park a pod that fits nowhere, unless something woke all pods while it was being tried."""
        entry = self._entries.get(uid)
        if entry is not None and self._wakes == wakes_before:
            entry.parked_at = now

    def failed(self, uid: str, now: float) -> None:
        """Back off after a failed extender call or bind."""
        entry = self._entries.get(uid)
        if entry is not None:
            entry.not_before = now + min(BACKOFF_SECONDS * 2**entry.failures, MAX_BACKOFF_SECONDS)
            entry.failures += 1

    def wake(self, uid: str) -> None:
        """Try this pod again: its own labels, annotations or conditions changed."""
        entry = self._entries.get(uid)
        if entry is not None:
            entry.parked_at = None

    def wake_all(self) -> None:
        """Try every refused pod again: a node changed, or a scheduled pod ended or changed."""
        self._wakes += 1
        for entry in self._entries.values():
            entry.parked_at = None

    def attempts(self, uid: str) -> int:
        """Return how often the pod was tried."""
        entry = self._entries.get(uid)
        return entry.attempts if entry else 0

    @staticmethod
    def _is_ready(entry: _Entry, now: float) -> bool:
        if entry.parked_at is not None:
            return now >= entry.parked_at + FLUSH_SECONDS
        return now >= entry.not_before
