"""Arrivals and departures: which share of the demand a cluster at some load has to refuse.

A loss system: pods arrive at random times (Poisson), each drawn from the trace with replacement, live for an
exponentially distributed time, and are lost if they fit nowhere on arrival. The offered load is arrival rate times mean
demand times mean life, as a fraction of the cluster's cards. A run starts with an empty cluster; what is refused is
counted over the whole run and over its second half alone, when the cluster has long been full.
"""

import heapq
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from simulator.replay.inflation import size_of
from simulator.replay.machine import Arrival, Machine
from simulator.replay.trace import TracePod

LIVES = 6.0
"""Length of a run, in mean lives of a pod."""
SETTLED = LIVES / 2


@dataclass(slots=True)
class Loss:
    """What came of one seed; demands in thousandths of a card."""

    offered: list[int] = field(default_factory=lambda: [0, 0])
    """In the first and second half of the run."""
    lost: list[int] = field(default_factory=lambda: [0, 0])
    allocation: float = 0.0
    """Mean share of the cards in use in the second half, percent."""
    refused: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)

    @property
    def refused_percent(self) -> float:
        """Share of the demand that was refused over the whole run."""
        return 100 * sum(self.lost) / max(1, sum(self.offered))

    @property
    def settled_percent(self) -> float:
        """Share of the demand that was refused in the second half."""
        return 100 * self.lost[1] / max(1, self.offered[1])


def run_departures(
    machine: Machine, pods: Sequence[TracePod], offers: Sequence[Arrival], *, load: float, seed: int
) -> Loss:
    """Run one loss system, with a mean life of 1.

    Args:
        machine: An empty cluster.
        pods: The pods of the trace.
        offers: What each of them asks for.
        load: Offered load, 1.0 is all cards.
        seed: Seed of all chance.
    """
    draw = random.Random(seed)
    mean_demand = sum(pod.demand_milli for pod in pods) / len(pods)
    rate = load * machine.capacity_milli / mean_demand
    ending: list[tuple[float, str]] = []
    loss = Loss()
    now = in_use = 0.0
    number = 0
    while now < LIVES:
        gap = draw.expovariate(rate)
        now += gap
        while ending and ending[0][0] <= now:
            machine.end(heapq.heappop(ending)[1])
        position = draw.randrange(len(pods))
        uid = f"pod-{number}"
        number += 1
        # Drawn for lost pods too, so that every policy meets the same pods at the same times.
        life = draw.expovariate(1.0)
        placed = machine.offer(uid, offers[position])
        if placed:
            heapq.heappush(ending, (now + life, uid))
        half = int(now >= SETTLED)
        in_use += gap * machine.allocated_milli * half
        _count(loss, pods[position], half, placed=placed)
    loss.allocation = 100 * in_use / (machine.capacity_milli * (LIVES - SETTLED))
    return loss


def _count(loss: Loss, pod: TracePod, half: int, *, placed: bool) -> None:
    size = size_of(pod)
    loss.seen[size] += 1
    loss.offered[half] += pod.demand_milli
    if not placed:
        loss.refused[size] += 1
        loss.lost[half] += pod.demand_milli
