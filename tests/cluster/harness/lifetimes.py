"""When the processes that use a slice began and ended, to the kernel's own clock."""

import os
import select
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Self

from tests.cluster.harness.api import Json
from tests.cluster.harness.cluster import allocation_of

TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
"""Resolution of the times at which processes began, rounded down."""


@dataclass(slots=True)
class Life:
    """One first process of a container. Times are seconds since boot; `ended` is None while it lives."""

    pod: str
    pid: int
    slices: tuple[str, ...]
    began: float
    ended: float | None = None


class Lifetimes:
    """Follows processes by pidfd, so that an end is seen within a moment, whoever the parent is."""

    def __init__(self) -> None:
        self.lives: list[Life] = []
        self._fds: dict[int, Life] = {}
        self._poll = select.poll()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lifetimes", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        for descriptor in self._fds:
            os.close(descriptor)

    def follow(self, pod: Json, pid: int, container: str = "main") -> Life:
        """Follow a process of a container that was given slices."""
        slices = tuple(share["slice"] for share in allocation_of(pod)[container])
        life = Life(pod["metadata"]["uid"], pid, slices, began_at(pid))
        descriptor = os.pidfd_open(pid)
        with self._lock:
            self.lives.append(life)
            self._fds[descriptor] = life
            self._poll.register(descriptor, select.POLLIN)
        return life

    def _watch(self) -> None:
        while not self._stopping.is_set():
            with self._lock:
                ready = self._poll.poll(0)
                for descriptor, _ in ready:
                    self._fds.pop(descriptor).ended = time.clock_gettime(time.CLOCK_BOOTTIME)
                    self._poll.unregister(descriptor)
                    os.close(descriptor)
            self._stopping.wait(0.002)

    def overlaps(self) -> list[str]:
        """Return every two lives of different pods that held one slice at the same time."""
        found: list[str] = []
        by_slice: dict[str, list[Life]] = defaultdict(list)
        for life in self.lives:
            for name in life.slices:
                by_slice[name].append(life)
        for name, lives in by_slice.items():
            ordered = sorted(lives, key=lambda life: life.began)
            for first, second in pairwise(ordered):
                if first.pod != second.pod and (first.ended is None or first.ended > second.began + TICK_SECONDS):
                    end = "lives" if first.ended is None else f"ended {first.ended - second.began:.3f} s after it began"
                    found.append(f"{name}: {second.pod} began while {first.pod} had it ({end})")
        return found

    def reused(self) -> int:
        """Return how many times a slice went from one pod to another."""
        counted: dict[str, set[str]] = defaultdict(set)
        for life in self.lives:
            for name in life.slices:
                counted[name].add(life.pod)
        return sum(len(pods) - 1 for pods in counted.values())


def began_at(pid: int) -> float:
    """Return when a process began, in seconds since boot; proc(5), field 22 of stat."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return int(text.rpartition(")")[2].split()[19]) * TICK_SECONDS
