"""Cards that their vendor cuts into equal shares only: the first decides the size of all, until the card is idle."""

import msgspec
import pytest

from gpuslice.devices.allocation import PodAllocation
from gpuslice.devices.annotations import CARDS, encode_cards
from gpuslice.devices.families import load_builtin
from gpuslice.devices.families.register import cards_of_node
from gpuslice.devices.inventory import NodeCards
from gpuslice.devices.pods import Node, Pod
from gpuslice.devices.requests import PodRequest, Role, read_request
from gpuslice.placement import decide
from gpuslice.placement.audit import Overcommitted
from gpuslice.placement.events import Assume, Conflict, NodeSeen, PodGone, Refused, Reserve, Wake
from gpuslice.placement.ledger import Ledger
from gpuslice.placement.preempt import Preemptor, plan_preemption
from gpuslice.placement.rejection import TEXTS, Obstacle
from tests.placement.build import BINPACK, SPREAD, ask, card, given, key, node, request, run, seen, share

FAMILIES = load_builtin()
QUARTER, HALF = 24_576, 49_152
REFUSED = {"n1": TEXTS[Obstacle.SHARE_SIZE]}


def machine(cards: int = 1) -> Ledger:
    ledger = Ledger()
    ledger.apply(node("n1", *(card(f"XPU-{n}", memory_mib=98_304, slots=4, equal_shares=True) for n in range(cards))))
    return ledger


def refused(ledger: Ledger, mib: int) -> dict[str, str]:
    return decide.filter_nodes(ledger, request(ask(memory_mib=mib)), ["n1"], BINPACK).refused()


def test_the_first_share_decides_the_size_of_the_others() -> None:
    ledger = machine()
    assert run(ledger, "first", request(ask(memory_mib=QUARTER))) is not None
    assert refused(ledger, HALF) == REFUSED
    assert run(ledger, "second", request(ask(memory_mib=QUARTER))) is not None


def test_an_idle_card_may_be_cut_anew() -> None:
    ledger = machine()
    assert run(ledger, "first", request(ask(memory_mib=QUARTER))) is not None
    ledger.apply(PodGone("first"))
    assert refused(ledger, HALF) == {}
    assert run(ledger, "second", request(ask(memory_mib=HALF))) is not None
    assert refused(ledger, QUARTER) == REFUSED


def test_a_card_that_becomes_one_of_these_while_in_use_knows_its_size_at_once() -> None:
    ledger = Ledger()
    for equal_shares in (False, True):
        ledger.apply(node("n1", card("XPU-0", memory_mib=98_304, slots=4, equal_shares=equal_shares)))
        if not equal_shares:
            assert run(ledger, "first", request(ask(memory_mib=QUARTER))) is not None
    ledger.check_invariants()
    assert refused(ledger, HALF) == REFUSED
    assert refused(ledger, QUARTER) == {}


def test_the_containers_of_one_pod_are_cut_alike_or_apart() -> None:
    two_sizes = request(ask(memory_mib=QUARTER, name="a"), ask(memory_mib=HALF, name="b"))
    assert run(machine(), "p", two_sizes) is None
    placed = run(machine(2), "p", two_sizes)
    assert placed is not None
    assert {shares[0].card for shares in placed.containers.values()} == {"XPU-0", "XPU-1"}
    alike = run(machine(), "p", request(ask(memory_mib=HALF, name="a"), ask(memory_mib=HALF, name="b")))
    assert alike is not None


def test_a_pod_takes_the_cut_card_of_its_size_even_if_another_would_be_better() -> None:
    ledger = machine(2)
    ledger.apply(seen("quarter", given("n1", share("XPU-0::0", QUARTER))))
    ledger.apply(seen("half", given("n1", share("XPU-1::0", HALF))))
    for defaults in (BINPACK, SPREAD):
        placed = decide.place(ledger, request(ask(memory_mib=HALF)), "n1", defaults)
        assert isinstance(placed, PodAllocation)
        assert placed.containers["main"][0].card == "XPU-1"


def test_a_slice_has_the_size_of_its_largest_user() -> None:
    """The slice of an init container passes to the app container; the card is cut once, for the larger of the two."""
    ledger = machine()
    asked = request(ask(memory_mib=HALF, name="init", role=Role.INIT), ask(memory_mib=QUARTER))
    assert run(ledger, "p", asked) is not None
    assert refused(ledger, QUARTER) == REFUSED
    assert refused(ledger, HALF) == {}


def test_a_decision_that_is_no_longer_true_is_refused() -> None:
    ledger = machine()
    placed = decide.place(ledger, request(ask(memory_mib=HALF)), "n1", BINPACK)
    assert isinstance(placed, PodAllocation)
    ledger.apply(seen("other", given("n1", share("XPU-0::3", QUARTER))))
    with pytest.raises(Overcommitted, match="another size"):
        ledger.apply(Assume(key("p"), placed, now=0.0))


def test_facts_of_two_sizes_are_booked_and_reported_and_the_card_takes_nobody() -> None:
    ledger = machine()
    ledger.apply(seen("a", given("n1", share("XPU-0::0", QUARTER))))
    found = [c for c in ledger.apply(seen("b", given("n1", share("XPU-0::1", HALF)))) if isinstance(c, Conflict)]
    assert [(c.card, c.pods) for c in found] == [("XPU-0", ("default/a", "default/b"))]
    assert "different sizes" in found[0].problem
    ledger.check_invariants()
    assert refused(ledger, QUARTER) == REFUSED
    ledger.apply(PodGone("b"))
    ledger.check_invariants()
    assert not ledger.conflicts
    assert refused(ledger, QUARTER) == {}


def test_victims_are_all_of_the_other_size_and_the_freed_card_is_kept_at_the_new_one() -> None:
    ledger = machine()
    for at in range(2):
        ledger.apply(seen(f"low{at}", given("n1", share(f"XPU-0::{at}", QUARTER))))
    high = Preemptor(key("high"), priority=10)
    asked = request(ask(memory_mib=HALF))
    plan = plan_preemption(ledger, high, asked, ["n1"], defaults=BINPACK)
    assert plan is not None
    assert [victim.uid for victim in plan.evict] == ["low0", "low1"]
    ledger.apply(Reserve(high.key, plan.allocation, plan.waits_for, now=0.0))
    ledger.check_invariants()
    assert refused(ledger, QUARTER) != {}
    for victim in plan.evict:
        ledger.apply(PodGone(victim.uid))
        ledger.check_invariants()
    assert refused(ledger, QUARTER) == REFUSED
    assert run(ledger, "high", asked) is not None


def test_a_waiting_pod_is_woken_when_the_card_can_be_cut_for_it() -> None:
    ledger = machine()
    ledger.apply(seen("a", given("n1", share("XPU-0::0", QUARTER))))
    for name, mib in (("half", HALF), ("more", HALF), ("quarter", QUARTER)):
        ledger.apply(Refused(key(name), request(ask(memory_mib=mib)), created_at=name))
    woken = [c for c in ledger.apply(PodGone("a")) if isinstance(c, Wake)]
    assert [[pod.uid for pod in wake.pods] for wake in woken] == [["half", "more"]]


@pytest.mark.parametrize("annotation", ["hami.io/node-register-xpu", CARDS])
def test_the_families_data_decide_which_cards_these_are(annotation: str) -> None:
    """A Kunlun vXPU is cut into equal shares, whoever registered it; an NVIDIA card beside it is not."""
    written = msgspec.json.encode([{"id": "XPU-0", "count": 4, "devmem": 98_304, "devcore": 100, "health": True}])
    own = NodeCards("n1", (card("XPU-0", memory_mib=98_304, slots=4, family="kunlun-vxpu"), card("GPU-0")))
    value = encode_cards(own) if annotation == CARDS else written.decode()
    seen_node = msgspec.convert({"metadata": {"name": "n1", "annotations": {annotation: value}}}, Node)
    cards = cards_of_node(seen_node, FAMILIES)
    assert cards is not None
    assert [c.uuid for c in cards.cards if c.equal_shares] == ["XPU-0"]
    ledger = Ledger()
    ledger.apply(NodeSeen(cards))
    asked = [
        read_request(
            msgspec.convert(
                {
                    "spec": {
                        "containers": [
                            {
                                "name": "main",
                                "resources": {"limits": {"kunlunxin.com/vxpu": 1, "kunlunxin.com/vxpu-memory": mib}},
                            }
                        ]
                    }
                },
                Pod,
            ),
            FAMILIES,
        )
        for mib in (20_000, 40_000, 24_576)
    ]
    placed = [run(ledger, f"p{at}", each) is not None for at, each in enumerate(asked) if isinstance(each, PodRequest)]
    assert placed == [True, False, True]
