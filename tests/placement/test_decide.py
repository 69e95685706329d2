"""Which node, how good, which slices: the questions of a scheduling cycle."""

import json

import pytest

from gpuslice.devices.allocation import PodAllocation
from gpuslice.devices.requests import CardSelection
from gpuslice.placement import decide, explain
from gpuslice.placement.ledger import Ledger
from gpuslice.placement.policies.registry import PolicyDefaults
from gpuslice.placement.rejection import TEXTS, Obstacle
from tests.placement.build import BINPACK, SPREAD, ask, card, given, key, node, request, run, seen, share


def two_nodes() -> Ledger:
    """n1: all 8 cards free; n2: 3 of 8 free."""
    ledger = Ledger()
    for name in ("n1", "n2"):
        ledger.apply(node(name, *(card(f"GPU-{name}-{n}") for n in range(8))))
    for n in range(5):
        ledger.apply(seen(f"p{n}", given("n2", share(f"GPU-n2-{n}::0", 16384, 100, exclusive=True))))
    return ledger


@pytest.mark.parametrize(
    ("defaults", "best"),
    [pytest.param(BINPACK, "n2", id="binpack fills"), pytest.param(SPREAD, "n1", id="spread avoids")],
)
def test_node_policies(defaults: PolicyDefaults, best: str) -> None:
    decision = decide.filter_nodes(two_nodes(), request(ask(memory_mib=16384)), ["n1", "n2"], defaults)
    assert decision.best() == [best]
    scores = decide.prioritize(decision)
    assert scores[best] == decide.BEST_SCORE
    assert all(0 <= score < decide.BEST_SCORE for name, score in scores.items() if name != best)


def test_the_pod_decides_over_the_cluster() -> None:
    decision = decide.filter_nodes(two_nodes(), request(node_policy="spread"), ["n1", "n2"], BINPACK)
    assert decision.best() == ["n1"]


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        pytest.param("spread", "GPU-3", id="spread: idlest"),
        pytest.param("binpack", "GPU-0", id="binpack: fullest"),
    ],
)
def test_one_card_pods_are_placed_by_load_not_by_numa(policy: str, chosen: str) -> None:
    ledger = Ledger()
    ledger.apply(node("n1", *(card(f"GPU-{n}", memory_mib=10000, numa=n // 2) for n in range(4))))
    for n, load in enumerate((9000, 7000, 3000, 1000)):
        ledger.apply(seen(f"p{n}", given("n1", share(f"GPU-{n}::0", load))))
    placed = run(ledger, "new", request(ask(memory_mib=500), card_policy=policy))
    assert placed is not None
    assert placed.containers["main"][0].card == chosen


def test_ties_go_to_the_lower_name_and_uuid() -> None:
    ledger = Ledger()
    for name in ("n3", "n1", "n2"):
        ledger.apply(node(name, card(f"GPU-{name}-b"), card(f"GPU-{name}-a")))
    placed = run(ledger, "p", request())
    assert placed == given("n1", share("GPU-n1-a::0"))


def test_unsatisfiable_pods_get_reasons_and_the_next_pod_is_placed() -> None:
    ledger = Ledger()
    ledger.apply(node("n1", card("GPU-a"), card("GPU-b")))
    for asked, reason in (
        (request(ask(4)), Obstacle.TOO_FEW_CARDS),
        (request(ask(memory_mib=1_000_000)), Obstacle.MEMORY),
    ):
        decision = decide.filter_nodes(ledger, asked, ["n1"], BINPACK)
        assert decision.refused() == {"n1": TEXTS[reason]}
        assert decision.feasible == []
    assert run(ledger, "ok", request()) is not None


@pytest.mark.parametrize(
    ("selection", "feasible"),
    [
        pytest.param(CardSelection(use_types=("A10",)), ["a10"], id="whole words: A10 is not A100"),
        pytest.param(CardSelection(use_types=("a100-sxm4",)), ["a100"], id="case and dashes do not matter"),
        pytest.param(CardSelection(refuse_types=("A100",)), ["a10"], id="refused model"),
        pytest.param(CardSelection(use_uuids=("GPU-a100",)), ["a100"], id="by UUID"),
        pytest.param(CardSelection(refuse_uuids=("GPU-a100",)), ["a10"], id="refused UUID"),
        pytest.param(CardSelection(modes=("mig-static",)), [], id="no card in that mode"),
        pytest.param(CardSelection(use_types=("H100", "A10")), ["a10"], id="any of several models"),
    ],
)
def test_card_selection(selection: CardSelection, feasible: list[str]) -> None:
    ledger = Ledger()
    ledger.apply(node("a10", card("GPU-a10", model="NVIDIA A10")))
    ledger.apply(node("a100", card("GPU-a100", model="NVIDIA A100-SXM4-40GB")))
    decision = decide.filter_nodes(ledger, request(selection=selection), ["a10", "a100"], BINPACK)
    assert decision.feasible == feasible


def test_cards_on_one_numa_node() -> None:
    ledger = Ledger()
    ledger.apply(node("n1", *(card(f"GPU-{n}", numa=n % 2) for n in range(4))))
    ledger.apply(seen("p", given("n1", share("GPU-0::0", 16384))))
    bound = CardSelection(same_numa=True)
    placed = run(ledger, "q", request(ask(2), selection=bound))
    assert placed is not None
    assert [s.card for s in placed.containers["main"]] == ["GPU-1", "GPU-3"]
    decision = decide.filter_nodes(ledger, request(ask(3), selection=bound), ["n1"], BINPACK)
    assert decision.refused() == {"n1": TEXTS[Obstacle.NUMA]}


def test_percent_of_each_cards_own_memory() -> None:
    ledger = Ledger()
    ledger.apply(node("n1", card("GPU-a", memory_mib=1001), card("GPU-b", memory_mib=80)))
    placed = run(ledger, "p", request(ask(2, 0, memory_percent=50)))
    assert placed is not None
    assert [s.memory_mib for s in placed.containers["main"]] == [500, 40]


def test_pods_of_a_group_stay_together() -> None:
    ledger = Ledger()
    for name in ("n1", "n2", "n3"):
        ledger.apply(node(name, card(f"GPU-{name}"), domain="rack-b" if name != "n1" else "rack-a"))
    ledger.apply(seen("p", given("n2", share("GPU-n2::0")), group="job"))
    asked = request(node_policy="affine")
    decision = decide.filter_nodes(ledger, asked, ["n1", "n2", "n3"], SPREAD, decide.Asker("q", group="job"))
    assert [name for name, _ in decision.ranking()] == ["n2", "n3", "n1"]


def test_candidates_survive_changes_of_the_cluster() -> None:
    ledger = Ledger()
    for name in ("n1", "n2"):
        ledger.apply(node(name, card(f"GPU-{name}")))
    candidates = decide.Candidates(ledger, ["n2", "n3"])
    assert decide.filter_nodes(ledger, request(), candidates, BINPACK).feasible == ["n2"]
    ledger.apply(node("n3", card("GPU-n3")))
    assert decide.filter_nodes(ledger, request(), candidates, BINPACK).feasible == ["n2", "n3"]


def test_a_decision_is_explained_by_node_and_card() -> None:
    ledger = two_nodes()
    history = explain.History(kept=1)
    asked = request(ask(memory_mib=9000))
    decision = decide.filter_nodes(ledger, asked, ["n1", "n2", "n9"], BINPACK)
    record = history.filtered(key("p"), 12.5, decision)
    cards = explain.see_cards(ledger, asked, "n2", BINPACK)
    placed = decide.place(ledger, asked, "n2", BINPACK)
    assert isinstance(placed, PodAllocation)
    history.placed(key("p"), placed, cards)
    told = explain.as_object(record)
    assert json.loads(json.dumps(told)) == told
    assert [verdict.get("score") for verdict in told["verdicts"]] == [10, 0, None]
    assert told["chosen"] == "n2"
    assert told["nodes"] == {"considered": 3, "feasible": 2}
    assert told["refused"] == {TEXTS[Obstacle.UNKNOWN_NODE]: 1}
    assert [verdict["node"] for verdict in told["verdicts"]] == ["n2", "n1", "n9"]
    assert told["cards"]["n2"][0]["reason"] == TEXTS[Obstacle.EXCLUSIVE]
    assert told["cards"]["n2"][5]["scores"]["binpack"] > 0
    assert explain.summary(decision) == "0/3 nodes fit: 1 node has no registered cards"
    history.filtered(key("other"), 13.0, decision)
    assert history.get("default", "p") is None
