"""From verdict to binding: takes shares in the ledger, and knows which bindings are in doubt.

A binding that was not answered may still be carried out. Its share stays taken until the ledger's deadline, also when
kube-scheduler tries the pod on another node meanwhile: then the share moves to a second key of the same pod, and is
dropped once the pod itself has been seen.
"""

from collections.abc import Callable

import msgspec
import structlog

from extender.dossier import Dossier
from extender.engine import BAD_REQUEST, Engine, Placement
from extender.facts import PodFacts, pod_facts
from extender.gate import Gate
from extender.nomination import nominate
from extender.quotas import QUOTA, Claim, of_allocation
from extender.wire import ExtenderPreemptionArgs, ExtenderPreemptionResult
from gpuslice.devices.allocation import PodAllocation
from gpuslice.devices.annotations import ALLOCATION, encode_allocation
from gpuslice.devices.families.render import ALLOCATING, SUCCESS, pod_annotations
from gpuslice.devices.inventory import NodeCards
from gpuslice.devices.pods import Pod
from gpuslice.devices.value import Value
from gpuslice.placement import events
from gpuslice.placement.audit import Overcommitted
from gpuslice.placement.decide import place
from gpuslice.placement.events import PodKey
from gpuslice.placement.explain import see_cards
from gpuslice.placement.holding import Holding, Phase
from gpuslice.placement.preempt import Budgets
from gpuslice.placement.rejection import Rejection

log = structlog.get_logger(__name__)

HOLD_SECONDS = 3.0


class BindingPlan(Value, frozen=True):
    """A share taken in the ledger, ready to be written."""

    allocation: PodAllocation
    annotations: dict[str, str]
    identity_known: bool = True
    """The node's kubelet can tell its plugin which pod it admits."""


class Promises:
    """Every way in which a share is taken, kept or given back."""

    def __init__(self, engine: Engine, gate: Gate, *, ours: Callable[[str], bool]) -> None:
        """``ours`` tells whether a node's plugin is our own: others complete the record of a binding themselves."""
        self.engine = engine
        self._ours = ours
        self._ledger = engine.ledger
        self._gate = gate
        self._wanted: tuple[Dossier, str] | None = None
        self._holds: dict[str, float] = {}
        """Pods between filter and bind, and until when their share is held."""
        self._doubts: dict[str, list[str]] = {}
        """Pod UID to the second keys under which shares of unanswered bindings are kept."""

    # -- what the watches bring --------------------------------------------------------------------------------------

    def observe(self, event: events.Event) -> None:
        """Take what the API server says; first settle the doubts that it resolves."""
        self.hold_now()
        if isinstance(event, events.PodGone):
            self._holds.pop(event.uid, None)
            self._gate.settled(event.uid)
        elif isinstance(event, events.PodSeen) and event.node:
            self._holds.pop(event.key.uid, None)
        for uid in self._resolved_by(event):
            for second_key in self._doubts.pop(uid, ()):
                self.engine.apply(events.Forget(second_key))
        self.engine.apply(event)

    def observe_pod(self, pod: Pod) -> None:
        """Take a pod that was read out of turn."""
        self.note_admission(facts := pod_facts(pod, self.engine.families))
        self.observe(facts.seen)

    def note_admission(self, facts: PodFacts) -> None:
        """Keep the gate up to date: a bound pod is under way to its kubelet until that has taken it."""
        uid, allocation = facts.seen.key.uid, facts.seen.allocation
        if allocation is None or facts.admitted:
            self._gate.settled(uid)
        else:
            self._gate.release(uid, allocation)

    def _resolved_by(self, event: events.Event) -> list[str]:
        """UIDs in doubt of which the event tells what became."""
        if not self._doubts:
            return []
        match event:
            case events.PodSeen(key=key, node=node) if node and key.uid in self._doubts:
                return [key.uid]
            case events.PodGone(uid=uid) if uid in self._doubts:
                return [uid]
            case events.Relist(pods=pods):
                listed = {pod.key.uid: pod.node for pod in pods}
                return [uid for uid in self._doubts if listed.get(uid, "gone")]
            case _:
                return []

    # -- between filter and bind ---------------------------------------------------------------------------------------

    def hold_soon(self, dossier: Dossier, node: str) -> None:
        """Hold a share before anything else is decided, but not before the answer at hand has been written."""
        self.hold_now()
        self._wanted = (dossier, node)

    def hold_now(self) -> None:
        """Carry out what :meth:`hold_soon` was asked for."""
        if self._wanted is not None:
            (dossier, node), self._wanted = self._wanted, None
            self.hold(dossier, node)

    def hold(self, dossier: Dossier, node: str) -> None:
        """Take the share that the binding will most likely want, so that the next pod is not offered it as well.

        kube-scheduler judges the next pod while the binding of this one is on its way. A binding to another node moves
        the share, a new verdict replaces it, and without a binding it is given back after :data:`HOLD_SECONDS`.
        """
        uid = dossier.key.uid
        if uid in self._ledger.holdings or uid in self._ledger.reservations:
            return
        if isinstance(self._take(dossier, node), PodAllocation):
            self._holds[uid] = self.engine.surroundings.clock() + HOLD_SECONDS

    def release(self, uid: str) -> None:
        """Give back what is held for a pod, if no binding has claimed it."""
        if self._holds.pop(uid, None) is not None:
            self.engine.apply(events.Forget(uid))

    def reconsider(self, uid: str) -> None:
        """Give back what is held for a pod that is judged again now, and will most likely take it again."""
        self.hold_now()
        if self._holds.pop(uid, None) is not None:
            self.engine.apply_quietly(events.Forget(uid))

    def tick(self) -> None:
        """Give back what was held for too long."""
        now = self.engine.surroundings.clock()
        for uid in [uid for uid, until in self._holds.items() if until <= now]:
            self.release(uid)

    def is_held(self, uid: str) -> bool:
        """Whether the pod only holds a share between filter and bind; it is pending, and must not be evicted."""
        return uid in self._holds

    # -- bind --------------------------------------------------------------------------------------------------------

    def bound_to(self, uid: str) -> str:
        """Node to which the pod is certainly bound; empty otherwise."""
        held = self._ledger.holdings.get(uid)
        return held.node if held is not None and held.phase is Phase.BOUND else ""

    def knows(self, uid: str) -> bool:
        """Whether the pod was filtered here."""
        return self.engine.dossiers.get(uid) is not None

    def learn(self, pod: Pod) -> None:
        """Read the request of a pod that was not filtered here; a bad one stays unknown."""
        dossier = self.engine.dossier(pod)
        if not isinstance(dossier, tuple):
            self.engine.dossiers.put(dossier)

    def plan(self, uid: str, node: str) -> BindingPlan | str:
        """Take a share on the node, or say in words why there is none."""
        self.hold_now()
        engine, dossier = self.engine, self.engine.dossiers.get(uid)
        if dossier is None:
            return BAD_REQUEST
        self._holds.pop(uid, None)
        held = self._ledger.holdings.get(uid)
        if held is not None and held.node != node:
            if uid in self._doubts:
                self._keep_in_doubt(uid)
            else:
                engine.apply(events.Forget(uid))
        found = self._take(dossier, node)
        return found if isinstance(found, str) else self._written(dossier, found)

    def _take(self, dossier: Dossier, node: str) -> PodAllocation | str:
        """Decide on exact slices and take them in the ledger."""
        engine = self.engine
        held = self._ledger.holdings.get(dossier.key.uid)
        found = place(self._ledger, dossier.request, node, engine.terms.defaults, dossier.asker)
        if isinstance(found, Rejection):
            return f"node {node}: {found.reason}"
        if held is not None and found is held.allocation and self._is_fresh(held):
            return found
        if engine.quotas.apply_to(dossier.key.namespace):
            own = None if held is None else of_allocation(held.allocation, held.roles)
            wanted = Claim(of_allocation(found, dossier.roles), dossier.traits)
            if engine.quotas.excess(dossier.key.namespace, wanted, own):
                return QUOTA
        if held is None:
            cards = see_cards(self._ledger, dossier.request, node, engine.terms.defaults, dossier.asker)
            engine.history.placed(dossier.key, found, cards)
        try:
            engine.apply(
                events.Assume(
                    key=dossier.key,
                    allocation=found,
                    now=engine.surroundings.clock(),
                    roles=dossier.roles,
                    priority=dossier.priority,
                    cpu_milli=dossier.asker.cpu_milli,
                    group=dossier.asker.group,
                    models=dossier.request.selection.use_types,
                    traits=dossier.traits,
                    created_at=dossier.created_at,
                )
            )
        except Overcommitted as error:
            return f"node {node}: {error}"
        return found

    def _is_fresh(self, held: Holding) -> bool:
        """Whether a share was taken a moment ago, so that its deadline need not be moved."""
        left = None if held.expires_at is None else held.expires_at - self.engine.surroundings.clock()
        return left is not None and left > 0.8 * self.engine.terms.assume_seconds

    def _written(self, dossier: Dossier, found: PodAllocation) -> BindingPlan:
        book = self._ledger.book(found.node)
        cards = NodeCards(found.node, ()) if book is None or book.cards is None else book.cards
        annotations = pod_annotations(
            dossier.pod,
            found,
            cards,
            self.engine.families,
            now_nanoseconds=int(self.engine.surroundings.wall_clock() * 1e9),
            phase=SUCCESS if self._ours(found.node) else ALLOCATING,
        )
        annotations[ALLOCATION] = encode_allocation(found)
        return BindingPlan(found, annotations, cards.identity_known)

    def confirm(self, uid: str) -> None:
        """The binding is written."""
        self.engine.apply(events.Confirm(uid))
        held = self._ledger.holdings.get(uid)
        if held is not None:
            self.engine.surroundings.notice(Placement(held.key, held.allocation))
        self.engine.dossiers.drop(uid)

    def forget(self, uid: str) -> None:
        """The binding is certainly not written and never will be."""
        self._gate.settled(uid)
        self.engine.apply(events.Forget(uid))

    def doubt(self, uid: str) -> None:
        """The binding may still be written: its share stays taken until the deadline, wherever the pod goes next."""
        self._doubts.setdefault(uid, [])

    def expired(self, key: PodKey) -> None:
        """The ledger gave an assumed share back; nothing is in doubt any longer."""
        self._gate.settled(key.uid)
        self._doubts.pop(key.uid, None)
        self._holds.pop(key.uid, None)

    def _keep_in_doubt(self, uid: str) -> None:
        """Move the share of an unanswered binding to a second key, as the pod is about to try another node."""
        held = self._ledger.holdings[uid]
        second_keys = self._doubts[uid]
        second = f"{uid}?{len(second_keys) + 1}"
        second_keys.append(second)
        key = PodKey(second, held.key.namespace, held.key.name)
        self.engine.apply(events.Forget(uid))
        now = self.engine.surroundings.clock()
        try:
            self.engine.apply(
                events.Assume(key=key, allocation=held.allocation, now=now, roles=held.roles, traits=held.traits)
            )
        except Overcommitted as error:
            # The node or card has gone, or facts have filled it. That must not keep the pod from another node.
            log.warning("share_in_doubt_not_kept", pod=str(key), node=held.node, error=str(error))

    # -- preempt -----------------------------------------------------------------------------------------------------

    def preempt(self, args: ExtenderPreemptionArgs, budgets: Budgets | None) -> bytes:
        """Answer /preempt and reserve the share on the node answered."""
        offered = args.victims()
        dossier = None if args.pod is None else self.engine.dossier(args.pod)
        if dossier is None or isinstance(dossier, tuple) or dossier.request.is_empty:
            return msgspec.json.encode(ExtenderPreemptionResult(offered))
        self.engine.dossiers.put(dossier)
        nomination = nominate(self._ledger, dossier, offered, defaults=self.engine.terms.defaults, budgets=budgets)
        if nomination is None:
            return msgspec.json.encode(ExtenderPreemptionResult({}))
        self.engine.apply(
            events.Reserve(
                key=dossier.key,
                allocation=nomination.allocation,
                victims=nomination.waits_for,
                now=self.engine.surroundings.clock(),
                roles=dossier.roles,
                priority=dossier.priority,
            )
        )
        return msgspec.json.encode(ExtenderPreemptionResult({nomination.node: nomination.victims}))
