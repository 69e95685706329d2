"""Arrivals without departures: how much of the cluster is allocated when so much has been asked for.

Protocol and figures of the published experiment (Weng et al., USENIX ATC 2023): a pod that fits nowhere is dropped and
counts as arrived; the value at x % is the mean over the arrivals between x - 0.5 and x + 0.5 %.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from simulator.replay.arrivals import Arrivals
from simulator.replay.machine import Arrival, Machine
from simulator.replay.trace import MILLI, TracePod

POINTS = (10, 20, 30, 40, 50, 60, 70, 80, 85, 90, 92, 94, 95, 96, 98, 100, 105, 110, 115, 120, 125, 130)


@dataclass(slots=True)
class Curve:
    """What came of one seed."""

    arrived: npt.NDArray[np.float64]
    """Demand so far, percent of the cluster's cards, after each arrival."""
    allocated: npt.NDArray[np.float64]
    first_failure: float | None = None
    """Percent arrived when a pod that wants a card was refused for the first time."""
    refused: Counter[str] = field(default_factory=Counter)
    seen: Counter[str] = field(default_factory=Counter)

    def at(self, percent: float) -> float | None:
        """Return the mean allocation around a point, percent; None if nothing arrived there."""
        near = (self.arrived >= percent - 0.5) & (self.arrived < percent + 0.5)
        return float(self.allocated[near].mean()) if near.any() else None

    def points(self, last: float) -> dict[str, float]:
        """Return the values at the usual points up to the last one."""
        wanted = sorted({*(point for point in POINTS if point <= last), int(last)})
        found = {str(point): self.at(point) for point in wanted}
        return {point: round(value, 2) for point, value in found.items() if value is not None}


def run_inflation(machine: Machine, pods: Sequence[TracePod], offers: Sequence[Arrival], arrivals: Arrivals) -> Curve:
    """Let the pods arrive one after the other.

    Args:
        machine: An empty cluster.
        pods: The pods of the trace.
        offers: What each of them asks for, in the same order.
        arrivals: Who arrives when.
    """
    arrived = np.zeros(len(arrivals.order))
    allocated = np.zeros(len(arrivals.order))
    curve = Curve(arrived, allocated)
    demand = 0
    for at, position in enumerate(arrivals.order):
        pod = pods[position]
        demand += pod.demand_milli
        size = size_of(pod)
        curve.seen[size] += 1
        if not machine.offer(f"{pod.name}-{at}", offers[position]):
            curve.refused[size] += 1
            if curve.first_failure is None and pod.cards:
                curve.first_failure = 100 * demand / machine.capacity_milli
        arrived[at] = 100 * demand / machine.capacity_milli
        allocated[at] = 100 * machine.allocated_milli / machine.capacity_milli
    return curve


def size_of(pod: TracePod) -> str:
    """Return the class of a pod in reports: ``cpu-only``, ``shared``, or its number of cards."""
    if not pod.cards:
        return "cpu-only"
    return str(pod.cards) if pod.share_milli == MILLI or pod.cards > 1 else "shared"
