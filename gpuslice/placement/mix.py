"""The mix of requests that a cluster serves: what fragmentation is measured against.

A *task* is a class of pods reduced to what decides whether it fits on a node: CPU, share of a card, number of cards,
models. The typical mix is the most frequent tasks with their weights. It may come from a trace (replay) or from the
pods the ledger has seen.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gpuslice.devices.allocation import PodAllocation
from gpuslice.devices.value import Value

MILLI: Final = 1000
AT_MOST: Final = 512
"""Typical tasks; bounds the cost of measuring whatever people ask for."""
_PERCENT: Final = 10


class Task(Value, frozen=True, order=True):
    """One class of pods."""

    cpu_milli: int
    share_milli: int
    """Share of each card, thousandths; 0 for a pod without cards."""
    cards: int
    family: str = "nvidia"
    models: tuple[str, ...] = ()
    """Models it accepts; empty means any."""

    @property
    def demand_milli(self) -> int:
        """Thousandths of cards in all."""
        return self.share_milli * self.cards


def task_of(
    allocation: PodAllocation, card_memory_mib: Mapping[str, int], cpu_milli: int, models: tuple[str, ...]
) -> Task:
    """Return the class of a pod by what it was given: the share of its largest container.

    Args:
        allocation: The pod's shares.
        card_memory_mib: Memory of the cards, by UUID; cards that are not in it count as used in full.
        cpu_milli: CPU of the pod.
        models: Models it insisted on.
    """
    largest = max(allocation.containers.values(), key=len, default=())
    share = 0
    for given in largest:
        memory = card_memory_mib.get(given.card, 0)
        by_memory = -(-MILLI * given.memory_mib // memory) if memory else MILLI
        whole = MILLI if given.exclusive else max(by_memory, given.core_percent * _PERCENT, 1)
        share = max(share, min(MILLI, whole))
    family = largest[0].family if largest else "nvidia"
    return Task(cpu_milli, share, len(largest), family, models)


@dataclass(frozen=True, slots=True)
class Mix:
    """Typical tasks with whole-number weights."""

    tasks: tuple[tuple[Task, int], ...]

    @property
    def total(self) -> int:
        """Sum of the weights."""
        return sum(weight for _, weight in self.tasks)


def typical(counts: Mapping[Task, int], *, percent: int, by_demand: bool = False, cpu_only: bool = True) -> Mix:
    """Return the most frequent tasks that make up a part of all pods.

    Args:
        counts: Pods seen of each task.
        percent: How much of all pods the typical ones must cover, 1..100.
        by_demand: Weight a task by count times demand in thousandths of cards, not by count alone.
        cpu_only: Whether tasks without cards are among them.
    """
    seen = {task: count for task, count in counts.items() if count and (cpu_only or task.cards)}
    wanted = sum(seen.values()) * percent
    covered = 0
    tasks: list[tuple[Task, int]] = []
    for task, count in sorted(seen.items(), key=lambda item: (-item[1], item[0]))[:AT_MOST]:
        if covered * 100 >= wanted:
            break
        covered += count
        tasks.append((task, count * task.demand_milli if by_demand else count))
    return Mix(tuple(tasks))


def cpu_per_card(counts: Mapping[Task, int]) -> int:
    """Return the CPU (thousandths of a core) that comes with one card's worth of demand; at least 1."""
    cpu = sum(task.cpu_milli * count for task, count in counts.items() if task.cards)
    demand = sum(task.demand_milli * count for task, count in counts.items() if task.cards)
    return max(1, cpu * MILLI // demand) if demand else 1
