"""What the cluster expects: the mix of requests seen so far, and how scarce each model of card is for it."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import numpy as np

from gpuslice.devices.models import model_matches
from gpuslice.placement.fleet import KIND_SEPARATOR, Fleet
from gpuslice.placement.mix import MILLI, Task

MILLION: Final = 1_000_000
_FIRST: Final = 100
"""Pods to see before the mix counts for anything: so many tell as much as a thousand."""
_REMEMBERED: Final = 20_000
_CLASSES: Final = 4_096
"""Above either number all counts are halved: old pods fade, and odd ones are forgotten."""
_NOTICEABLE: Final = 1 / 16
"""Share of the pods that would have to be others for one mix to become the other. The mix of 100 pods is as far from
the whole trace's, and packs as well."""


class Outlook:
    """A frozen view: tasks with counts, kinds of card with capacity. Compared by identity."""

    __slots__ = ("capacity", "counts", "kinds")

    def __init__(self, counts: Mapping[Task, int], kinds: tuple[str, ...], capacity: tuple[int, ...]) -> None:
        self.counts = counts
        self.kinds = kinds
        """Words of the fleet's vocabulary of kinds."""
        self.capacity = capacity
        """Cards of each kind, in thousandths of a card."""

    def pressure(self) -> list[int]:
        """Return how much of each kind the pods that insist on a model want, in millionths of its capacity.

        A pod that accepts several models presses on all of them alike. Kinds that many need and few have should be
        kept for those that need them.
        """
        demand = sum(task.demand_milli * count for task, count in self.counts.items())
        if not demand:
            return [0] * len(self.kinds)
        typed: Counter[tuple[str, tuple[str, ...]]] = Counter()
        for task, count in self.counts.items():
            if task.models:
                typed[task.family, task.models] += task.demand_milli * count
        pressure = [0] * len(self.kinds)
        everything = sum(self.capacity)
        for (family, models), wanted in sorted(typed.items()):
            allowed = [at for at, kind in enumerate(self.kinds) if allows(kind, family, models)]
            room = sum(self.capacity[at] for at in allowed)
            for at in allowed:
                pressure[at] += MILLION * wanted * everything // (demand * room) if room else 0
        return pressure


EMPTY: Final = Outlook({}, ("",), (0,))


def allows(kind: str, family: str, models: tuple[str, ...]) -> bool:
    """Tell whether a kind of card is of a family and one of some models (none given: any)."""
    its_family, _, model = kind.partition(KIND_SEPARATOR)
    return its_family == family and (not models or any(model_matches(wanted, model) for wanted in models))


class Observer:
    """Counts the tasks of pods seen, and takes a new outlook when it has changed enough to matter.

    A new outlook makes every score new. So the counts are looked at when the pods since the last look are half as many
    as were known then, and an outlook is taken from them when the mix has changed by :data:`_NOTICEABLE`.
    """

    def __init__(self) -> None:
        self._counts: Counter[Task] = Counter()
        self._total = 0
        self._since = 0
        self._known = 0
        self._outlook = EMPTY
        self._layout = -1
        self._fixed = False

    def fix(self, counts: Mapping[Task, int]) -> None:
        """Use this mix and learn no other (a replay that knows its trace, a mix from configuration)."""
        self._counts = Counter(counts)
        self._fixed = True
        self._layout = -1

    def see(self, task: Task) -> None:
        """Count one pod."""
        if self._fixed:
            return
        self._counts[task] += 1
        self._total += 1
        self._since += 1
        if self._total > _REMEMBERED or len(self._counts) > _CLASSES:
            self._counts = Counter({task: count // 2 for task, count in self._counts.items() if count > 1})
            self._total = self._counts.total()

    def outlook(self, fleet: Fleet) -> Outlook:
        """Return the outlook in force."""
        due = not self._fixed and self._since >= max(_FIRST, self._known // 2)
        if due:
            self._known, self._since = self._total, 0
            due = _distance(self._outlook.counts, self._counts) > _NOTICEABLE
        if due or self._layout != fleet.layout or len(self._outlook.kinds) != len(fleet.kinds):
            capacity = _capacity(fleet)
            if due or self._layout < 0 or _differ(self._outlook.capacity, capacity):
                counts = dict(self._counts) if self._fixed or due else self._outlook.counts
                self._outlook = Outlook(counts, tuple(fleet.kinds.words), capacity)
            self._layout = fleet.layout
        return self._outlook


def _distance(one: Mapping[Task, int], other: Mapping[Task, int]) -> float:
    """Return the total variation distance of two mixes, 0..1."""
    of_one, of_other = (max(sum(counts.values()), 1) for counts in (one, other))
    apart = sum(abs(one.get(task, 0) / of_one - other.get(task, 0) / of_other) for task in {*one, *other})
    return apart / 2 if one else 1.0


def _capacity(fleet: Fleet) -> tuple[int, ...]:
    rows = fleet.rows
    cards = np.bincount(fleet.kind[:rows][fleet.present[:rows]], minlength=len(fleet.kinds))
    return tuple((cards * MILLI).tolist())


def _differ(old: tuple[int, ...], new: tuple[int, ...]) -> bool:
    """Tell whether a kind is new, gone, or changed by a twentieth."""
    return len(old) != len(new) or any(abs(a - b) * 20 > max(a, b) for a, b in zip(old, new, strict=True))
