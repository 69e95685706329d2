"""/preempt: kube-scheduler is short of something of its own, and asks on which nodes its victims would help.

Called before any /filter, with victims chosen for CPU, memory and the like. We keep the nodes on which our share fits
once those victims have gone, add victims of ours where it takes more, answer with the cheapest node alone, and reserve
the share there: /filter must not refuse the node afterwards, or kube-scheduler evicts on the next one as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from extender.dossier import Dossier
from extender.wire import MetaPod, MetaVictims
from gpuslice.devices.allocation import PodAllocation
from gpuslice.placement.decide import allocate
from gpuslice.placement.fit import Fit, fit_node
from gpuslice.placement.ledger import Ledger
from gpuslice.placement.policies.registry import PolicyDefaults, resolve
from gpuslice.placement.preempt import Budgets, Preemptor, plan_preemption
from gpuslice.placement.shape import shape_of
from gpuslice.placement.view import Change


@dataclass(frozen=True, slots=True)
class Nomination:
    """The node chosen, everybody who has to go there, and the share reserved meanwhile."""

    node: str
    victims: MetaVictims
    allocation: PodAllocation
    waits_for: frozenset[str]


def nominate(
    ledger: Ledger,
    dossier: Dossier,
    offered: Mapping[str, MetaVictims],
    *,
    defaults: PolicyDefaults,
    budgets: Budgets | None,
) -> Nomination | None:
    """Choose one of the nodes offered, or None if our share fits on none of them whoever goes.

    Without ``budgets`` (they are not known yet) nobody is added to the victims.
    """
    found = [
        option
        for node, victims in sorted(offered.items())
        if (option := _option(ledger, dossier, (node, victims), defaults=defaults, budgets=budgets)) is not None
    ]
    return min(found, key=lambda option: _cost(ledger, option), default=None)


def _option(
    ledger: Ledger,
    dossier: Dossier,
    offer: tuple[str, MetaVictims],
    *,
    defaults: PolicyDefaults,
    budgets: Budgets | None,
) -> Nomination | None:
    node, victims = offer
    row = ledger.fleet.row_of.get(node)
    if row is None:
        return None
    uids = {pod.uid for pod in victims.pods or ()}
    leaving = [ledger.holdings[uid] for uid in uids if uid in ledger.holdings and ledger.holdings[uid].node == node]
    changes: list[Change] = [(-1, use) for holding in leaving for use in holding.uses]
    own = ledger.reservations.get(dossier.key.uid)
    if own is not None and own.allocation.node == node:
        changes += [(-1, use) for use in own.uses]
    shape, policy = shape_of(dossier.request), resolve(dossier.request, defaults)
    fit = fit_node(ledger.fleet, row, shape, policy, changes)
    if isinstance(fit, Fit):
        allocation = allocate(ledger, node, shape, fit, policy)
        return Nomination(node, victims, allocation, frozenset(holding.key.uid for holding in leaving))
    if budgets is None:
        return None
    preemptor = Preemptor(dossier.key, dossier.priority, never=not dossier.preempts)
    plan = plan_preemption(ledger, preemptor, dossier.request, [node], defaults=defaults, budgets=budgets)
    if plan is None:
        return None
    more = tuple(MetaPod(key.uid) for key in plan.evict if key.uid not in uids)
    everybody = MetaVictims((*(victims.pods or ()), *more), victims.num_pdb_violations)
    return Nomination(node, everybody, plan.allocation, plan.waits_for)


def _cost(ledger: Ledger, option: Nomination) -> tuple[int, int, int, str]:
    pods = option.victims.pods or ()
    known = [ledger.holdings[pod.uid].priority for pod in pods if pod.uid in ledger.holdings]
    return (option.victims.num_pdb_violations, max(known, default=-(2**31)), len(pods), option.node)
