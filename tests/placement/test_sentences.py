"""Refusals as a person reads them."""

from typing import Any

import pytest

from gpuslice.devices.demands import CardSelection
from gpuslice.placement import decide
from gpuslice.placement.explain import History
from gpuslice.placement.ledger import Ledger
from gpuslice.placement.policies.registry import PolicyDefaults
from gpuslice.placement.rejection import TEXTS, Obstacle
from gpuslice.placement.sentences import why_here, why_not
from tests.placement.build import BINPACK, ask, card, given, key, node, request, run, seen, share

BIG = 81_920
WHOLE: dict[str, Any] = {"memory_percent": 100, "memory_mib": 0, "core_percent": 100, "exclusive": True}
ALONE = request(ask(**WHOLE))


def machine(*shares: tuple[str, int, int], cards: int = 2, **changes: Any) -> Ledger:
    ledger = Ledger()
    ready = changes.pop("ready", True)
    ledger.apply(node("n1", *(card(f"GPU-{n}", memory_mib=BIG, **changes) for n in range(cards)), ready=ready))
    for at, (slice_, memory, cores) in enumerate(shares):
        ledger.apply(seen(f"p{at}", given("n1", share(slice_, memory, cores))))
    return ledger


def cut() -> Ledger:
    return machine(("GPU-0::0", 20_480, 0), cards=1, equal_shares=True)


def unclear() -> Ledger:
    ledger = machine()
    ledger.apply(seen("odd", None, "n1", unreadable="cut off"))
    return ledger


@pytest.mark.parametrize(
    ("ledger", "asked", "obstacle", "text"),
    [
        pytest.param(
            machine(cards=8),
            request(ask(memory_mib=512_000)),
            Obstacle.MEMORY,
            "node n1: the pod wants 512000 MiB on one card; the freest of its 8 cards has 81920 MiB free",
            id="memory",
        ),
        pytest.param(
            machine(("GPU-0::0", 80_000, 0), cards=2),
            request(ask(2, memory_mib=3000, core_percent=10)),
            Obstacle.MEMORY,
            "node n1: the pod wants 3000 MiB, 10 % of compute on each of 2 cards; "
            "the freest of its 2 cards has 81920 MiB free, and 1 has as much as is wanted",
            id="memory on two cards",
        ),
        pytest.param(
            machine(("GPU-0::0", 1000, 80), ("GPU-1::0", 1000, 100)),
            request(ask(memory_mib=3000, core_percent=30)),
            Obstacle.CORES,
            "node n1: the pod wants 3000 MiB, 30 % of compute on one card; "
            "the freest of its 2 cards has 20 % of compute left",
            id="compute",
        ),
        pytest.param(
            machine(("GPU-0::0", 1000, 0), ("GPU-0::1", 1000, 0), cards=1, slots=2),
            request(ask(memory_mib=10)),
            Obstacle.SLOTS,
            "node n1: the pod wants 10 MiB on one card; 0 of 1 cards have a free slot "
            "(a card takes at most 2 containers)",
            id="slots",
        ),
        pytest.param(
            machine(cards=4),
            request(ask(8)),
            Obstacle.TOO_FEW_CARDS,
            "node n1: the pod wants 1000 MiB on each of 8 cards; it has 4 cards of kind nvidia",
            id="too few cards",
        ),
        pytest.param(
            machine(),
            request(ask(family="ascend")),
            Obstacle.TOO_FEW_CARDS,
            "node n1: the pod wants 1000 MiB on one card; it has no card of kind ascend",
            id="another kind of card",
        ),
        pytest.param(
            machine(cards=1, healthy=False),
            request(),
            Obstacle.UNHEALTHY,
            "node n1: the pod wants 1000 MiB on one card; 0 of 1 cards are allowed and healthy",
            id="not healthy",
        ),
        pytest.param(
            machine(cordoned=True),
            request(),
            Obstacle.CORDONED,
            "node n1: the pod wants 1000 MiB on one card; 0 of 2 cards are in service; the others are cordoned",
            id="cordoned",
        ),
        pytest.param(
            machine(),
            request(selection=CardSelection(use_types=("A10",))),
            Obstacle.SELECTION,
            "node n1: the pod wants 1000 MiB on one card; 0 of 2 cards are what the pod's annotations allow "
            "(model, UUID, mode)",
            id="another model",
        ),
        pytest.param(
            machine(("GPU-0::0", 1, 0)),
            request(ask(2, **WHOLE)),
            Obstacle.BUSY,
            "node n1: the pod wants 81920 MiB, 100 % of compute on each of 2 cards alone; "
            "1 of 2 cards is idle, and the pod shares with nobody",
            id="not idle",
        ),
        pytest.param(
            cut(),
            request(ask(memory_mib=40_960)),
            Obstacle.SHARE_SIZE,
            "node n1: the pod wants 40960 MiB on one card; "
            "its cards are cut into equal shares, those in use of 20480 MiB",
            id="cut otherwise",
        ),
        pytest.param(
            machine(cards=3, numa=0),
            request(ask(4), selection=CardSelection(same_numa=True)),
            Obstacle.TOO_FEW_CARDS,
            "node n1: the pod wants 1000 MiB on each of 4 cards; it has 3 cards of kind nvidia",
            id="too few for a NUMA node",
        ),
        pytest.param(
            machine(ready=False),
            request(),
            Obstacle.NOT_READY,
            "node n1 has 2 cards, but the kubelet offers none: its plugin is not ready",
            id="no plugin",
        ),
        pytest.param(
            unclear(),
            request(),
            Obstacle.UNCLEAR,
            "node n1: the record of devices of default/odd cannot be read, so nobody knows which cards are free",
            id="an unreadable record",
        ),
        pytest.param(
            machine(("GPU-0::0", 80_000, 50), cards=1),
            request(ask(memory_mib=1500, name="a"), ask(memory_mib=1000, core_percent=40, name="b")),
            Obstacle.COMBINATION,
            "node n1: the containers do not fit together (a 1500 MiB on one card; b 1000 MiB, 40 % of compute on one "
            "card); what its cards have left is 1920 MiB/50 %",
            id="not together",
        ),
    ],
)
def test_a_refusal_reads_as_a_sentence(ledger: Ledger, asked: Any, obstacle: Obstacle, text: str) -> None:
    assert decide.filter_nodes(ledger, asked, ["n1"], BINPACK).refused() == {"n1": TEXTS[obstacle]}
    assert why_not(ledger, asked, "n1", BINPACK) == text


def test_cards_on_two_numa_nodes() -> None:
    ledger = Ledger()
    ledger.apply(node("n1", *(card(f"GPU-{n}", numa=n % 2) for n in range(6))))
    asked = request(ask(4), selection=CardSelection(same_numa=True))
    expected = "of its 6 cards at most 3 that would do are on one NUMA node"
    assert expected in why_not(ledger, asked, "n1", BINPACK)


def test_only_cards_that_came_so_far_are_called_the_freest() -> None:
    """A sick card with all its memory free is no comfort."""
    ledger = Ledger()
    ledger.apply(node("n1", card("GPU-a", memory_mib=1000), card("GPU-b", memory_mib=90_000, healthy=False)))
    text = why_not(ledger, request(ask(memory_mib=5000)), "n1", BINPACK)
    assert text.endswith("the freest of the 1 of 2 cards that may be used has 1000 MiB free")


def test_a_node_that_is_not_known_and_one_that_fits() -> None:
    ledger = machine()
    assert "does the node daemon run there?" in why_not(ledger, request(), "n2", BINPACK)
    assert why_not(ledger, request(), "n1", BINPACK) == ""


@pytest.mark.parametrize("obstacle", [o for o in Obstacle if o is not Obstacle.NONE])
def test_every_obstacle_has_a_constant_text_without_figures(obstacle: Obstacle) -> None:
    assert TEXTS[obstacle]
    assert not any(character.isdigit() for character in TEXTS[obstacle])


def test_a_placement_says_where_and_among_how_many() -> None:
    ledger = machine(cards=2)
    ledger.apply(node("n2", card("GPU-x", memory_mib=100)))
    asked = request(ask(2, memory_mib=3000, core_percent=30))
    decision = decide.filter_nodes(ledger, asked, ["n1", "n2"], PolicyDefaults())
    record = History().filtered(key("p"), 0.0, decision)
    placed = run(ledger, "p", asked)
    assert placed is not None
    assert why_here(record, placed) == (
        "GPU-0 (3000 MiB, 30 % of compute), GPU-1 (3000 MiB, 30 % of compute) on node n1: "
        "1 of 2 nodes fit, best by policy balanced/balanced"
    )
