"""Answers kube-scheduler from the ledger. No I/O and no clock of its own: the daemon passes time in.

Every change of the ledger goes through :meth:`Engine.apply`; what the ledger asks for in return goes to ``act``.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from extender.answers import NodeNames, answer_filter, answer_prioritize
from extender.binding import BindingPlan
from extender.dossier import Dossier, Dossiers, open_dossier
from extender.facts import pod_facts
from extender.records import binding_annotations
from extender.wire import ExtenderArgs, ExtenderPreemptionArgs, ExtenderPreemptionResult, error_answer, filter_answer
from gpuslice.devices.families import Families
from gpuslice.devices.pods import Pod
from gpuslice.devices.requests import Problem, read_request
from gpuslice.placement import events
from gpuslice.placement.decide import Candidates, Decision, filter_nodes, place
from gpuslice.placement.events import Command, Event, PodKey
from gpuslice.placement.explain import KEPT, History, as_object, judge_cards
from gpuslice.placement.ledger import ASSUME_SECONDS, RESERVE_SECONDS, Ledger
from gpuslice.placement.policies.registry import PolicyDefaults
from gpuslice.placement.rejection import Rejection

KEPT_VERDICTS = 32
BAD_REQUEST = "the pod's request for devices is not valid"


@dataclass(frozen=True, slots=True)
class Terms:
    """Choices of the operator."""

    defaults: PolicyDefaults = field(default_factory=PolicyDefaults)
    offer_at_most: int | None = None
    """With ``--scoring filter``: offer only so many of the best nodes."""
    assume_seconds: float = ASSUME_SECONDS
    reserve_seconds: float = RESERVE_SECONDS
    kept_pods: int = 20_000
    kept_decisions: int = KEPT


@dataclass(frozen=True, slots=True)
class Refusal:
    """A pod that fits on none of the nodes offered."""

    dossier: Dossier
    decision: Decision


@dataclass(frozen=True, slots=True)
class Invalid:
    """A pod whose request cannot be read; the webhook would have denied it."""

    key: PodKey
    problems: tuple[Problem, ...]


Notice = Refusal | Invalid


class Engine:
    """The extender's decisions."""

    def __init__(
        self,
        families: Families,
        terms: Terms,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        act: Callable[[Command], None],
        notice: Callable[[Notice], None],
    ) -> None:
        self._families = families
        self._terms = terms
        self._clock = clock
        self._wall_clock = wall_clock
        self._act = act
        self._notice = notice
        self.ledger = Ledger(assume_seconds=terms.assume_seconds, reserve_seconds=terms.reserve_seconds)
        self._names = NodeNames(self.ledger)
        self._dossiers = Dossiers(terms.kept_pods)
        self._verdicts: OrderedDict[str, tuple[Decision, int]] = OrderedDict()
        """What /filter found, until /prioritize asks for it a moment later. A verdict on 5,000 nodes weighs 80 KiB."""
        self.history = History(terms.kept_decisions)
        self._doubts: dict[str, list[str]] = {}
        """Pod UID to the second keys under which shares of unanswered bindings are kept."""

    # -- events ------------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Take an event and have its consequences carried out."""
        for uid in self._resolved_by(event):
            for second_key in self._doubts.pop(uid, ()):
                self._change(events.Forget(second_key))
        self._change(event)

    def _change(self, event: Event) -> None:
        for command in self.ledger.apply(event):
            self._act(command)

    def _resolved_by(self, event: Event) -> list[str]:
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

    # -- filter and prioritize ---------------------------------------------------------------------------------------

    def filter(self, args: ExtenderArgs) -> bytes:
        """Answer /filter."""
        if args.pod is None:
            return error_answer("the request has no Pod; send ExtenderArgs of kube-scheduler v1")
        candidates = self._names.candidates(bytes(args.node_names))
        if candidates is None:
            return error_answer("the request has neither NodeNames nor Nodes; set nodeCacheCapable or send both")
        dossier = self._dossier(args.pod)
        if isinstance(dossier, tuple):
            self._notice(
                Invalid(PodKey(args.pod.metadata.uid, args.pod.metadata.namespace, args.pod.metadata.name), dossier)
            )
            refused = dict.fromkeys(candidates.names.tolist(), BAD_REQUEST)
            return filter_answer(b"[]", msgspec.json.encode(refused)[1:-1])
        if dossier.request.is_empty:
            return filter_answer(bytes(args.node_names), b"")
        decision = self._judge(dossier, candidates)
        return answer_filter(self._names, decision, at_most=self._terms.offer_at_most)

    def _judge(self, dossier: Dossier, candidates: Candidates) -> Decision:
        decision = filter_nodes(self.ledger, dossier.request, candidates, self._terms.defaults, dossier.asker)
        self._dossiers.put(dossier)
        self._verdicts[dossier.key.uid] = (decision, self.ledger.fleet.layout)
        if len(self._verdicts) > KEPT_VERDICTS:
            self._verdicts.popitem(last=False)
        self.history.filtered(dossier.key, self._wall_clock(), decision)
        if not decision.fits_anywhere:
            self._refuse(dossier, decision)
        return decision

    def _refuse(self, dossier: Dossier, decision: Decision) -> None:
        refused = events.Refused(
            key=dossier.key,
            request=dossier.request,
            priority=dossier.priority,
            created_at=dossier.created_at,
            cpu_milli=dossier.asker.cpu_milli,
        )
        self._change(refused)
        self._notice(Refusal(dossier, decision))

    def prioritize(self, args: ExtenderArgs) -> bytes:
        """Answer /prioritize from what /filter found; judge anew if it was not asked here."""
        if args.pod is None:
            return b"[]"
        asked = bytes(args.node_names)
        known = self._verdicts.pop(args.pod.metadata.uid, None)
        if known is None:
            candidates = self._names.candidates(asked)
            dossier = self._dossier(args.pod)
            if candidates is None or isinstance(dossier, tuple) or dossier.request.is_empty:
                return b"[]"
            known = self._judge(dossier, candidates), self.ledger.fleet.layout
        return answer_prioritize(self._names, *known, asked)

    def _dossier(self, pod: Pod) -> Dossier | tuple[Problem, ...]:
        request = read_request(pod, self._families)
        return request if isinstance(request, tuple) else open_dossier(pod, request)

    # -- bind --------------------------------------------------------------------------------------------------------

    def knows(self, uid: str) -> bool:
        """Whether the pod was filtered here."""
        return self._dossiers.get(uid) is not None

    def learn(self, pod: Pod) -> None:
        """Read the request of a pod that was not filtered here; a bad one stays unknown."""
        dossier = self._dossier(pod)
        if not isinstance(dossier, tuple):
            self._dossiers.put(dossier)

    def plan(self, uid: str, node: str) -> BindingPlan | str:
        """Take a share on the node, or say in words why there is none."""
        dossier = self._dossiers.get(uid)
        if dossier is None:
            return BAD_REQUEST
        held = self.ledger.holdings.get(uid)
        if held is not None and held.node != node and uid in self._doubts:
            self._keep_in_doubt(uid)
        found = place(self.ledger, dossier.request, node, self._terms.defaults, dossier.asker)
        if isinstance(found, Rejection):
            return f"node {node}: {found.reason}"
        if held is None:
            cards = judge_cards(self.ledger, dossier.request, node, self._terms.defaults, dossier.asker)
            self.history.placed(dossier.key, found, cards)
        self._change(
            events.Assume(
                key=dossier.key,
                allocation=found,
                now=self._clock(),
                roles=dossier.roles,
                priority=dossier.priority,
                cpu_milli=dossier.asker.cpu_milli,
                group=dossier.asker.group,
                created_at=dossier.created_at,
            )
        )
        annotations = binding_annotations(
            found, dossier.containers, self._families, wall_seconds=int(self._wall_clock())
        )
        return BindingPlan(found, annotations)

    def confirm(self, uid: str) -> None:
        """The binding is written."""
        self._change(events.Confirm(uid))
        self._dossiers.drop(uid)

    def forget(self, uid: str) -> None:
        """The binding is certainly not written and never will be."""
        self._change(events.Forget(uid))

    def doubt(self, uid: str) -> None:
        """The binding may still be written: its share stays taken until the deadline, wherever the pod goes next."""
        self._doubts.setdefault(uid, [])

    def _keep_in_doubt(self, uid: str) -> None:
        """Move the share of an unanswered binding to a second key, as the pod is about to try another node."""
        held = self.ledger.holdings[uid]
        second_keys = self._doubts[uid]
        second = f"{uid}?{len(second_keys) + 1}"
        second_keys.append(second)
        self._change(events.Forget(uid))
        self._change(
            events.Assume(
                key=PodKey(second, held.key.namespace, held.key.name),
                allocation=held.allocation,
                now=self._clock(),
                roles=held.roles,
            )
        )

    def preempt(self, args: ExtenderPreemptionArgs) -> bytes:
        """Answer /preempt: in-tree resources are short, and the victims are kube-scheduler's to choose."""
        return msgspec.json.encode(ExtenderPreemptionResult(args.victims()))

    def explain(self, namespace: str, name: str) -> bytes | None:
        """Give the last decision on a pod as JSON, or None."""
        record = self.history.get(namespace, name)
        return None if record is None else msgspec.json.encode(as_object(record))

    def observe(self, pod: Pod) -> None:
        """This is what the API server has: take it as the watch would bring it."""
        self.apply(pod_facts(pod).seen)

    def tick(self) -> None:
        """Let time pass in the ledger."""
        self._change(events.Tick(self._clock()))
