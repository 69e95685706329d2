"""Names of policies: HAMi's words, comma chains, weights, and what a pod may override."""

import pytest

from gpuslice.devices.requests import CardSelection
from gpuslice.placement import decide
from gpuslice.placement.ledger import Ledger
from gpuslice.placement.policies.policy import Weights
from gpuslice.placement.policies.registry import NAMES, PolicyDefaults, known_names, parse_weights, resolve
from gpuslice.placement.rejection import TEXTS, Obstacle
from tests.placement.build import BINPACK, ask, card, given, node, request, run, seen, share


def test_every_promised_name_is_there() -> None:
    promised = "binpack spread topology-aware numa mutex affine best-fit fgd fgd-plus balanced"
    assert set(promised.split()) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_works_at_both_levels(name: str) -> None:
    for cards in (1, 2):
        ledger = Ledger()
        ledger.apply(node("n1", card("GPU-a"), card("GPU-b")))
        assert run(ledger, f"p{cards}", request(ask(cards)), defaults=PolicyDefaults(name, name)) is not None


@pytest.mark.parametrize(
    ("node_policy", "card_policy", "expected"),
    [
        pytest.param("", "", "balanced/balanced", id="the cluster's choice"),
        pytest.param("spread", "", "spread/balanced", id="the pod's choice of node"),
        pytest.param("", "binpack,numa", "balanced/binpack,numa", id="a chain of card policies"),
        pytest.param(" Spread ", "NUMA", "spread/numa", id="case and blanks do not matter"),
        pytest.param("nonsense", "nonsense", "balanced/balanced", id="unknown words are ignored"),
        pytest.param("affine", "", "affine/balanced", id="affine on top of the cluster's choice"),
    ],
)
def test_who_decides(node_policy: str, card_policy: str, expected: str) -> None:
    asked = request(node_policy=node_policy, card_policy=card_policy)
    assert resolve(asked, PolicyDefaults()).name == expected


def test_a_chain_decides_equal_cards_by_its_next_word() -> None:
    ledger = Ledger()
    ledger.apply(node("n1", card("GPU-a", numa=0), card("GPU-b", numa=0), card("GPU-c", numa=1)))
    placed = run(ledger, "p", request(card_policy="binpack,numa"), defaults=BINPACK)
    assert placed is not None
    assert placed.containers["main"][0].card == "GPU-c"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("slot=1,core=2,memory=3", Weights(1, 2, 3), id="in order"),
        pytest.param(" memory=3 , slot=0,core=0", Weights(0, 0, 3), id="in any order"),
        pytest.param("slot=0,core=0,memory=0", None, id="all zero"),
        pytest.param("slot=1,core=1", None, id="one missing"),
        pytest.param("slot=1,slot=1,memory=1", None, id="one twice"),
        pytest.param("slot=-1,core=1,memory=1", None, id="negative"),
        pytest.param("", None, id="nothing"),
    ],
)
def test_weights(text: str, expected: Weights | None) -> None:
    assert parse_weights(text) == expected


def test_weights_of_the_pod_decide() -> None:
    """One card is full of slots, the other of memory."""
    ledger = Ledger()
    ledger.apply(node("n1", card("GPU-a"), card("GPU-b")))
    ledger.apply(seen("slots", given("n1", *(share(f"GPU-a::{n}", 1) for n in range(5)))))
    ledger.apply(seen("memory", given("n1", share("GPU-b::0", 9000))))
    for weights, chosen in (("slot=1,core=0,memory=0", "GPU-a"), ("slot=0,core=0,memory=1", "GPU-b")):
        placed = decide.place(ledger, request(scoring_weights=weights), "n1", BINPACK)
        assert placed == given("n1", share(f"{chosen}::{5 if chosen == 'GPU-a' else 1}"))


def test_mutex_shares_a_card_with_nobody() -> None:
    ledger = Ledger()
    ledger.apply(node("n1", card("GPU-a"), card("GPU-b")))
    run(ledger, "small", request())
    alone = run(ledger, "alone", request(card_policy="mutex"))
    assert alone is not None
    assert alone.containers["main"][0].card == "GPU-b"
    assert run(ledger, "alone2", request(card_policy="mutex")) is None
    late = run(ledger, "late", request())
    assert late is not None
    assert late.containers["main"][0].card == "GPU-a"


def test_a_card_drops_out_and_another_comes() -> None:
    ledger = Ledger()
    eight = [card(f"GPU-{n}") for n in range(8)]
    ledger.apply(node("n1", *eight))
    old = run(ledger, "old", request(ask(1), selection=CardSelection(use_uuids=("GPU-7",))))
    assert old is not None
    ledger.apply(node("n1", *eight[:7]))
    whole = request(ask(8))
    pinned = request(ask(1), selection=CardSelection(use_uuids=("GPU-7",)))
    assert decide.filter_nodes(ledger, whole, ["n1"], BINPACK).refused() == {"n1": TEXTS[Obstacle.TOO_FEW_CARDS]}
    assert decide.filter_nodes(ledger, pinned, ["n1"], BINPACK).refused() == {"n1": TEXTS[Obstacle.SELECTION]}
    assert ledger.lost_cards() == {"old": ("GPU-7",)}
    ledger.apply(node("n1", *eight[:7], card("GPU-new")))
    assert run(ledger, "new", whole) is not None


def test_known_names() -> None:
    assert known_names("binpack, what,NUMA") == ("binpack", "numa")
