"""The ledger under random interleavings: cycles, lost and doubled events, relists, restarts, changes of leader.

The machine plays a small cluster. ``truth`` is what the API server has. Two replicas follow it through a watch that may
lose, delay and repeat; only the leader decides and binds. After every step both ledgers must be consistent, and after a
relist a ledger must hold exactly what the truth says.
"""

from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from msgspec import structs

from gpuslice.devices.allocation import PodAllocation
from gpuslice.devices.requests import PodRequest, Role
from gpuslice.placement import decide
from gpuslice.placement.audit import Overcommitted
from gpuslice.placement.events import (
    Assume,
    Confirm,
    Event,
    Forget,
    NodeGone,
    NodeSeen,
    PodGone,
    PodSeen,
    Refused,
    Relist,
    Reserve,
    Tick,
)
from gpuslice.placement.fit import fit_blocks, fit_node
from gpuslice.placement.holding import Phase, uses_of
from gpuslice.placement.ledger import Ledger
from gpuslice.placement.policies.registry import NAMES, PolicyDefaults, resolve
from gpuslice.placement.preempt import Preemptor, plan_preemption
from gpuslice.placement.room import look_round
from gpuslice.placement.shape import shape_of
from gpuslice.placement.view import CardState, planning_view, view_of
from tests.placement.build import ask, card, key, node, request, roles_of

pytestmark = pytest.mark.timeout(400)  # Hypothesis looks for a smaller example for up to 300 s
POLICIES = [PolicyDefaults(name, name) for name in ("balanced", "binpack", "spread", "topology-aware")]
POLICIES_OF_ALL_KINDS = st.sampled_from([PolicyDefaults(name, name) for name in NAMES])
SHAPES = [
    request(ask(memory_mib=4000, core_percent=20)),
    request(ask(memory_mib=9000)),
    request(ask(cards=2, memory_mib=6000)),
    request(ask(memory_mib=0, memory_percent=100, core_percent=100, exclusive=True)),
    request(ask(memory_mib=8000, name="init", role=Role.INIT), ask(memory_mib=3000)),
    request(ask(memory_mib=1000, name="side", role=Role.SIDECAR), ask(memory_mib=2000, core_percent=30)),
]
PLAIN_SHAPES = st.sampled_from([shape for shape in SHAPES if all(asked.role is Role.APP for asked in shape.containers)])


def _without_plan(card: CardState) -> CardState:
    """Say of a card on which nothing is planned that nothing has been planned there: it makes no difference."""
    return replace(card, planned_mib=0) if not card.extra_slots else card


@dataclass
class Truth:
    """What the API server has."""

    nodes: dict[str, NodeSeen] = field(default_factory=dict)
    pods: dict[str, PodSeen] = field(default_factory=dict)
    requests: dict[str, PodRequest] = field(default_factory=dict)


@dataclass
class Replica:
    """One process: its ledger and the events that its watch has not delivered yet."""

    ledger: Ledger = field(default_factory=Ledger)
    queue: list[Event] = field(default_factory=list)


class LedgerMachine(RuleBasedStateMachine):
    pods = Bundle("pods")

    def __init__(self) -> None:
        super().__init__()
        self.truth = Truth()
        self.replicas = [Replica(), Replica()]
        self.leader = 0
        self.now = 0.0
        self.number = 0
        self.binding: dict[str, PodAllocation] = {}
        """Decided by the leader, not yet answered by the API server."""

    # -- helpers -----------------------------------------------------------------------------------------------------

    def publish(self, event: Event) -> None:
        for replica in self.replicas:
            replica.queue.append(event)

    def relist(self, replica: Replica) -> None:
        replica.queue.clear()
        nodes, pods = tuple(self.truth.nodes.values()), tuple(self.truth.pods.values())
        replica.ledger.apply(Relist(nodes, pods, self.now))
        bound = {uid: pod for uid, pod in self.truth.pods.items() if pod.allocation is not None and not pod.terminal}
        mine = {uid for uid, holding in replica.ledger.holdings.items() if holding.seen}
        assert mine == set(bound)
        for uid, pod in bound.items():
            assert pod.allocation is not None
            held = replica.ledger.holdings[uid]
            assert (held.node, held.allocation, held.phase) == (pod.node, pod.allocation, Phase.BOUND)
            assert held.uses == uses_of(pod.allocation, pod.roles, init_done=pod.init_done)

    def somebody_looks(self, ledger: Ledger, request: PodRequest, defaults: PolicyDefaults) -> None:
        """Plan a pod on every node and place it nowhere; on what is kept of them as on nodes never seen."""
        fleet, shape, policy = ledger.fleet, shape_of(request), resolve(request, defaults, ledger.outlook)
        for row in fleet.row_of.values():
            if fleet.uuids(row) and fleet.ready[row] and not fleet.unclear[row]:
                afresh = partial(view_of, fleet, row, shape)
                expected = fit_blocks(afresh(), shape, policy, afresh=afresh)
                assert fit_node(fleet, row, shape, policy) == expected

    @property
    def led(self) -> Ledger:
        return self.replicas[self.leader].ledger

    # -- the cluster -------------------------------------------------------------------------------------------------

    @initialize()
    def two_nodes(self) -> None:
        for name in ("n1", "n2"):
            seen = node(name, *(card(f"GPU-{name}-{n}", slots=3, equal_shares=n == 1) for n in range(2)))
            self.truth.nodes[name] = seen
            self.publish(seen)
        for replica in self.replicas:
            self.relist(replica)

    @rule(name=st.sampled_from(("n1", "n2", "n3")), cards=st.integers(1, 3), ready=st.booleans(), healthy=st.booleans())
    def node_changes(self, name: str, cards: int, ready: bool, healthy: bool) -> None:
        made = (card(f"GPU-{name}-{n}", slots=3, healthy=healthy or n > 0, equal_shares=n == 1) for n in range(cards))
        seen = node(name, *made, ready=ready)
        self.truth.nodes[name] = seen
        self.publish(seen)

    @rule(name=st.sampled_from(("n2", "n3")))
    def node_goes(self, name: str) -> None:
        if self.truth.nodes.pop(name, None) is not None:
            self.publish(NodeGone(name))

    @rule(target=pods, shape=st.sampled_from(SHAPES), priority=st.integers(0, 2))
    def pod_is_created(self, shape: PodRequest, priority: int) -> str:
        self.number += 1
        uid = f"pod{self.number}"
        self.truth.requests[uid] = shape
        pod = PodSeen(key(uid), priority=priority, created_at=f"{self.number:04d}", roles=roles_of(shape))
        self.truth.pods[uid] = pod
        self.publish(pod)
        return uid

    @rule(uid=pods, change=st.sampled_from(("init_done", "terminating", "terminal")))
    def pod_moves_on(self, uid: str, change: str) -> None:
        pod = self.truth.pods.get(uid)
        if pod is not None and (pod.node or change == "terminating"):
            changes: dict[str, Any] = {change: True}
            self.truth.pods[uid] = structs.replace(pod, **changes)
            self.publish(self.truth.pods[uid])

    @rule(uid=consumes(pods))
    def pod_is_deleted(self, uid: str) -> None:
        if self.truth.pods.pop(uid, None) is not None:
            self.publish(PodGone(uid))

    # -- scheduling --------------------------------------------------------------------------------------------------

    @rule(uid=pods, policy=st.sampled_from(POLICIES))
    def schedule(self, uid: str, policy: PolicyDefaults) -> None:
        pod = self.truth.pods.get(uid)
        if pod is None or pod.node or pod.terminal or uid in self.binding:
            return
        asked, asker = self.truth.requests[uid], decide.Asker(uid)
        decision = decide.filter_nodes(self.led, asked, sorted(self.led.fleet.row_of), policy, asker)
        if not decision.fits_anywhere:
            self.led.apply(Refused(pod.key, asked, pod.priority, pod.created_at))
            return
        placed = decide.place(self.led, asked, decision.best()[0], policy, asker)
        assert isinstance(placed, PodAllocation)
        try:
            self.led.apply(Assume(pod.key, placed, self.now, pod.roles, pod.priority))
        except Overcommitted:
            raise AssertionError("a decision on the present state cannot overcommit") from None
        self.binding[uid] = placed

    @rule(uid=pods)
    def preempt(self, uid: str) -> None:
        pod = self.truth.pods.get(uid)
        if pod is None or pod.node or pod.terminal or uid in self.binding or uid in self.led.holdings:
            return
        found = plan_preemption(
            self.led,
            Preemptor(pod.key, pod.priority),
            self.truth.requests[uid],
            sorted(self.led.fleet.row_of),
            defaults=POLICIES[0],
        )
        if found is not None:
            assert all(self.led.holdings[victim.uid].priority < pod.priority for victim in found.evict)
            self.led.apply(Reserve(pod.key, found.allocation, found.waits_for, self.now))

    @rule(success=st.booleans(), told=st.booleans())
    def binding_is_answered(self, success: bool, told: bool) -> None:
        """The API server takes the binding or not, and the leader hears of it or not."""
        if not self.binding:
            return
        uid, placed = self.binding.popitem()
        pod = self.truth.pods.get(uid)
        bound = success and pod is not None and not pod.node
        if bound and pod is not None:
            self.truth.pods[uid] = structs.replace(pod, node=placed.node, allocation=placed)
            self.publish(self.truth.pods[uid])
        if told:
            self.led.apply(Confirm(uid) if bound else Forget(uid))

    # -- the watch and the processes ---------------------------------------------------------------------------------

    @rule(which=st.integers(0, 1), count=st.integers(1, 5), asked=st.tuples(PLAIN_SHAPES, POLICIES_OF_ALL_KINDS))
    def watch_delivers(self, which: int, count: int, asked: tuple[PodRequest, PolicyDefaults]) -> None:
        replica = self.replicas[which]
        self.somebody_looks(replica.ledger, *asked)
        for event in replica.queue[:count]:
            replica.ledger.apply(event)
        del replica.queue[:count]

    @rule(which=st.integers(0, 1))
    def watch_repeats(self, which: int) -> None:
        replica = self.replicas[which]
        if replica.queue:
            replica.ledger.apply(replica.queue[0])

    @rule(which=st.integers(0, 1))
    def watch_loses_everything_and_lists_again(self, which: int) -> None:
        self.relist(self.replicas[which])

    @rule(which=st.integers(0, 1))
    def process_restarts(self, which: int) -> None:
        if which == self.leader:
            self.binding.clear()
        self.replicas[which] = Replica()
        self.relist(self.replicas[which])

    @rule()
    def leadership_moves(self) -> None:
        """A new leader lists before it answers; what the old one had in flight is lost with it."""
        self.leader = 1 - self.leader
        self.binding.clear()
        self.relist(self.replicas[self.leader])

    @rule(seconds=st.sampled_from((1.0, 31.0, 700.0)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for replica in self.replicas:
            replica.ledger.apply(Tick(self.now))
        for uid in [uid for uid in self.binding if uid not in self.led.holdings]:
            del self.binding[uid]

    @invariant()
    def books_are_consistent(self) -> None:
        for replica in self.replicas:
            replica.ledger.check_invariants()

    @invariant()
    def kept_views_are_as_new(self) -> None:
        for replica in self.replicas:
            fleet, shape = replica.ledger.fleet, shape_of(SHAPES[0])
            kept = fleet.views
            # Copies: a view that is brought up to date after every step never has much to catch up on.
            fleet.views = deepcopy(kept, {id(room): room for _, view in kept.values() for room in view.rooms})
            for row in kept:
                old, new = planning_view(fleet, row, shape), view_of(fleet, row, shape)
                for view in (old, new):
                    look_round(view)
                assert [_without_plan(card) for card in old.cards] == new.cards
                assert (old.facts, old.cpu_free, old.chosen) == (new.facts, new.cpu_free, [])
                # Cards in the same state have one room.
                assert (old.rooms, old.firsts) == (new.rooms, new.firsts)
            fleet.views = kept


LedgerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLedgerMachine = LedgerMachine.TestCase
