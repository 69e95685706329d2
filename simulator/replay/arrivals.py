"""In which order pods arrive.

Without an order file the pods are shuffled; while their demand is under the target, pods are drawn again with
replacement. With one (numpy ``.npz``) the order is taken as it is: array ``<trace>_<seed>_order`` holds positions in
the list of pods by name, ``<trace>_<seed>_noderank`` the place of each node (by name) in the order of ties.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpuslice.devices.errors import BadConfiguration
from simulator.replay.trace import MILLI, TraceNode, TracePod

PREFIX = "openb_pod_list_"
RECORDED_PERCENT = 130
"""Recorded orders end when so much of the cluster's cards has been asked for."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """One seed's arrivals."""

    order: list[int]
    """Positions in the list of pods."""
    ranks: list[int] | None = None
    """Place of each node in the order of ties; None for the order of names."""


def shuffled(pods: Sequence[TracePod], seed: int, target_milli: int) -> Arrivals:
    """Return a random order whose demand comes as close to the target as it can without exceeding it."""
    draw = random.Random(seed)
    order = list(range(len(pods)))
    draw.shuffle(order)
    kept: list[int] = []
    demand = 0
    for position in order:
        if demand + pods[position].demand_milli > target_milli:
            return Arrivals(kept)
        demand += pods[position].demand_milli
        kept.append(position)
    while True:
        position = draw.randrange(len(pods))
        if demand + pods[position].demand_milli > target_milli:
            return Arrivals(kept)
        demand += pods[position].demand_milli
        kept.append(position)


def trace_name(path: Path) -> str:
    """Return the name of a trace from the name of its pod list: ``openb_pod_list_cpu200.csv.gz`` is ``cpu200``."""
    return path.name.split(".", maxsplit=1)[0].removeprefix(PREFIX)


def recorded(path: Path, trace: str, seed: int, pods: Sequence[TracePod], nodes: Sequence[TraceNode]) -> Arrivals:
    """Read a recorded order.

    A trace without one of its own uses that of the default trace if its pods have the same demands (the ``gpuspec``
    variants): then that order ends where recorded orders end.

    Raises:
        BadConfiguration: The file cannot be read, lacks the seed, or belongs to other lists.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            name = next((name for name in (trace, "default") if f"{name}_{seed}_order" in arrays), None)
            if name is None:
                seeds = sorted({key.rsplit("_", 1)[0] for key in arrays})
                raise BadConfiguration(
                    str(path), f"{trace}_{seed}_order", "no such array", f"use one of {', '.join(seeds)}, or no --order"
                )
            order: list[int] = arrays[f"{name}_{seed}_order"].tolist()
            ranks: list[int] = arrays[f"{name}_{seed}_noderank"].tolist()
    except (OSError, ValueError, KeyError) as error:
        raise BadConfiguration(str(path), "order", str(error), "give an .npz file with order and noderank") from error
    if order and max(order) >= len(pods):
        raise BadConfiguration(
            str(path), f"{name}_{seed}_order", "names more pods than the list has", "use its own list, or no --order"
        )
    if len(ranks) != len(nodes):
        problem = f"is for {len(ranks)} nodes, not {len(nodes)}"
        raise BadConfiguration(str(path), f"{name}_{seed}_noderank", problem, "use its own list, or no --order")
    asked = sum(pods[position].demand_milli for position in order)
    capacity = sum(node.cards for node in nodes) * MILLI
    if name != trace and not RECORDED_PERCENT - 1 <= 100 * asked / capacity <= RECORDED_PERCENT:
        problem = f"no such array, and in the default trace's order {trace} asks for {100 * asked / capacity:.0f} %"
        raise BadConfiguration(str(path), f"{trace}_{seed}_order", problem, "leave --order out")
    return Arrivals(order, ranks)
