"""Decisions in words and figures: what was judged, how, and what came of it. Kept for the last few pods.

A record keeps verdicts as arrays (5 bytes a node) and turns them into JSON-able objects only when somebody asks.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from gpuslice.devices.allocation import PodAllocation
from gpuslice.devices.requests import PodRequest
from gpuslice.devices.value import Value
from gpuslice.placement.decide import NOBODY, Asker, Decision, Names, kept_for, priorities_of
from gpuslice.placement.events import PodKey
from gpuslice.placement.fit import obstacles
from gpuslice.placement.fleet import Codes
from gpuslice.placement.ledger import Ledger
from gpuslice.placement.policies.policy import Policy
from gpuslice.placement.policies.registry import PolicyDefaults, resolve
from gpuslice.placement.rejection import TEXTS, Obstacle
from gpuslice.placement.shape import PodShape, shape_of
from gpuslice.placement.view import NodeRecord, planning_view, view_of

KEPT: Final = 256
CLOSEST: Final = 3
_MAX_LISTED: Final = 5_000


@dataclass(slots=True)
class CardVerdict:
    """One card as the pod saw it."""

    uuid: str
    reason: str
    """Constant text of the obstacle; empty when the card could hold the pod's largest share."""
    scores: dict[str, int]
    """Key by card policy, higher is better; empty when the card could not hold it."""
    free_slots: int
    free_memory_mib: int
    free_core_percent: int


@dataclass(slots=True)
class Record:
    """Everything about one decision."""

    key: PodKey
    at: float
    request: PodRequest
    policy: str
    names: Names
    codes: Codes
    scores: "np.ndarray[tuple[int], np.dtype[np.float32]]"
    cards: dict[str, "CardsSeen"] = field(default_factory=dict)
    """The cards of the nodes that were looked at closely."""
    node: str = ""
    """Node chosen at last; empty while undecided."""
    allocation: PodAllocation | None = None


class History:
    """The last decisions, by namespace and name."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._records: OrderedDict[tuple[str, str], Record] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def get(self, namespace: str, name: str) -> Record | None:
        """Return the last decision for a pod."""
        return self._records.get((namespace, name))

    def filtered(self, key: PodKey, at: float, decision: Decision) -> Record:
        """Record the verdicts of a filter call."""
        record = Record(
            key,
            at,
            decision.request,
            decision.policy,
            decision.names,
            decision.codes,
            decision.scores.astype(np.float32),
        )
        self._records[key.namespace, key.name] = record
        self._records.move_to_end((key.namespace, key.name))
        if len(self._records) > self._kept:
            self._records.popitem(last=False)
        return record

    def placed(self, key: PodKey, allocation: PodAllocation, cards: "CardsSeen") -> None:
        """Record what was chosen, and the cards of that node as they were before."""
        record = self.get(key.namespace, key.name)
        if record is not None and record.key.uid == key.uid:
            record.node = allocation.node
            record.allocation = allocation
            record.cards[allocation.node] = cards

    def forget(self, key: PodKey) -> None:
        """Drop a pod's record."""
        self._records.pop((key.namespace, key.name), None)


class CardsSeen(Value, frozen=True):
    """The cards of a node as they were before anything was placed; judged when somebody asks."""

    node: NodeRecord | None
    shape: PodShape
    policy: Policy

    def verdicts(self) -> list[CardVerdict]:
        """Return what each card says to the pod's largest block."""
        shape, policy = self.shape, self.policy
        if self.node is None or not shape.blocks:
            return []
        view = self.node.view(shape)
        found = obstacles(view, shape, 0, idle_only=policy.idle_only)
        usable = [column for column, what in enumerate(found) if what is Obstacle.NONE]
        keys = {
            ranking.name: dict(zip(usable, ranking.keys(view, shape.blocks[0], usable), strict=True))
            for ranking in policy.cards
        }
        return [
            CardVerdict(
                uuid=card.uuid,
                reason=TEXTS[found[column]],
                scores={name: by_column[column] for name, by_column in keys.items() if column in by_column},
                free_slots=card.total_slots - card.used_slots,
                free_memory_mib=card.total_memory - card.used_memory,
                free_core_percent=card.total_cores - card.used_cores,
            )
            for column, card in enumerate(view.cards)
        ]


def see_cards(
    ledger: Ledger, request: PodRequest, node: str, defaults: PolicyDefaults, asker: Asker = NOBODY
) -> CardsSeen:
    """Take down the cards of a node before anything is placed."""
    row = ledger.fleet.row_of.get(node)
    shape = shape_of(request, asker.cpu_milli)
    policy = resolve(request, defaults, ledger.outlook)
    if row is None:
        return CardsSeen(None, shape, policy)
    kept = kept_for(ledger, asker.uid, node)
    view = view_of(ledger.fleet, row, shape, kept) if kept else planning_view(ledger.fleet, row, shape)
    return CardsSeen(NodeRecord.of(view), shape, policy)


def as_object(record: Record) -> dict[str, Any]:
    """Return a record as JSON-able data: summary first, then each node's verdict, best first.

    ``score`` is 0..10 as kube-scheduler gets it, ``raw`` the policy's own figure.
    """
    fitting = np.flatnonzero(record.codes == 0)
    order = np.lexsort((np.arange(len(record.codes)), -record.scores, record.codes))[:_MAX_LISTED]
    counts = np.bincount(record.codes, minlength=len(Obstacle))
    scores = record.scores[fitting]
    best = int(scores.argmax()) if len(scores) else -1
    priorities = dict(zip(fitting.tolist(), priorities_of(scores, best).tolist(), strict=True))
    return {
        "pod": str(record.key),
        "uid": record.key.uid,
        "at": record.at,
        "policy": record.policy,
        "nodes": {"considered": len(record.codes), "feasible": len(fitting)},
        "refused": {TEXTS[o]: int(counts[o]) for o in Obstacle if o is not Obstacle.NONE and counts[o]},
        "chosen": record.node or None,
        "allocation": None if record.allocation is None else _allocation(record.allocation),
        "verdicts": [
            {"node": str(record.names[at]), "score": priorities[at], "raw": float(record.scores[at])}
            if at in priorities
            else {"node": str(record.names[at]), "reason": TEXTS[Obstacle(int(record.codes[at]))]}
            for at in order.tolist()
        ],
        "cards": {node: [_card(card) for card in cards.verdicts()] for node, cards in record.cards.items()},
    }


def summary(decision: Decision) -> str:
    """Return one line for an Event: how many nodes each reason refuses, most first."""
    counts = sorted(decision.counts().items(), key=lambda item: (-item[1], item[0]))
    return f"0/{len(decision.codes)} nodes fit: " + "; ".join(f"{count} {reason}" for reason, count in counts)


def closest(decision: Decision, at_most: int = CLOSEST) -> list[str]:
    """Return refused nodes that came furthest in the tests, ties by name: where a look at the cards is worth most."""
    order = np.lexsort((decision.ranks, -decision.codes.astype(np.int64)))
    return [str(decision.names[at]) for at in order[:at_most].tolist() if decision.codes[at]]


def _allocation(allocation: PodAllocation) -> dict[str, Any]:
    return {
        name: [
            {
                "slice": share.slice,
                "memoryMiB": share.memory_mib,
                "cores": share.core_percent,
                "exclusive": share.exclusive,
            }
            for share in shares
        ]
        for name, shares in allocation.containers.items()
    }


def _card(card: CardVerdict) -> dict[str, Any]:
    return {
        "uuid": card.uuid,
        "reason": card.reason or None,
        "scores": card.scores,
        "freeSlots": card.free_slots,
        "freeMemoryMiB": card.free_memory_mib,
        "freeCorePercent": card.free_core_percent,
    }
