"""Preemption of our own: reserve first, then evict, then wake.

kube-scheduler never preempts for what only we know (its dry run believes that the pod fits). So a refused pod that may
preempt gets the cheapest place that evictions can make; the share is reserved before the first victim goes, and nobody
else gets it. Refused pods are taken from a queue, most urgent first, so that twenty of them do not choose the same
victims.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from extender.dossier import Dossier
from extender.promises import Promises
from extender.reports import EVICTED, RESERVED, Reports
from gpuslice.cluster.backoff import Backoff
from gpuslice.cluster.client import KubeClient
from gpuslice.cluster.errors import ApiError, Conflict, NotFound, Unreachable
from gpuslice.cluster.timing import REAL_TIME, Timing
from gpuslice.placement import events
from gpuslice.placement.events import PodKey
from gpuslice.placement.preempt import Budgets, PreemptionPlan, Preemptor, plan_preemption

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A refused pod and the nodes on which it may run as far as others are concerned."""

    dossier: Dossier
    nodes: tuple[str, ...]


class Preemption:
    """Plans and carries out evictions."""

    def __init__(
        self,
        client: KubeClient,
        promises: Promises,
        reports: Reports,
        *,
        budgets: Callable[[], Budgets | None],
        leads: Callable[[], bool],
        timing: Timing = REAL_TIME,
    ) -> None:
        """``budgets`` gives None while the disruption budgets are not known: then nobody is evicted."""
        self._client = client
        self._promises = promises
        self._engine = promises.engine
        self._budgets = budgets
        self._leads = leads
        self._reports = reports
        self._timing = timing
        self._queue: dict[str, Candidate] = {}
        self._filled = asyncio.Event()
        self._evicting: set[asyncio.Task[None]] = set()
        self._lowest: tuple[int, int] = (-1, 0)
        self.evictions = 0

    @property
    def queued(self) -> int:
        """Pods whose turn has not come."""
        return len(self._queue)

    def consider(self, dossier: Dossier, nodes: tuple[str, ...]) -> None:
        """Queue a refused pod, if there is anybody it may evict and nothing is reserved for it yet."""
        ledger = self._engine.ledger
        if not dossier.preempts or dossier.key.uid in ledger.reservations:
            return
        if dossier.priority <= self._lowest_priority():
            return
        self._queue[dossier.key.uid] = Candidate(dossier, nodes)
        self._filled.set()

    def _lowest_priority(self) -> int:
        """Lowest priority among the pods that hold a share; looked up once for each state of the ledger."""
        ledger = self._engine.ledger
        if self._lowest[0] != ledger.fleet.now:
            lowest = min((holding.priority for holding in ledger.holdings.values() if holding.uses), default=2**31)
            self._lowest = (ledger.fleet.now, lowest)
        return self._lowest[1]

    async def run(self) -> None:
        """Work the queue off until cancelled."""
        try:
            while True:
                while not self._queue:
                    self._filled.clear()
                    await self._filled.wait()
                uid = min(self._queue, key=lambda each: _urgency(self._queue[each].dossier))
                self._try(self._queue.pop(uid))
                # A search may take some milliseconds: let the calls of kube-scheduler in between.
                await self._timing.sleep(0)
        finally:
            for task in self._evicting:
                task.cancel()

    def _try(self, candidate: Candidate) -> None:
        dossier, ledger = candidate.dossier, self._engine.ledger
        uid = dossier.key.uid
        budgets = self._budgets()
        if budgets is None or not self._leads() or uid in ledger.reservations or uid in ledger.holdings:
            return
        if uid not in ledger.waiting:
            return
        plan = plan_preemption(
            ledger,
            Preemptor(dossier.key, dossier.priority, never=not dossier.preempts),
            dossier.request,
            candidate.nodes,
            defaults=self._engine.terms.defaults,
            budgets=budgets,
        )
        if plan is not None:
            self._carry_out(dossier, plan)

    def _carry_out(self, dossier: Dossier, plan: PreemptionPlan) -> None:
        names = ", ".join(str(key) for key in plan.evict) or "nobody: pods that are ending make room"
        log.info("preempting", pod=str(dossier.key), node=plan.node, victims=[str(key) for key in plan.evict])
        self._reports.tell(dossier.key, "Normal", RESERVED, f"share reserved on node {plan.node}; evicting {names}")
        self._engine.apply(
            events.Reserve(
                key=dossier.key,
                allocation=plan.allocation,
                victims=plan.waits_for,
                now=self._timing.clock(),
                roles=dossier.roles,
                priority=dossier.priority,
            )
        )
        for victim in plan.evict:
            if self._promises.is_held(victim.uid):
                self._promises.release(victim.uid)
                continue
            task = asyncio.create_task(self._evict(victim, dossier.key, plan.node))
            self._evicting.add(task)
            task.add_done_callback(self._evicting.discard)

    async def _evict(self, victim: PodKey, beneficiary: PodKey, node: str) -> None:
        """Evict one pod; a refusal for now (budget, throttling) is tried again as long as the reservation lives."""
        backoff = Backoff(0.2, 5.0, draw=self._timing.draw)
        while self._is_wanted(victim, beneficiary):
            try:
                await self._client.evict_pod(victim.namespace, victim.name, uid=victim.uid)
            except (NotFound, Conflict):
                return
            except (ApiError, Unreachable) as error:
                log.warning("eviction_refused", pod=str(victim), beneficiary=str(beneficiary), error=str(error))
                if isinstance(error, ApiError) and not error.is_transient:
                    self._engine.apply(events.Unreserve(beneficiary.uid))
                    return
                await self._timing.sleep(backoff.next_seconds())
            else:
                self.evictions += 1
                text = f"evicted from node {node}: its GPU share goes to {beneficiary} of higher priority"
                self._reports.tell(victim, "Warning", EVICTED, text)
                return

    def _is_wanted(self, victim: PodKey, beneficiary: PodKey) -> bool:
        ledger = self._engine.ledger
        kept = ledger.reservations.get(beneficiary.uid)
        return self._leads() and kept is not None and victim.uid in kept.victims


def _urgency(dossier: Dossier) -> tuple[int, str, str]:
    return (-dossier.priority, dossier.created_at, dossier.key.uid)
