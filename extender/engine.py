"""Answers kube-scheduler from the ledger. No I/O and no clock of its own: the daemon passes time in.

Every change of the ledger goes through :meth:`Engine.apply`; what the ledger asks for in return goes to ``act``, and
what people or other parts should hear of a refusal goes to ``notice``.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from extender.answers import NodeNames, answer_filter, answer_prioritize
from extender.dossier import Dossier, Dossiers, open_dossier
from extender.facts import pod_key
from extender.quotas import QUOTA, Claim, Quotas, most_of_request, of_allocation
from extender.request_reader import RequestReader
from extender.simulation import Simulation
from extender.wire import ExtenderArgs, error_answer, filter_answer
from gpuslice.devices.allocation import PodAllocation
from gpuslice.devices.demands import Problem
from gpuslice.devices.families import Families
from gpuslice.devices.pods import Pod
from gpuslice.devices.value import Value
from gpuslice.placement import events
from gpuslice.placement.decide import Candidates, Decision, filter_nodes
from gpuslice.placement.events import Command, Event, PodKey
from gpuslice.placement.explain import KEPT, History, as_object, closest, see_cards, summary
from gpuslice.placement.ledger import ASSUME_SECONDS, RESERVE_SECONDS, Ledger
from gpuslice.placement.policies.registry import PolicyDefaults
from gpuslice.placement.sentences import why_here, why_not

KEPT_VERDICTS = 32
MOST_MISSES = 3
BAD_REQUEST = "the pod's request for devices is not valid"
RESERVED_ELSEWHERE = "a share is reserved for the pod on another node"
NEITHER = "the request has neither NodeNames nor Nodes; set nodeCacheCapable, or send the nodes"


@dataclass(frozen=True, slots=True)
class Terms:
    """Choices of the operator."""

    defaults: PolicyDefaults = field(default_factory=PolicyDefaults)
    offer_at_most: int | None = None
    """With ``--scoring filter``: offer only so many of the best nodes."""
    assume_seconds: float = ASSUME_SECONDS
    reserve_seconds: float = RESERVE_SECONDS
    kept_pods: int = 5_000
    kept_decisions: int = KEPT


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Time, and who hears of what."""

    clock: Callable[[], float]
    """Monotonic seconds."""
    wall_clock: Callable[[], float]
    """Seconds since 1970."""
    act: Callable[[Command], None]
    """Carries out what the ledger asks for."""
    notice: Callable[["Notice"], None]
    """Hears of verdicts."""
    release: Callable[[str], None] = lambda _: None
    """Gives back what is held for a pod (by UID) that is about to be judged again."""


class Refusal(Value, frozen=True):
    """A pod that fits on none of the nodes offered."""

    dossier: Dossier
    decision: Decision


class Invalid(Value, frozen=True):
    """A pod whose request cannot be read; the webhook would have denied it."""

    key: PodKey
    problems: tuple[Problem, ...]


class OverQuota(Value, frozen=True):
    """A pod that its namespace's quota does not allow; ``figures`` says which and by how much."""

    dossier: Dossier
    figures: str


class Acceptance(Value, frozen=True):
    """A pod that fits; a binding will follow in a moment, most likely to the best node."""

    dossier: Dossier
    best: str
    """Empty when several equal nodes are offered without scores: kube-scheduler takes any of them."""


class Placement(Value, frozen=True):
    """A pod that is bound, by a binding of ours."""

    key: PodKey
    allocation: PodAllocation


Notice = Refusal | Invalid | OverQuota | Acceptance | Placement


class Engine:
    """The verdicts."""

    def __init__(self, families: Families, terms: Terms, surroundings: Surroundings) -> None:
        self.families = families
        self.terms = terms
        self.surroundings = surroundings
        self.ledger = Ledger(assume_seconds=terms.assume_seconds, reserve_seconds=terms.reserve_seconds)
        self.quotas = Quotas(self.ledger)
        self.history = History(terms.kept_decisions)
        self._misses: dict[str, int] = {}
        """How often in a row the node reserved for a pod was not among those offered."""
        self.dossiers = Dossiers(terms.kept_pods)
        self._reader = RequestReader(families)
        self._names = NodeNames(self.ledger)
        self._simulation = Simulation(self.ledger, families, terms.defaults)
        self._verdicts: OrderedDict[str, tuple[Decision, int]] = OrderedDict()
        """What /filter found, until /prioritize asks for it a moment later. A verdict on 5,000 nodes weighs 80 KiB."""
        self.tick()

    def apply(self, event: Event) -> None:
        """Change the ledger and have the consequences carried out."""
        for command in self.ledger.apply(event):
            self.surroundings.act(command)

    def apply_quietly(self, event: Event) -> None:
        """Change the ledger without waking anybody.

        For a share that is given back and most likely taken again at once. Whoever should have been woken all the same
        is named again by the ledger, which counts on those it names to come within seconds.
        """
        for command in self.ledger.apply(event):
            if not isinstance(command, events.Wake):
                self.surroundings.act(command)

    def tick(self) -> None:
        """Let time pass in the ledger."""
        self.apply(events.Tick(self.surroundings.clock()))

    # -- the verbs ---------------------------------------------------------------------------------------------------

    def filter(self, args: ExtenderArgs) -> bytes:
        """Answer /filter."""
        if args.pod is None:
            return error_answer("the request has no Pod; send ExtenderArgs of kube-scheduler v1")
        dossier = self.dossier(args.pod)
        asked = bytes(args.node_names)
        candidates = self._names.candidates(asked)
        if candidates is None:
            return self._filter_objects(args, dossier)
        if isinstance(dossier, tuple):
            self.surroundings.notice(Invalid(pod_key(args.pod), dossier))
            return _refuse_all(candidates, BAD_REQUEST)
        if dossier.request.is_empty:
            return filter_answer(asked, b"")
        self.dossiers.put(dossier)
        return self._filter_names(dossier, candidates, asked)

    def _filter_names(self, dossier: Dossier, candidates: Candidates, asked: bytes) -> bytes:
        self.surroundings.release(dossier.key.uid)
        excess = self._excess(dossier) if self.quotas.apply_to(dossier.key.namespace) else ""
        if excess:
            self.surroundings.notice(OverQuota(dossier, excess))
            return _refuse_all(candidates, QUOTA)
        reserved = self.ledger.reservations.get(dossier.key.uid)
        if reserved is not None:
            return self._filter_reserved(dossier, candidates, reserved.allocation.node, asked)
        return self._filter_all(dossier, candidates, asked)

    def _filter_all(self, dossier: Dossier, candidates: Candidates, asked: bytes) -> bytes:
        decision = self._judge(dossier, candidates)
        return answer_filter(self._names, decision, asked, at_most=self.terms.offer_at_most)

    def _excess(self, dossier: Dossier) -> str:
        held = self.ledger.holdings.get(dossier.key.uid)
        own = None if held is None else of_allocation(held.allocation, held.roles)
        return self.quotas.excess(dossier.key.namespace, Claim(most_of_request(dossier.request), dossier.traits), own)

    def _filter_reserved(self, dossier: Dossier, candidates: Candidates, node: str, asked: bytes) -> bytes:
        """Others may be ending for this pod: it goes where its share is reserved, and nowhere else meanwhile."""
        names = candidates.names.tolist()
        refused = dict.fromkeys(names, RESERVED_ELSEWHERE)
        offered: list[str] = []
        if node not in refused and self._missed(dossier.key.uid):
            self.apply(events.Unreserve(dossier.key.uid))
            return self._filter_all(dossier, candidates, asked)
        if refused.pop(node, None) is not None:
            self._misses.pop(dossier.key.uid, None)
            decision = self._judge(dossier, Candidates(self.ledger, [node]))
            offered = decision.feasible
            refused |= decision.refused()
        return filter_answer(msgspec.json.encode(offered), msgspec.json.encode(refused)[1:-1])

    def _missed(self, uid: str) -> bool:
        """Count a call in which the reserved node was not offered; True when others seem to refuse it for good."""
        self._misses[uid] = self._misses.get(uid, 0) + 1
        if self._misses[uid] < MOST_MISSES:
            return False
        del self._misses[uid]
        return True

    def _filter_objects(self, args: ExtenderArgs, dossier: Dossier | tuple[Problem, ...]) -> bytes:
        if args.nodes is None:
            return error_answer(NEITHER)
        if isinstance(dossier, tuple):
            return self._simulation.nothing(args.nodes, BAD_REQUEST)
        if dossier.request.is_empty:
            return self._simulation.everything(args.nodes)
        return self._simulation.filter(args.nodes, dossier.request, dossier.asker)

    def _judge(self, dossier: Dossier, candidates: Candidates) -> Decision:
        decision = filter_nodes(self.ledger, dossier.request, candidates, self.terms.defaults, dossier.asker)
        self._verdicts[dossier.key.uid] = (decision, self.ledger.fleet.layout)
        if len(self._verdicts) > KEPT_VERDICTS:
            self._verdicts.popitem(last=False)
        self.history.filtered(dossier.key, self.surroundings.wall_clock(), decision)
        best = decision.best_position()
        if best < 0:
            self.apply(_refused(dossier))
            self.surroundings.notice(Refusal(dossier, decision))
        else:
            alone = self.terms.offer_at_most is None or len(decision.top) == 1
            self.surroundings.notice(Acceptance(dossier, str(decision.names[best]) if alone else ""))
        return decision

    def prioritize(self, args: ExtenderArgs) -> bytes:
        """Answer /prioritize from what /filter found; judge anew if it was not asked here."""
        if args.pod is None:
            return b"[]"
        asked = bytes(args.node_names)
        known = self._verdicts.pop(args.pod.metadata.uid, None)
        if known is None:
            dossier = self.dossier(args.pod)
            candidates = self._names.candidates(asked)
            if candidates is None or isinstance(dossier, tuple) or dossier.request.is_empty:
                return b"[]"
            known = self._judge(dossier, candidates), self.ledger.fleet.layout
        return answer_prioritize(self._names, *known, asked)

    def look_ahead(self) -> None:
        """Judge now what the next pods that are like the last ones would have to wait for."""
        self.ledger.scores.look_ahead(self.ledger.fleet)

    def explain(self, namespace: str, name: str) -> bytes | None:
        """Give the last decision on a pod as JSON, or None."""
        record = self.history.get(namespace, name)
        return None if record is None else msgspec.json.encode(as_object(record))

    # -- pods --------------------------------------------------------------------------------------------------------

    def dossier(self, pod: Pod) -> Dossier | tuple[Problem, ...]:
        """Read what a pod asks for, or what is wrong with it."""
        request = self._reader.read(pod)
        return request if isinstance(request, tuple) else open_dossier(pod, request)

    def describe(self, dossier: Dossier, decision: Decision) -> str:
        """Say why a pod fits nowhere, with the figures of the node that came closest; keep its cards for /decisions."""
        text = summary(decision)
        record = self.history.get(dossier.key.namespace, dossier.key.name)
        for node in closest(decision):
            cards = see_cards(self.ledger, dossier.request, node, self.terms.defaults, dossier.asker)
            if record is not None:
                record.cards[node] = cards
        for nearest in closest(decision, 1):
            sentence = why_not(self.ledger, dossier.request, nearest, self.terms.defaults, dossier.asker)
            text += f". Closest: {sentence}" if sentence else ""
        return text

    def describe_placement(self, placement: Placement) -> str:
        """Say where a pod was placed and among how many nodes."""
        record = self.history.get(placement.key.namespace, placement.key.name)
        if record is None or record.key.uid != placement.key.uid:
            record = None
        return why_here(record, placement.allocation)

    def drop(self, uid: str) -> None:
        """Forget what is remembered of a pod that is gone."""
        self.dossiers.drop(uid)
        self._misses.pop(uid, None)
        self._verdicts.pop(uid, None)

    def fits_elsewhere(self, dossier: Dossier, decision: Decision) -> bool:
        """Whether a pod refused by all nodes offered would fit on one that kube-scheduler did not offer."""
        if len(decision.codes) >= len(self.ledger.fleet.row_of):
            return False
        everywhere = self._everywhere()
        return filter_nodes(self.ledger, dossier.request, everywhere, self.terms.defaults, dossier.asker).fits_anywhere

    def _everywhere(self) -> Candidates:
        return Candidates(self.ledger, self.ledger.fleet.row_of)


def _refused(dossier: Dossier) -> events.Refused:
    return events.Refused(
        key=dossier.key,
        request=dossier.request,
        priority=dossier.priority,
        created_at=dossier.created_at,
        cpu_milli=dossier.asker.cpu_milli,
    )


def _refuse_all(candidates: Candidates, text: str) -> bytes:
    return filter_answer(b"[]", msgspec.json.encode(dict.fromkeys(candidates.names.tolist(), text))[1:-1])
