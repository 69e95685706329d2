"""Arrivals and departures: which share of the demand a cluster at some load has to refuse.

A loss system: pods arrive at random times (Poisson), each drawn from the trace with replacement, live for an
exponentially distributed time, and are lost if they fit nowhere on arrival. The offered load is arrival rate times mean
demand times mean life, as a fraction of the cluster's cards. A run starts with as many pods as the load keeps on
average, and its first part is not counted.
"""

import heapq
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from simulator.replay.inflation import size_of
from simulator.replay.machine import Arrival, Machine
from simulator.replay.trace import TracePod

LIVES = 3.5
"""Length of a run, in mean lives of a pod."""
WARM_UP = 1.5


@dataclass(slots=True)
class Loss:
    """What came of one seed; demands in thousandths of a card."""

    offered_milli: int = 0
    refused_milli: int = 0
    allocation: float = 0.0
    """Mean share of the cards in use, percent."""
    refused: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)

    @property
    def refused_percent(self) -> float:
        """Share of the demand that was refused."""
        return 100 * self.refused_milli / self.offered_milli if self.offered_milli else 0.0


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
        gap = draw.expovariate(rate) if number >= rate else 0.0
        now += gap
        while ending and ending[0][0] <= now:
            machine.end(heapq.heappop(ending)[1])
        position = draw.randrange(len(pods))
        uid = f"pod-{number}"
        number += 1
        placed = machine.offer(uid, offers[position])
        if placed:
            heapq.heappush(ending, (now + draw.expovariate(1.0), uid))
        if now >= WARM_UP:
            in_use += gap * machine.allocated_milli
            _count(loss, pods[position], placed=placed)
    loss.allocation = 100 * in_use / (machine.capacity_milli * (LIVES - WARM_UP))
    return loss


def _count(loss: Loss, pod: TracePod, *, placed: bool) -> None:
    size = size_of(pod)
    loss.seen[size] += 1
    loss.offered_milli += pod.demand_milli
    if not placed:
        loss.refused[size] += 1
        loss.refused_milli += pod.demand_milli
