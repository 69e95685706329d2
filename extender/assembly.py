"""The parts of the extender, wired together."""

import asyncio
import gc
from collections.abc import Iterable

import structlog

from extender.binding import Binder
from extender.engine import Acceptance, Engine, Invalid, Notice, OverQuota, Placement, Refusal, Surroundings, Terms
from extender.facts import NodeFacts, PodFacts
from extender.feed import Feed
from extender.gate import Gate
from extender.leadership import Leadership
from extender.preemption import Preemption
from extender.promises import Promises
from extender.quota_waits import QuotaWaits
from extender.quotas import QuotaFacts
from extender.reports import CARDS_UNREADABLE, CONFLICT, REGISTER_AGAIN, Reports
from extender.retries import SampledRetries
from extender.settings import ExtenderSettings
from extender.sweeping import Sweeper
from extender.waking import Waker
from extender.wire import ExtenderArgs, ExtenderPreemptionArgs
from gpuslice.cluster.client import KubeClient
from gpuslice.cluster.events import EventRecorder, Subject
from gpuslice.cluster.following import LeaseFollower
from gpuslice.cluster.lease import ElectionTerms, LeaderElector
from gpuslice.cluster.moments import SpareMoments
from gpuslice.cluster.timing import REAL_TIME, Timing
from gpuslice.devices.families import load_builtin, load_files
from gpuslice.placement import events
from gpuslice.placement.events import PodKey
from gpuslice.placement.holding import Phase
from gpuslice.placement.policies.registry import PolicyDefaults

log = structlog.get_logger(__name__)

COMPONENT = "gpuslice-scheduler"
STALE_SECONDS = 60.0
"""With watches silent for so long, assumed shares do not run out: the pod may be bound and we cannot see it."""


class Extender:
    """Owns every part. What one part has to say to another goes through here."""

    def __init__(
        self,
        settings: ExtenderSettings,
        client: KubeClient,
        *,
        timing: Timing = REAL_TIME,
        moments: SpareMoments | None = None,
    ) -> None:
        """Wire the parts; ``moments`` are those of the client's transport, if it knows such."""
        self.settings = settings
        self.timing = timing
        self._moments = moments
        families = load_files(settings.device_files) if settings.device_files else load_builtin()
        self.recorder = EventRecorder(client, COMPONENT, settings.identity, now=timing.now)
        self.reports = Reports(self.recorder)
        self.leadership = Leadership(lambda: self.feed)
        self.leadership.elector = _elector(settings, client, self.leadership, timing)
        leads = self.leadership.leads
        surroundings = Surroundings(
            clock=timing.clock,
            wall_clock=timing.wall,
            act=self._act,
            notice=self._notice,
            release=self._release,
        )
        self.engine = Engine(families, _terms(settings), surroundings)
        self.gate = Gate()
        self.promises = Promises(self.engine, self.gate, ours=self._is_ours)
        self.quota_waits = QuotaWaits(self.engine.quotas, self.engine.ledger)
        self.retries = SampledRetries()
        self.waker = Waker(client, leads=leads, gone=self._not_woken, timing=timing)
        self.feed = Feed(client, families, self, timing=timing)
        self.binder = Binder(
            client,
            self.promises,
            self.gate,
            leads=leads,
            timeout_seconds=settings.bind_timeout_seconds,
            waiting=self._spare_moment,
        )
        self.preemption = Preemption(
            client, self.promises, self.reports, budgets=self.feed.budgets_now, leads=leads, timing=timing
        )
        self.sweeper = Sweeper(self._exists, timing.clock)
        self._greeted = False
        self._accepted = 0
        self._refused = 0

    def _release(self, uid: str) -> None:
        self.promises.reconsider(uid)

    def _spare_moment(self) -> None:
        """The API server is at work on a binding: do what nobody should wait for, what the watches brought first."""
        if self._moments is not None:
            self._moments.use()
        asyncio.get_running_loop().call_soon(self.engine.look_ahead)

    def _is_ours(self, node: str) -> bool:
        facts = self.feed.nodes.get("", node)
        return facts is None or facts.own

    # -- the verbs ---------------------------------------------------------------------------------------------------

    def filter(self, args: ExtenderArgs) -> bytes:
        """Answer /filter."""
        return self.engine.filter(args)

    def prioritize(self, args: ExtenderArgs) -> bytes:
        """Answer /prioritize."""
        return self.engine.prioritize(args)

    def preempt(self, args: ExtenderPreemptionArgs) -> bytes:
        """Answer /preempt."""
        budgets = self.feed.budgets_now() if self.settings.preemption else None
        return self.promises.preempt(args, budgets)

    def explain(self, namespace: str, name: str) -> bytes | None:
        """Answer /decisions."""
        return self.engine.explain(namespace, name)

    # -- what the watches bring --------------------------------------------------------------------------------------

    def observe(self, event: events.Event) -> None:
        """Take a fact about nodes and pods."""
        self.promises.observe(event)
        match event:
            case events.PodSeen(key=key, node=node) if node:
                self._settled(key.uid, key.namespace)
                self._tell_unreadable((event,))
            case events.Relist(pods=pods):
                self._tell_unreadable(pods)
            case events.PodGone(uid=uid):
                self.reports.settled(uid)
                self.retries.settled(uid)
                dossier = self.engine.dossiers.get(uid)
                if dossier is not None:
                    self._settled(uid, dossier.key.namespace)
                self.engine.drop(uid)
        self._wake_for_quota()

    def _tell_unreadable(self, pods: Iterable[events.PodSeen]) -> None:
        for pod in pods:
            if pod.unreadable and pod.node and not pod.terminal and self.leadership.leads():
                held = self.engine.ledger.holdings.get(pod.key.uid)
                unclear = held is not None and held.is_unclear
                log.error("pod_allocation_unreadable", pod=str(pod.key), node=pod.node, error=pod.unreadable)
                self.reports.unreadable(pod.key, pod.unreadable, node=pod.node if unclear else "")

    def loaded(self) -> None:
        """Everything was read: what is here now will stay, so the cycle collector need not walk it again and again."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)

    def note_node(self, facts: NodeFacts) -> None:
        """Tell on a node that its cards cannot all be read; those take no pods."""
        name = facts.seen.cards.node
        log.error("node_cards_unreadable", node=name, error=facts.problem)
        if self.leadership.leads():
            self.recorder.record(Subject.node(name), "Warning", CARDS_UNREADABLE, f"{facts.problem}: {REGISTER_AGAIN}")

    def note_admission(self, facts: PodFacts) -> None:
        """See how far a bound pod has come."""
        self.promises.note_admission(facts)

    def replace_quotas(self, quotas: Iterable[QuotaFacts]) -> None:
        """Take all quotas."""
        listed = list(quotas)
        self.engine.quotas.replace(listed)
        for namespace in {quota.namespace for quota in listed}:
            self.waker.wake(self.quota_waits.allowed(namespace), "the quota changed")

    def put_quota(self, quota: QuotaFacts) -> None:
        """Take one quota."""
        self.engine.quotas.put(quota)
        self.waker.wake(self.quota_waits.allowed(quota.namespace), "the quota changed")

    def drop_quota(self, quota: QuotaFacts) -> None:
        """Forget one quota."""
        self.engine.quotas.drop(quota)
        self.waker.wake(self.quota_waits.allowed(quota.namespace), "a quota was removed")

    def _settled(self, uid: str, namespace: str) -> None:
        self.reports.settled(uid)
        self.retries.settled(uid)
        self.quota_waits.discard(uid, namespace)

    def _wake_for_quota(self) -> None:
        released = self.quota_waits.released()
        if released:
            self.waker.wake(released, "something of the quota was given back")

    def _exists(self, key: PodKey) -> bool:
        facts = self.feed.pods.get(key.namespace, key.name)
        return facts is not None and facts.seen.key.uid == key.uid

    def _sweep(self) -> None:
        ledger = self.engine.ledger
        reserved = [kept.key for kept in ledger.reservations.values()]
        bound = [held.key for held in ledger.holdings.values() if held.phase is Phase.BOUND]
        for key in self.sweeper.sweep((*ledger.waiting.keys(), *self.quota_waits.keys(), *reserved, *bound)):
            log.warning("pod_does_not_exist", pod=str(key), uid=key.uid)
            self._never_mind(key)

    def _not_woken(self, key: PodKey) -> None:
        # A write may be in conflict with others as well, and what a pod holds is not given back on such a word.
        if key.uid not in self.engine.ledger.holdings:
            self._never_mind(key)

    def _never_mind(self, key: PodKey) -> None:
        """Forget a pod that does not exist, whatever we knew of it."""
        self._settled(key.uid, key.namespace)
        self.observe(events.PodGone(key.uid))

    # -- what the ledger and the engine ask for ----------------------------------------------------------------------

    def _act(self, command: events.Command) -> None:
        match command:
            case events.Wake(pods):
                self.waker.wake(pods, "a share was released")
            case events.ReservationReady(key, node):
                self.waker.wake((key,), f"its reservation on node {node} is ready", nominate=node)
            case events.ReservationLost(key, node, reason):
                log.warning("reservation_lost", pod=str(key), node=node, reason=reason)
                self.waker.wake((key,), f"its reservation on node {node} was lost: {reason}")
            case events.Expired(key, node):
                log.warning("assumed_share_expired", pod=str(key), node=node)
                self.promises.expired(key)
            case events.Conflict(node, card, problem, pods):
                log.error("card_overcommitted", node=node, card=card, problem=problem, pods=pods)
                if self.leadership.leads():
                    text = f"card {card}: {problem}; pods {', '.join(pods)}"
                    self.recorder.record(Subject.node(node), "Warning", CONFLICT, text)

    def _notice(self, notice: Notice) -> None:
        match notice:
            case Refusal(dossier, decision):
                self._refused += 1
                self.quota_waits.discard(dossier.key.uid, dossier.key.namespace)
                self.reports.refused(
                    dossier.key, tuple(sorted(decision.counts())), lambda: self.engine.describe(dossier, decision)
                )
                log.info("pod_refused", pod=str(dossier.key), reasons=decision.counts())
                total = len(self.engine.ledger.fleet.row_of)
                sampled = self.retries.due(dossier.key.uid, offered=len(decision.codes), total=total)
                if sampled and self.engine.fits_elsewhere(dossier, decision):
                    self.waker.wake((dossier.key,), "a node that was not offered may fit")
                elif self.settings.preemption:
                    self.preemption.consider(dossier, tuple(decision.names.tolist()))
            case Acceptance(dossier, best):
                self._accepted += 1
                if best:
                    self.promises.hold_soon(dossier, best)
                    asyncio.get_running_loop().call_soon(self.promises.hold_now)
            case Placement(key) as placement:
                if self.settings.placement_events:
                    self.reports.placed(key, lambda: self.engine.describe_placement(placement))
            case Invalid(key, problems):
                self.reports.refused(key, problems, lambda: "; ".join(map(str, problems)))
                log.info("pod_invalid", pod=str(key), problems=[str(problem) for problem in problems])
            case OverQuota(dossier, figures):
                self.quota_waits.add(dossier)
                self.reports.refused(dossier.key, "quota", lambda: figures)
                log.info("pod_over_quota", pod=str(dossier.key), figures=figures)

    # -- figures -----------------------------------------------------------------------------------------------------

    def counters(self) -> dict[str, float]:
        """Counters of the parts, by name."""
        return {
            "pods_accepted": self._accepted,
            "pods_refused": self._refused,
            "wakeups": self.waker.patches,
            "evictions": self.preemption.evictions,
            "events_dropped": self.recorder.dropped,
            "pod_lists": self.feed.pods.lists,
            "node_lists": self.feed.nodes.lists,
        }

    def gauges(self) -> dict[str, float]:
        """Gauges of the parts, by name."""
        return {
            "leading": float(self.leadership.leads()),
            "nodes_unreadable": float(sum(1 for facts in self.feed.nodes.items.values() if facts.problem)),
            "ready": float(self.leadership.not_ready() is None),
            "pods_view_age_seconds": min(self.feed.pods.behind_seconds, 1e9),
            "nodes_view_age_seconds": min(self.feed.nodes.behind_seconds, 1e9),
        }

    # -- time --------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Let time pass, once a second: deadlines in the ledger, and the first moment of leadership."""
        if self.feed.pods.behind_seconds < STALE_SECONDS:
            self.engine.tick()
            if self.sweeper.due():
                self._sweep()
        self.promises.tick()
        self.reports.tick()
        ready = self.leadership.not_ready() is None
        if ready and not self._greeted:
            refused = [facts.seen.key for facts in self.feed.pods.items.values() if facts.refused]
            self.waker.wake(refused, "the extender started to lead")
        self._greeted = ready


def _terms(settings: ExtenderSettings) -> Terms:
    return Terms(
        defaults=PolicyDefaults(node=settings.node_policy, card=settings.card_policy),
        offer_at_most=settings.best_nodes if settings.scoring == "filter" else None,
        assume_seconds=settings.assume_seconds,
        reserve_seconds=settings.reserve_seconds,
        kept_decisions=settings.kept_decisions,
    )


def _elector(
    settings: ExtenderSettings, client: KubeClient, leadership: Leadership, timing: Timing
) -> LeaderElector | LeaseFollower | None:
    if not (settings.leader_elect or settings.follow_lease):
        return None
    terms = ElectionTerms(
        settings.namespace,
        settings.lease_name,
        settings.identity,
        settings.lease_seconds,
        settings.renew_deadline_seconds,
        settings.lease_retry_seconds,
    )
    kind = LeaseFollower if settings.follow_lease else LeaderElector
    return kind(client, terms, on_change=leadership.changed, timing=timing)
