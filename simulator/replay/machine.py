"""One cluster under replay: the extender's ledger and decisions, and what kube-scheduler itself would check.

Cards have 1000 MiB, so that a thousandth of a card is one MiB, and 1000 slots, so that slots never decide. CPU and
memory of the node are kube-scheduler's business in a real cluster (NodeResourcesFit); here they are a hard filter
before the extender is asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gpuslice.devices.allocation import PodAllocation
from gpuslice.devices.inventory import Card, NodeCards
from gpuslice.devices.requests import CardSelection, ContainerDemand, ContainerRequest, PodRequest, Role
from gpuslice.placement import decide, events
from gpuslice.placement.ledger import Ledger
from gpuslice.placement.mix import Task
from gpuslice.placement.policies.registry import PolicyDefaults
from simulator.replay.trace import MILLI, TraceNode, TracePod

_SLOTS = 1000
_PERCENT = 10


@dataclass(frozen=True, slots=True)
class Arrival:
    """A class of pods as the placement sees it."""

    request: PodRequest
    cpu_milli: int
    memory_mib: int
    demand_milli: int


class Machine:
    """The cluster: offers pods to the placement code and keeps what was taken."""

    def __init__(
        self, nodes: Sequence[TraceNode], defaults: PolicyDefaults, mix: dict[Task, int] | None = None
    ) -> None:
        self.capacity_milli = sum(node.cards for node in nodes) * MILLI
        self._defaults = defaults
        self._ledger = Ledger()
        for node in nodes:
            self._ledger.apply(_seen(node))
        if mix is not None:
            self._ledger.observer.fix(mix)
        self._free_cpu: npt.NDArray[np.int64] = np.array([node.cpu_milli for node in nodes], dtype=np.int64)
        self._free_memory: npt.NDArray[np.int64] = np.array([node.memory_mib for node in nodes], dtype=np.int64)
        self._taken: dict[str, tuple[int, Arrival]] = {}
        self._arrivals: dict[TracePod, Arrival] = {}
        self.allocated_milli = 0

    def set_rank(self, rank: Sequence[int]) -> None:
        """Use another order of nodes for ties."""
        self._ledger.fleet.set_rank(rank)

    def offer(self, uid: str, arrival: Arrival) -> bool:
        """Place a pod if it fits anywhere; tell whether it did."""
        able = (self._free_cpu >= arrival.cpu_milli) & (self._free_memory >= arrival.memory_mib)
        rows = np.flatnonzero(able)
        asker = decide.Asker(uid, arrival.cpu_milli)
        decision = decide.filter_rows(self._ledger, arrival.request, rows, self._defaults, asker)
        best = decision.best_position()
        if best < 0:
            return False
        row = int(rows[best])
        node = self._ledger.fleet.names[row]
        placed = decide.place(self._ledger, arrival.request, node, self._defaults, asker)
        if not isinstance(placed, PodAllocation):
            raise TypeError(f"{uid}: {node} was feasible and then refused: {placed.reason}")
        key = events.PodKey(uid, "replay", uid)
        self._ledger.apply(events.Assume(key, placed, now=0.0, cpu_milli=arrival.cpu_milli))
        self._ledger.apply(events.Confirm(uid))
        self._free_cpu[row] -= arrival.cpu_milli
        self._free_memory[row] -= arrival.memory_mib
        self._taken[uid] = (row, arrival)
        self.allocated_milli += arrival.demand_milli
        return True

    def end(self, uid: str) -> None:
        """Let a placed pod end."""
        row, arrival = self._taken.pop(uid)
        self._ledger.apply(events.PodGone(uid))
        self._free_cpu[row] += arrival.cpu_milli
        self._free_memory[row] += arrival.memory_mib
        self.allocated_milli -= arrival.demand_milli

    def check(self) -> None:
        """Check the ledger's invariants."""
        self._ledger.check_invariants()


def arrival_of(pod: TracePod) -> Arrival:
    """Return what a pod of the trace asks for, in the extender's terms."""
    demands: tuple[ContainerDemand, ...] = ()
    if pod.cards:
        whole = pod.share_milli == MILLI
        asked = ContainerRequest(
            cards=pod.cards, memory_mib=pod.share_milli, core_percent=pod.share_milli // _PERCENT, exclusive=whole
        )
        demands = (ContainerDemand("main", Role.APP, asked),)
    request = PodRequest(demands, CardSelection(use_types=pod.models))
    return Arrival(request, pod.cpu_milli, pod.memory_mib, pod.demand_milli)


def mix_of(pods: Sequence[TracePod]) -> dict[Task, int]:
    """Return how many pods of each class a trace has: the mix that fragmentation policies are told beforehand."""
    counts: dict[Task, int] = {}
    for pod in pods:
        task = Task(pod.cpu_milli, pod.share_milli, pod.cards, models=pod.models)
        counts[task] = counts.get(task, 0) + 1
    return counts


def _seen(node: TraceNode) -> events.NodeSeen:
    cards = tuple(
        Card(uuid=f"{node.name}-{index:02d}", memory_mib=MILLI, slots=_SLOTS, model=node.model, index=index)
        for index in range(node.cards)
    )
    return events.NodeSeen(NodeCards(node.name, cards), cpu_milli=node.cpu_milli)
