"""Whom to evict so that a pod fits: the cheapest set on one node, and what is then reserved.

kube-scheduler cannot do this for shares that only we know. The search follows its shape (remove every pod of lower
priority, see whether the pod fits, then take back as many as possible, the most important first; see "Pod Priority and
Preemption" in the Kubernetes documentation), with our own order of costs: highest priority among the victims, share
lost, number of pods, name of the node; among equal pods the older one stays.

Pods that are on their way out already (terminating, or victims of another reservation) cost nothing: a pod that fits
once they have ended waits for them and evicts nobody. Disruption budgets are kept, never spent beyond what they allow.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gpuslice.devices.allocation import PodAllocation
from gpuslice.devices.requests import PodRequest
from gpuslice.placement.decide import allocate
from gpuslice.placement.events import PodKey
from gpuslice.placement.fit import Fit, fit_node
from gpuslice.placement.fleet import Ints
from gpuslice.placement.holding import Holding, Phase
from gpuslice.placement.ledger import Ledger
from gpuslice.placement.policies.policy import Policy
from gpuslice.placement.policies.registry import PolicyDefaults, resolve
from gpuslice.placement.scan import Freed
from gpuslice.placement.shape import PodShape, shape_of
from gpuslice.placement.verdicts import scan_nodes
from gpuslice.placement.view import Change

NODES_TRIED: Final = 32
"""How many nodes are searched in full, those with the least important pods first."""


@dataclass(frozen=True, slots=True)
class Budgets:
    """Disruption budgets: which ones cover a pod, and how many evictions each still allows."""

    covering: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Pod UID to budget names."""
    allowed: Mapping[str, int] = field(default_factory=dict)

    def allow(self, victims: Iterable[Holding]) -> bool:
        """Tell whether all victims may be evicted together."""
        spent: dict[str, int] = {}
        for victim in victims:
            for budget in self.covering.get(victim.key.uid, ()):
                spent[budget] = spent.get(budget, 0) + 1
        return all(count <= self.allowed.get(budget, 0) for budget, count in spent.items())


@dataclass(frozen=True, slots=True)
class Preemptor:
    """The pod that may preempt."""

    key: PodKey
    priority: int
    never: bool = False
    """Its preemptionPolicy is ``Never``."""


@dataclass(frozen=True, slots=True)
class PreemptionPlan:
    """What to evict, and what to reserve meanwhile (as ``Reserve(key, allocation, waits_for, now)``)."""

    node: str
    allocation: PodAllocation
    evict: tuple[PodKey, ...]
    waits_for: frozenset[str]
    """UIDs of all pods whose end the share needs: those evicted and those on their way out already."""


def plan_preemption(
    ledger: Ledger,
    preemptor: Preemptor,
    request: PodRequest,
    nodes: Sequence[str],
    *,
    defaults: PolicyDefaults,
    budgets: Budgets | None = None,
) -> PreemptionPlan | None:
    """Return the cheapest way to make room for a pod, or None if there is none.

    Args:
        ledger: Who holds what.
        preemptor: The pod that wants room.
        request: What it asks for.
        nodes: Nodes on which it may run as far as others are concerned.
        defaults: The cluster's policies.
        budgets: Disruption budgets; none by default.
    """
    if preemptor.never:
        return None
    policy = resolve(request, defaults, ledger.outlook)
    search = _Search(ledger, preemptor, request, policy, budgets or Budgets())
    found = [option for node in search.promising(nodes) if (option := search.cheapest(node)) is not None]
    if not found:
        return None
    best = min(found, key=lambda option: option.cost)
    return PreemptionPlan(
        node=best.node,
        allocation=allocate(ledger, best.node, search.shape, best.fit, search.policy),
        evict=tuple(sorted((v.key for v in best.victims if not search.leaving(v)), key=lambda key: key.uid)),
        waits_for=frozenset(victim.key.uid for victim in best.victims),
    )


@dataclass(frozen=True, slots=True)
class _Option:
    node: str
    fit: Fit
    victims: tuple[Holding, ...]
    cost: tuple[int, int, int, int, str]


class _Search:
    def __init__(
        self, ledger: Ledger, preemptor: Preemptor, request: PodRequest, policy: Policy, budgets: Budgets
    ) -> None:
        self.shape: PodShape = shape_of(request)
        self.policy = policy
        self._ledger = ledger
        self._preemptor = preemptor
        self._budgets = budgets
        self._doomed = {uid for kept in ledger.reservations.values() for uid in kept.victims}
        own = ledger.reservations.get(preemptor.key.uid)
        self._own: tuple[Change, ...] = tuple((-1, use) for use in own.uses) if own is not None else ()
        self._own_node = own.allocation.node if own is not None else ""

    def leaving(self, holding: Holding) -> bool:
        """Tell whether a pod is on its way out already."""
        return holding.terminating or holding.key.uid in self._doomed

    def promising(self, nodes: Sequence[str]) -> list[str]:
        """Return nodes on which the pod fits without its inferiors, those with the least important ones first."""
        fleet = self._ledger.fleet
        names = [name for name in dict.fromkeys(nodes) if name in fleet.row_of and self._candidates(name)]
        if not names:
            return []
        rows: Ints = np.array([fleet.row_of[name] for name in names], dtype=np.int64)
        codes, _ = scan_nodes(fleet, rows, self.shape, self.policy, self._freed(names, rows))
        fitting = [name for name, code in zip(names, codes.tolist(), strict=True) if code == 0]
        return sorted(fitting, key=self._least_important)[:NODES_TRIED]

    def cheapest(self, node: str) -> _Option | None:
        """Return the cheapest set of victims on a node."""
        holders = self._candidates(node)
        kept_first = (
            sorted(holders, key=lambda h: (self.leaving(h), -h.priority, -_share(h), h.created_at, h.key.uid)),
            sorted(holders, key=lambda h: (self.leaving(h), -h.priority, _share(h), h.created_at, h.key.uid)),
        )
        options = [option for order in kept_first if (option := self._spare(node, order)) is not None]
        return min(options, key=lambda option: option.cost, default=None)

    def _candidates(self, node: str) -> list[Holding]:
        book = self._ledger.book(node)
        if book is None:
            return []
        return [
            holding
            for holding in book.holders.values()
            if holding.uses and (self.leaving(holding) or self._may_go(holding))
        ]

    def _may_go(self, holding: Holding) -> bool:
        """Tell whether a pod may be evicted. One that is not bound yet has not started: its turn comes later."""
        return (
            holding.phase is Phase.BOUND
            and holding.priority < self._preemptor.priority
            and self._budgets.allow((holding,))
        )

    def _spare(self, node: str, order: Sequence[Holding]) -> _Option | None:
        """Take victims back one after the other, as long as the pod still fits."""
        victims = {holding.key.uid: holding for holding in order}
        fit = self._fit(node, victims.values())
        if fit is None:
            return None
        for holding in order:
            del victims[holding.key.uid]
            spared = self._fit(node, victims.values())
            if spared is None:
                victims[holding.key.uid] = holding
            else:
                fit = spared
        evicted = [holding for holding in victims.values() if not self.leaving(holding)]
        if not self._budgets.allow(evicted):
            return None
        cost = (
            max((holding.priority for holding in evicted), default=-(2**31)),
            sum(_share(holding) for holding in evicted),
            len(evicted),
            len(victims),
            node,
        )
        return _Option(node, fit, tuple(victims.values()), cost)

    def _fit(self, node: str, without: Iterable[Holding]) -> Fit | None:
        fleet = self._ledger.fleet
        changes: list[Change] = list(self._own) if node == self._own_node else []
        changes.extend((-1, use) for holding in without for use in holding.uses)
        fit = fit_node(fleet, fleet.row_of[node], self.shape, self.policy, changes)
        return fit if isinstance(fit, Fit) else None

    def _least_important(self, node: str) -> tuple[int, int, str]:
        holders = self._candidates(node)
        evicted = [holding for holding in holders if not self.leaving(holding)]
        return (
            min((h.priority for h in evicted), default=-(2**31)),
            min((_share(h) for h in evicted), default=0),
            node,
        )

    def _freed(self, names: Sequence[str], rows: Ints) -> Freed:
        fleet = self._ledger.fleet
        freed = Freed.nothing(len(rows), fleet.present.shape[1])
        for at, name in enumerate(names):
            book = self._ledger.books.nodes[name]
            uses = [use for holding in self._candidates(name) for use in holding.uses]
            if name == self._own_node:
                uses.extend(use for _, use in self._own)
            for column, use in self._ledger.books.present(book, tuple(uses)):
                freed.add(at, column, use)
        return freed


def _share(holding: Holding) -> int:
    """Size of what a victim loses: MiB over all its cards, compute counted as if a percent were 256 MiB."""
    return sum(use.memory_mib + 256 * use.core_percent for use in holding.uses)
