"""Between filter and bind a pod holds the share it will most likely want."""

from typing import Any

import msgspec
import pytest

from extender.dossier import Dossier, open_dossier
from extender.engine import Acceptance, Engine, Notice, Refusal, Surroundings, Terms
from extender.gate import Gate
from extender.promises import HOLD_SECONDS, Promises
from extender.wire import args_decoder
from gpuslice.devices.families import load_builtin
from gpuslice.devices.pods import Pod
from gpuslice.placement import events
from gpuslice.placement.policies.registry import PolicyDefaults
from tests.extender.objects import cards_of, container, pod

CARD = 16_384


class Desk:
    """Engine and promises with a clock moved by hand, and what they said."""

    def __init__(self, *nodes: str) -> None:
        self.now = 100.0
        self.commands: list[events.Command] = []
        surroundings = Surroundings(
            clock=lambda: self.now,
            wall_clock=lambda: 0.0,
            act=self.commands.append,
            notice=self._notice,
            release=self._release,
        )
        terms = Terms(defaults=PolicyDefaults(node="binpack", card="binpack"))
        self.engine = Engine(load_builtin(), terms, surroundings)
        self.promises = Promises(self.engine, Gate(), ours=lambda _: True)
        self.names = list(nodes)
        for name in nodes:
            self.engine.apply(events.NodeSeen(cards_of(name, 1)))

    def _release(self, uid: str) -> None:
        self.promises.reconsider(uid)

    def _notice(self, notice: Notice) -> None:
        match notice:
            case Acceptance(dossier, best):
                self.promises.hold(dossier, best)
            case Refusal():
                return

    def filter(self, name: str, memory_mib: int = CARD // 2) -> list[str]:
        made = pod(name, container(memory_mib=memory_mib))
        made["metadata"]["uid"] = name
        body = msgspec.json.encode({"Pod": made, "NodeNames": self.names})
        answer: dict[str, Any] = msgspec.json.decode(self.engine.filter(args_decoder.decode(body)))
        self.engine.ledger.check_invariants()
        return list(answer["NodeNames"])


def test_of_three_pods_asked_for_back_to_back_the_third_is_refused() -> None:
    desk = Desk("n1")
    assert [desk.filter(name) for name in ("a", "b", "c")] == [["n1"], ["n1"], []]


def test_a_pod_asked_for_again_does_not_stand_in_its_own_way() -> None:
    desk = Desk("n1")
    assert [desk.filter("a", CARD) for _ in range(3)] == [["n1"]] * 3


def test_the_binding_to_another_node_moves_the_share() -> None:
    desk = Desk("n1", "n2")
    assert desk.filter("a", CARD) == ["n1", "n2"]
    assert not isinstance(desk.promises.plan("a", "n2"), str)
    assert desk.filter("b", CARD) == ["n1"]


def test_without_a_binding_the_share_is_given_back_and_those_who_wait_for_it_are_woken() -> None:
    desk = Desk("n1")
    desk.filter("a", CARD)
    assert desk.filter("b", CARD) == []
    desk.now += HOLD_SECONDS
    desk.promises.tick()
    woken = [key.uid for command in desk.commands if isinstance(command, events.Wake) for key in command.pods]
    assert (woken, desk.filter("b", CARD)) == (["b"], ["n1"])


def test_a_binding_under_way_is_not_given_back() -> None:
    desk = Desk("n1")
    desk.filter("a", CARD)
    desk.promises.plan("a", "n1")
    desk.now += HOLD_SECONDS
    desk.promises.tick()
    assert desk.filter("b", CARD) == []


def test_a_pod_deleted_before_its_binding_holds_nothing() -> None:
    desk = Desk("n1")
    desk.filter("a", CARD)
    desk.promises.observe(events.PodGone("a"))
    assert (desk.filter("b", CARD), desk.promises.is_held("a")) == (["n1"], False)


@pytest.mark.parametrize("seen_first", [True, False], ids=["watch before our own answer", "answer before watch"])
def test_the_watch_may_tell_of_a_binding_before_our_own_answer_does(seen_first: bool) -> None:
    desk = Desk("n1")
    desk.filter("a", CARD)
    plan = desk.promises.plan("a", "n1")
    assert not isinstance(plan, str)
    seen = events.PodSeen(events.PodKey("a", "default", "a"), node="n1", allocation=plan.allocation)
    if seen_first:
        desk.promises.observe(seen)
    desk.promises.confirm("a")
    desk.promises.observe(seen)
    desk.engine.ledger.check_invariants()
    assert list(desk.engine.ledger.holdings) == ["a"]


def test_a_dossier_takes_down_priority_and_policy() -> None:
    view = msgspec.convert(pod("a", container(memory_mib=1), priority=7, preemptionPolicy="Never"), Pod)
    desk = Desk("n1")
    dossier = desk.engine.dossier(view)
    assert isinstance(dossier, Dossier)
    assert dossier == open_dossier(view, dossier.request)
    assert (dossier.priority, dossier.preempts) == (7, False)


def test_a_pod_that_is_judged_again_and_again_wakes_nobody() -> None:
    desk = Desk("n1")
    desk.filter("a", CARD)
    assert desk.filter("b", CARD) == []
    for _ in range(5):
        assert desk.filter("a", CARD) == ["n1"]
    assert [command for command in desk.commands if isinstance(command, events.Wake)] == []
