"""Who has to go: the cheapest victims, and nobody without a beneficiary."""

from itertools import combinations

import pytest
from hypothesis import given as forall
from hypothesis import settings
from hypothesis import strategies as st

from gpuslice.placement.events import PodGone, ReservationReady, Reserve
from gpuslice.placement.fit import Fit, fit_node
from gpuslice.placement.ledger import Ledger
from gpuslice.placement.policies.registry import resolve
from gpuslice.placement.preempt import Budgets, PreemptionPlan, Preemptor, plan_preemption
from gpuslice.placement.shape import shape_of
from tests.placement.build import BINPACK, ask, card, given, key, node, request, run, seen, share

CARD = 16384
WHOLE = request(ask(memory_mib=CARD))


def cluster(*pods: tuple[str, str, int, int], nodes: int = 1, **changes: object) -> Ledger:
    """Return nodes of one card each; pods are (uid, node, MiB, priority)."""
    ledger = Ledger()
    for n in range(nodes):
        ledger.apply(node(f"n{n}", card(f"GPU-n{n}")))
    for slot, (uid, where, memory, priority) in enumerate(pods):
        held = given(where, share(f"GPU-{where}::{slot}", memory))
        ledger.apply(seen(uid, held, priority=priority, terminating=changes.get("terminating") == uid))
    return ledger


def plan(
    ledger: Ledger, uid: str = "high", priority: int = 100, memory: int = CARD, **more: object
) -> PreemptionPlan | None:
    budgets = more.get("budgets")
    assert budgets is None or isinstance(budgets, Budgets)
    preemptor = Preemptor(key(uid), priority, never=bool(more.get("never")))
    names = sorted(ledger.fleet.row_of)
    return plan_preemption(ledger, preemptor, request(ask(memory_mib=memory)), names, defaults=BINPACK, budgets=budgets)


def evicted(found: PreemptionPlan | None) -> list[str] | None:
    return None if found is None else [victim.uid for victim in found.evict]


@pytest.mark.parametrize(
    ("pods", "memory", "expected"),
    [
        pytest.param([("low", "n0", CARD, 1)], CARD, ["low"], id="one card full of low"),
        pytest.param([("a", "n0", 8192, 1), ("b", "n0", 8192, 1)], 8192, ["b"], id="one of two is enough"),
        pytest.param([("a", "n0", 8192, 1), ("b", "n0", 8192, 1)], CARD, ["a", "b"], id="both are needed"),
        pytest.param([("a", "n0", 8192, 5), ("b", "n0", 8192, 1)], 8192, ["b"], id="the less important one"),
        pytest.param([("a", "n0", 10000, 1), ("b", "n0", 6000, 1)], 6000, ["b"], id="the smaller share"),
        pytest.param([("peer", "n0", CARD, 100)], CARD, None, id="nobody of equal priority"),
        pytest.param([("a", "n0", CARD, 9), ("b", "n1", CARD, 1)], CARD, ["b"], id="the node of less important pods"),
        pytest.param(
            [("a", "n0", 8192, 1), ("b", "n0", 8192, 1), ("c", "n1", CARD, 1)],
            CARD,
            ["c"],
            id="fewest pods of equal share",
        ),
    ],
)
def test_victims(pods: list[tuple[str, str, int, int]], memory: int, expected: list[str] | None) -> None:
    nodes = 2 if any(where == "n1" for _, where, _, _ in pods) else 1
    assert evicted(plan(cluster(*pods, nodes=nodes), memory=memory)) == expected


def test_a_pod_that_never_preempts_evicts_nobody() -> None:
    assert plan(cluster(("low", "n0", CARD, 1)), never=True) is None


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [pytest.param(0, None, id="spent"), pytest.param(1, ["low"], id="one left")],
)
def test_budgets_are_kept(allowed: int, expected: list[str] | None) -> None:
    budgets = Budgets({"low": ("other/pdb",)}, {"other/pdb": allowed})
    assert evicted(plan(cluster(("low", "n0", CARD, 1)), budgets=budgets)) == expected


def test_a_pod_on_its_way_out_is_waited_for_and_nobody_is_evicted() -> None:
    ledger = cluster(("leaving", "n0", CARD, 1), ("low", "n1", CARD, 0), nodes=2, terminating="leaving")
    found = plan(ledger)
    assert found is not None
    assert (found.evict, found.waits_for) == ((), frozenset({"leaving"}))


def test_many_at_once_have_one_victim_each_and_all_get_their_share() -> None:
    pods = [(f"low{n}", f"n{n}", CARD, 1) for n in range(4)]
    ledger = cluster(*pods, nodes=4)
    victims: set[str] = set()
    for n in range(6):
        found = plan(ledger, f"high{n}")
        if found is not None:
            assert not victims & {v.uid for v in found.evict}
            victims |= {v.uid for v in found.evict}
            ledger.apply(Reserve(key(f"high{n}"), found.allocation, found.waits_for, now=0.0, priority=100))
            ledger.check_invariants()
    assert victims == {f"low{n}" for n in range(4)}
    for uid in sorted(victims):
        assert any(isinstance(command, ReservationReady) for command in ledger.apply(PodGone(uid)))
    assert run(ledger, "thief", WHOLE) is None
    assert all(run(ledger, f"high{n}", WHOLE) is not None for n in range(4))


def test_two_small_pods_share_the_room_of_one_victim() -> None:
    ledger = cluster(("low", "n0", CARD, 1))
    first = plan(ledger, "h1", memory=8192)
    assert first is not None
    ledger.apply(Reserve(key("h1"), first.allocation, first.waits_for, now=0.0))
    second = plan(ledger, "h2", memory=8192)
    assert second is not None
    assert (second.evict, second.waits_for) == ((), frozenset({"low"}))


@settings(max_examples=150, deadline=None)
@forall(
    sizes=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 3)), min_size=1, max_size=6), wanted=st.integers(1, 16)
)
def test_no_victim_could_be_spared(sizes: list[tuple[int, int]], wanted: int) -> None:
    """No true subset of the victims makes room, and none of lower top priority exists at all."""
    ledger = Ledger()
    ledger.apply(node("n0", card("GPU-n0", memory_mib=16), card("GPU-n1", memory_mib=16)))
    for slot, (memory, priority) in enumerate(sizes):
        decision = run(ledger, f"p{slot}", request(ask(memory_mib=memory)), priority=priority)
        if decision is None:
            break
    asked = request(ask(memory_mib=wanted))
    shape, policy = shape_of(asked), resolve(asked, BINPACK)

    def makes_room(uids: tuple[str, ...]) -> bool:
        changes = [(-1, use) for uid in uids for use in ledger.holdings[uid].uses]
        return isinstance(fit_node(ledger.fleet, 0, shape, policy, changes), Fit)

    found = plan(ledger, memory=wanted)
    possible = tuple(ledger.holdings)
    if makes_room(()):
        return
    if found is None:
        assert not makes_room(possible)
        return
    victims = tuple(sorted(found.waits_for))
    assert makes_room(victims)
    assert not any(makes_room(some) for some in combinations(victims, len(victims) - 1))
    top = max(ledger.holdings[uid].priority for uid in victims)
    assert not makes_room(tuple(uid for uid in possible if ledger.holdings[uid].priority < top))


def test_the_containers_of_a_preemptor_are_fitted_together_before_anybody_has_to_go() -> None:
    """Once one of the two low pods has ended, each container has a card; which, no single order of them would tell."""
    ledger = Ledger()
    ledger.apply(node("n1", card("GPU-a", memory_mib=1000), card("GPU-b", memory_mib=1000)))
    ledger.apply(seen("low-a", given("n1", share("GPU-a::0", 600)), priority=1))
    ledger.apply(seen("low-b", given("n1", share("GPU-b::0", 650, 60)), priority=1))
    asked = request(ask(memory_mib=700, name="large"), ask(memory_mib=320, core_percent=30, name="small"))
    plan = plan_preemption(ledger, Preemptor(key("high"), 10), asked, ["n1"], defaults=BINPACK)
    assert plan is not None
    assert [victim.uid for victim in plan.evict] == ["low-a"]
    ledger.apply(Reserve(key("high"), plan.allocation, plan.waits_for, now=0.0))
    ledger.apply(PodGone("low-a"))
    placed = run(ledger, "high", asked)
    assert placed is not None
    assert {name: shares[0].card for name, shares in placed.containers.items()} == {"large": "GPU-a", "small": "GPU-b"}
