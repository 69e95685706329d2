"""The ledger's life of a share, told as stories."""

from typing import Any

import pytest

from gpuslice.devices.allocation import PodAllocation
from gpuslice.devices.requests import Role
from gpuslice.devices.traits import PodTraits
from gpuslice.placement import decide
from gpuslice.placement.audit import Overcommitted
from gpuslice.placement.events import (
    Assume,
    Confirm,
    Conflict,
    Expired,
    Forget,
    NodeGone,
    PodGone,
    Refused,
    Relist,
    ReservationLost,
    ReservationReady,
    Reserve,
    Tick,
    Wake,
)
from gpuslice.placement.ledger import Ledger
from gpuslice.placement.policies.registry import PolicyDefaults
from gpuslice.placement.rejection import TEXTS, Obstacle, Rejection
from tests.placement.build import BINPACK, SPREAD, ask, card, given, key, node, request, run, seen, share

CARD = 16384


def one_card(**changes: object) -> Ledger:
    ledger = Ledger()
    ledger.apply(node("n1", card("GPU-a", **changes)))
    return ledger


def free(ledger: Ledger, node_name: str = "n1", column: int = 0) -> tuple[int, int, int]:
    """Return free slots, MiB and percent of one card."""
    fleet, row = ledger.fleet, ledger.fleet.row_of[node_name]
    return (
        int(fleet.total_slots[row, column] - fleet.used_slots[row, column]),
        int(fleet.total_memory[row, column] - fleet.used_memory[row, column]),
        int(fleet.total_cores[row, column] - fleet.used_cores[row, column]),
    )


def test_an_assumed_share_counts_at_once() -> None:
    """Three pods of half a card back to back, no watch event in between: exactly two are placed."""
    ledger = one_card(memory_mib=24576)
    asked = request(ask(memory_mib=12288))
    placed = [run(ledger, uid, asked) for uid in ("a", "b", "c")]
    assert [p is not None for p in placed] == [True, True, False]


def test_an_assumed_share_runs_out() -> None:
    ledger = one_card()
    ledger.apply(Assume(key("a"), given("n1", share("GPU-a::0")), now=100.0))
    assert ledger.apply(Tick(129.0)) == []
    assert ledger.apply(Tick(130.0)) == [Expired(key("a"), "n1")]
    assert free(ledger) == (10, CARD, 100)
    ledger.check_invariants()


def test_a_confirmed_share_does_not_run_out() -> None:
    ledger = one_card()
    ledger.apply(Assume(key("a"), given("n1", share("GPU-a::0")), now=0.0))
    ledger.apply(Confirm("a"))
    assert ledger.apply(Tick(1e9)) == []
    assert free(ledger)[1] == CARD - 1000


def test_a_failed_binding_gives_the_share_back_and_a_bound_pod_keeps_it() -> None:
    ledger = one_card()
    ledger.apply(Assume(key("a"), given("n1", share("GPU-a::0")), now=0.0))
    ledger.apply(seen("b", given("n1", share("GPU-a::1"))))
    ledger.apply(Forget("a"))
    ledger.apply(Forget("b"))
    assert list(ledger.holdings) == ["b"]
    ledger.check_invariants()


def test_a_late_pending_event_does_not_take_a_bound_share_away() -> None:
    ledger = one_card()
    ledger.apply(seen("a", given("n1", share("GPU-a::0"))))
    ledger.apply(seen("a", None))
    assert "a" in ledger.holdings


@pytest.mark.parametrize(
    ("event", "left"),
    [
        pytest.param(
            seen("a", given("n1", share("GPU-a::0")), terminating=True), CARD - 1000, id="terminating holds on"
        ),
        pytest.param(seen("a", given("n1", share("GPU-a::0")), terminal=True), CARD, id="a finished pod lets go"),
        pytest.param(PodGone("a"), CARD, id="a deleted pod lets go"),
        pytest.param(Relist((node("n1", card("GPU-a")),), ()), CARD, id="a relist drops what the API no longer has"),
        pytest.param(
            Relist((node("n1", card("GPU-a")),), (seen("a", given("n1", share("GPU-a::0"))),)),
            CARD - 1000,
            id="a relist keeps what the API has",
        ),
        pytest.param(seen("a", None, "n1"), CARD, id="bound without a record: nothing of ours is held"),
    ],
)
def test_when_a_share_is_given_back(event: object, left: int) -> None:
    ledger = one_card()
    ledger.apply(seen("a", given("n1", share("GPU-a::0"))))
    ledger.apply(event)  # type: ignore[arg-type]
    assert free(ledger)[1] == left
    ledger.check_invariants()


def test_a_pod_younger_than_the_list_keeps_its_share_until_its_deadline() -> None:
    ledger = one_card()
    ledger.apply(Assume(key("a"), given("n1", share("GPU-a::0")), now=0.0))
    ledger.apply(Confirm("a"))
    ledger.apply(Relist((node("n1", card("GPU-a")),), (), now=50.0))
    assert "a" in ledger.holdings
    assert ledger.apply(Tick(80.0)) == [Expired(key("a"), "n1")]


def test_init_containers_count_by_maximum_and_shrink_when_they_are_done() -> None:
    """Three init containers of 10240 MiB and an app of 8000: 10240 while they run, then 8000."""
    ledger = one_card()
    inits = [ask(memory_mib=10240, name=f"i{n}", role=Role.INIT) for n in range(3)]
    asked = request(*inits, ask(memory_mib=8000))
    placed = run(ledger, "a", asked)
    assert placed is not None
    assert free(ledger) == (9, CARD - 10240, 100)
    assert run(ledger, "b", request(ask(memory_mib=8000))) is None
    roles = tuple((demand.name, demand.role) for demand in inits)
    ledger.apply(seen("a", placed, roles=roles, init_done=True))
    assert free(ledger) == (9, CARD - 8000, 100)
    assert run(ledger, "b", request(ask(memory_mib=8000))) is not None


def test_native_sidecars_add_up() -> None:
    ledger = one_card()
    asked = request(
        ask(memory_mib=1000, name="side", role=Role.SIDECAR),
        ask(memory_mib=6000, name="init", role=Role.INIT),
        ask(memory_mib=4000),
    )
    assert run(ledger, "a", asked) is not None
    assert free(ledger)[1] == CARD - 7000


def test_an_init_container_passes_its_slice_on() -> None:
    """The kubelet gives the slices of a finished init container to the next containers first."""
    ledger = one_card()
    placed = run(ledger, "a", request(ask(name="init", role=Role.INIT), ask(memory_mib=3000)))
    assert placed is not None
    assert [s.slice for s in placed.containers["init"]] == [s.slice for s in placed.containers["main"]]


def test_an_exclusive_card_has_one_holder() -> None:
    ledger = one_card()
    whole = request(ask(memory_mib=0, memory_percent=100, core_percent=100, exclusive=True))
    assert run(ledger, "small", request()) is not None
    assert run(ledger, "whole", whole) is None
    ledger.apply(PodGone("small"))
    assert run(ledger, "whole", whole) is not None
    assert run(ledger, "small", request(ask(memory_mib=0))) is None


def test_a_decision_that_is_no_longer_true_is_refused() -> None:
    ledger = one_card()
    ledger.apply(Assume(key("a"), given("n1", share("GPU-a::0", 10000)), now=0.0))
    with pytest.raises(Overcommitted, match="free memory"):
        ledger.apply(Assume(key("b"), given("n1", share("GPU-a::1", 10000)), now=0.0))
    ledger.check_invariants()
    assert free(ledger)[1] == CARD - 10000


def test_facts_beyond_a_card_are_booked_and_reported() -> None:
    ledger = one_card()
    ledger.apply(seen("a", given("n1", share("GPU-a::0", 10000))))
    out = ledger.apply(seen("b", given("n1", share("GPU-a::1", 10000))))
    assert out == [Conflict("n1", "GPU-a", "20000 of 16384 MiB of memory are on record", ("default/a", "default/b"))]
    assert run(ledger, "c", request(ask(memory_mib=0))) is None
    ledger.check_invariants()
    ledger.apply(PodGone("a"))
    assert not ledger.conflicts


def test_one_slice_in_two_hands_is_a_conflict() -> None:
    ledger = one_card()
    ledger.apply(seen("a", given("n1", share("GPU-a::0"))))
    (conflict,) = ledger.apply(seen("b", given("n1", share("GPU-a::0"))))
    assert isinstance(conflict, Conflict)
    assert conflict.problem == "two pods have the same slice on record"
    ledger.apply(PodGone("a"))
    ledger.check_invariants()
    assert not ledger.conflicts
    assert ledger.book("n1") is not None


def test_a_lost_card_keeps_its_pods_visible_and_comes_back_booked() -> None:
    ledger = Ledger()
    both = node("n1", card("GPU-a"), card("GPU-b"))
    ledger.apply(both)
    ledger.apply(seen("p", given("n1", share("GPU-b::0"))))
    ledger.apply(node("n1", card("GPU-a")))
    assert ledger.lost_cards() == {"p": ("GPU-b",)}
    assert run(ledger, "q", request(ask(2))) is None
    ledger.check_invariants()
    ledger.apply(both)
    assert ledger.lost_cards() == {}
    assert free(ledger, column=1) == (9, CARD - 1000, 100)
    ledger.check_invariants()


def test_a_deleted_node_keeps_its_pods_on_record() -> None:
    ledger = one_card()
    ledger.apply(seen("p", given("n1", share("GPU-a::0"))))
    ledger.apply(NodeGone("n1"))
    ledger.check_invariants()
    ledger.apply(node("n1", card("GPU-a")))
    assert free(ledger)[1] == CARD - 1000
    ledger.check_invariants()


def test_a_pod_on_another_node_than_its_record_says_takes_nothing_there() -> None:
    ledger = one_card()
    ledger.apply(node("n2", card("GPU-z")))
    ledger.apply(seen("p", given("n1", share("GPU-a::0")), "n2"))
    assert free(ledger)[1] == CARD
    assert ledger.lost_cards() == {"p": ("GPU-a",)}


def test_a_change_of_cards_counts_the_cpu_of_the_pods_once() -> None:
    ledger = Ledger()
    ledger.apply(node("n1", card("GPU-a"), cpu_milli=8000))
    ledger.apply(seen("p", given("n1", share("GPU-a::0")), cpu_milli=3000))
    ledger.apply(seen("cpu only", None, "n1", cpu_milli=500))
    ledger.apply(node("n1", card("GPU-a"), card("GPU-b"), cpu_milli=8000))
    ledger.check_invariants()
    assert ledger.fleet.cpu_used[0] == 3500
    ledger.apply(PodGone("cpu only"))
    ledger.check_invariants()
    assert ledger.fleet.cpu_used[0] == 3000


def test_a_pod_of_which_nobody_knows_what_it_holds_closes_its_node_and_no_other() -> None:
    ledger = Ledger()
    for name in ("n1", "n2"):
        ledger.apply(node(name, card(f"GPU-{name}")))
    ledger.apply(seen("unclear", None, "n1", unreadable="cut off"))
    ledger.apply(node("n1", card("GPU-n1"), card("GPU-n1-b")))
    ledger.check_invariants()
    decision = decide.filter_nodes(ledger, request(), ["n1", "n2"], BINPACK)
    assert decision.refused() == {"n1": TEXTS[Obstacle.UNCLEAR]}
    ledger.apply(Refused(key("waits"), request(node_policy="binpack")))
    woken = ledger.apply(PodGone("unclear"))
    assert woken == [Wake((key("waits"),))]
    ledger.check_invariants()


def test_what_a_namespace_holds_is_known_by_kind_of_pod() -> None:
    ledger = one_card()
    urgent = PodTraits(priority_class="high")
    ledger.apply(seen("a", given("n1", share("GPU-a::0", 1000, 10)), traits=urgent))
    ledger.apply(seen("b", given("n1", share("GPU-a::1", 200))))
    ledger.apply(seen("c", given("n1", share("GPU-a::2", 0))))
    ledger.check_invariants()
    assert ledger.used_in_namespace("default") == {"nvidia": (1200, 10)}
    assert ledger.used_in_namespace("default", lambda traits: traits == urgent) == {"nvidia": (1000, 10)}
    ledger.apply(seen("b", given("n1", share("GPU-a::1", 200)), traits=urgent))
    ledger.check_invariants()
    assert ledger.used_in_namespace("default", lambda traits: traits == urgent) == {"nvidia": (1200, 10)}
    for uid in ("a", "b", "c"):
        ledger.apply(PodGone(uid))
        ledger.check_invariants()
    assert ledger.used_in_namespace("default") == {}


def test_health_changes_keep_the_books() -> None:
    ledger = one_card()
    ledger.apply(seen("p", given("n1", share("GPU-a::0"))))
    ledger.apply(node("n1", card("GPU-a", healthy=False)))
    ledger.check_invariants()
    assert run(ledger, "q", request()) is None
    ledger.apply(node("n1", card("GPU-a")))
    assert run(ledger, "q", request()) is not None


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param({"ready": False}, Obstacle.NOT_READY, id="the plugin of the node is not registered"),
        pytest.param({"cards": ()}, Obstacle.UNKNOWN_NODE, id="a node without cards"),
        pytest.param({"cards": (card("GPU-a", cordoned=True),)}, Obstacle.CORDONED, id="a cordoned card"),
        pytest.param({"cards": (card("GPU-a", healthy=False),)}, Obstacle.UNHEALTHY, id="an unhealthy card"),
        pytest.param({"cards": (card("GPU-a", family="ascend"),)}, Obstacle.TOO_FEW_CARDS, id="another family"),
        pytest.param({"cards": (card("GPU-a", slots=0),)}, Obstacle.SLOTS, id="no slots"),
        pytest.param({"cards": (card("GPU-a", memory_mib=999),)}, Obstacle.MEMORY, id="a card too small"),
        pytest.param({"cards": (card("GPU-a", cores=0),)}, Obstacle.CORES, id="no compute"),
    ],
)
def test_refusals_of_a_node(change: dict[str, Any], expected: Obstacle) -> None:
    ledger = Ledger()
    cards = change.pop("cards", (card("GPU-a"),))
    ledger.apply(node("n1", *cards, **change))
    decision = decide.filter_nodes(ledger, request(), ["n1", "unknown"], BINPACK)
    assert decision.codes.tolist() == [expected, Obstacle.UNKNOWN_NODE]
    placed = decide.place(ledger, request(), "n1", BINPACK)
    assert isinstance(placed, Rejection)
    assert placed.obstacle is expected


def test_a_release_wakes_the_most_urgent_pods_that_fit_together() -> None:
    ledger = one_card()
    ledger.apply(seen("big", given("n1", share("GPU-a::0", CARD))))
    wanted = [("young", 0, "2"), ("old", 0, "1"), ("vip", 5, "3"), ("huge", 9, "0")]
    for uid, priority, created in wanted:
        size = CARD + 1 if uid == "huge" else 8000
        ledger.apply(Refused(key(uid), request(ask(memory_mib=size)), priority, created))
    assert ledger.apply(PodGone("big")) == [Wake((key("vip"), key("old")))]


def two_that_wait() -> Ledger:
    """A card has become free, and the more urgent of two pods that want all of it has been woken."""
    ledger = one_card()
    ledger.apply(seen("big", given("n1", share("GPU-a::0", CARD))))
    for uid in ("first", "second"):
        ledger.apply(Refused(key(uid), request(ask(memory_mib=CARD)), created_at=uid))
    assert ledger.apply(PodGone("big")) == [Wake((key("first"),))]
    return ledger


def test_when_a_woken_pod_is_deleted_the_next_one_is_woken_at_once() -> None:
    assert two_that_wait().apply(PodGone("first")) == [Wake((key("second"),))]


def test_when_others_refuse_a_woken_pod_the_next_one_is_woken_and_that_one_no_more() -> None:
    """kube-scheduler's own filters know of CPU and affinity; what we think fits may not."""
    ledger = two_that_wait()
    again = Refused(key("first"), request(ask(memory_mib=CARD)), created_at="first")
    assert ledger.apply(again) == [Wake((key("second"),))]
    assert ledger.apply(again) == []
    assert ledger.apply(Tick(100.0)) == [Wake((key("second"),))]
    ledger.apply(seen("small", given("n1", share("GPU-a::0", 10))))
    assert ledger.apply(PodGone("small")) == [Wake((key("first"),))]


def test_a_woken_pod_that_stays_away_keeps_no_room_from_others() -> None:
    """It is woken again, less and less often, and the next one as well."""
    ledger = two_that_wait()
    ledger.apply(Tick(1.0))
    assert ledger.apply(Tick(6.0)) == [Wake((key("first"), key("second")))]
    assert ledger.apply(Tick(11.5)) == [Wake((key("second"),))]
    assert ledger.apply(Tick(16.5)) == [Wake((key("first"),))]


def test_a_woken_pod_that_goes_elsewhere_leaves_the_room_to_the_next() -> None:
    ledger = two_that_wait()
    ledger.apply(node("n2", card("GPU-b", memory_mib=10)))
    assert ledger.apply(seen("first", given("n2", share("GPU-b::0", 10)))) == [Wake((key("second"),))]


def test_a_woken_pod_that_stays_away_is_woken_again() -> None:
    ledger = one_card()
    ledger.apply(seen("big", given("n1", share("GPU-a::0", CARD))))
    ledger.apply(Tick(10.0))
    ledger.apply(Refused(key("w"), request(), 0, "1"))
    assert ledger.apply(PodGone("big")) == [Wake((key("w"),))]
    assert ledger.apply(Tick(14.9)) == []
    assert ledger.apply(Tick(15.0)) == [Wake((key("w"),))]


def test_two_releases_wake_two_pods() -> None:
    ledger = Ledger()
    for name in ("n1", "n2"):
        ledger.apply(node(name, card(f"GPU-{name}")))
        ledger.apply(seen(f"on-{name}", given(name, share(f"GPU-{name}::0", CARD))))
    for uid in ("w1", "w2", "w3"):
        ledger.apply(Refused(key(uid), request(ask(memory_mib=CARD)), 0, uid))
    assert ledger.apply(PodGone("on-n1")) == [Wake((key("w1"),))]
    assert ledger.apply(PodGone("on-n2")) == [Wake((key("w2"),))]


def reserved() -> tuple[Ledger, PodAllocation]:
    ledger = one_card()
    ledger.apply(seen("low", given("n1", share("GPU-a::0", CARD))))
    kept = given("n1", share("GPU-a::0", CARD))
    ledger.apply(Reserve(key("high"), kept, frozenset({"low"}), now=0.0))
    return ledger, kept


def test_a_reserved_share_goes_to_nobody_else() -> None:
    ledger, _ = reserved()
    ledger.check_invariants()
    assert ledger.apply(PodGone("low")) == [ReservationReady(key("high"), "n1")]
    assert run(ledger, "thief", request(ask(memory_mib=1))) is None
    assert run(ledger, "high", request(ask(memory_mib=CARD))) is not None
    assert not ledger.reservations


def test_a_reservation_ends_with_its_owner_or_its_time() -> None:
    ledger, _ = reserved()
    assert ledger.apply(Tick(600.0)) == [
        ReservationLost(key("high"), "n1", "its victims did not end in time"),
    ]
    ledger, _ = reserved()
    ledger.apply(PodGone("high"))
    assert not ledger.reservations
    ledger.check_invariants()


def test_a_reservation_does_not_survive_its_node() -> None:
    ledger, _ = reserved()
    assert ledger.apply(NodeGone("n1")) == [ReservationLost(key("high"), "n1", "its node is gone")]
    ledger.check_invariants()


def test_odd_figures_from_outside_hurt_nobody() -> None:
    """Registers and records are written by other machines: nothing in them may stop the ledger or fill its memory."""
    ledger = Ledger()
    huge = 2**60
    odd = [card(f"GPU-{n:03d}", memory_mib=huge, slots=huge, cores=huge, numa=huge) for n in range(200)]
    links = tuple(tuple(huge if a != b else -1 for b in range(200)) for a in range(200))
    out = ledger.apply(node("n1", *odd, links=links))
    assert [command.problem for command in out if isinstance(command, Conflict)] == [
        "200 cards are registered, only the first 128 are used"
    ]
    ledger.apply(node("n2", card("GPU-b")))
    ledger.apply(seen("p", given("n2", share(f"GPU-b::{huge}", huge, huge))))
    ledger.check_invariants()
    for policy in ("topology-aware", "numa", "balanced"):
        placed = run(ledger, policy, request(ask(3)), "n1", defaults=PolicyDefaults(policy, policy))
        assert placed is not None
        assert len({one.card for one in placed.containers["main"]}) == 3


def test_placing_again_gives_the_same_answer() -> None:
    ledger = one_card()
    placed = run(ledger, "a", request())
    assert decide.place(ledger, request(), "n1", BINPACK, decide.Asker("a")) == placed


def test_placing_again_is_a_new_decision_when_a_card_has_gone() -> None:
    """The node lost a card while the pod was on its way: its plugin would refuse the old decision."""
    ledger = Ledger()
    ledger.apply(node("n1", card("GPU-0"), card("GPU-1")))
    placed = run(ledger, "a", request(), defaults=SPREAD)
    assert placed is not None
    left = "GPU-1" if placed.containers["main"][0].card == "GPU-0" else "GPU-0"
    ledger.apply(node("n1", card(left)))
    again = decide.place(ledger, request(), "n1", SPREAD, decide.Asker("a"))
    assert isinstance(again, PodAllocation)
    assert [share.card for _, share in again.shares()] == [left]


def test_a_pod_with_an_assumed_share_does_not_stand_in_its_own_way() -> None:
    """A binding without an answer leaves the share assumed; kube-scheduler asks for the pod again."""
    ledger = one_card()
    whole = request(ask(memory_mib=CARD))
    placed = run(ledger, "a", whole)
    asked = [decide.filter_nodes(ledger, whole, ["n1"], BINPACK, decide.Asker(uid)).feasible for uid in ("a", "b")]
    assert (asked, decide.place(ledger, whole, "n1", BINPACK, decide.Asker("a"))) == ([["n1"], []], placed)


def test_two_containers_of_a_pod_share_cards_but_each_has_distinct_ones() -> None:
    ledger = Ledger()
    ledger.apply(node("n1", card("GPU-a"), card("GPU-b")))
    placed = run(ledger, "p", request(ask(2, 2000, name="x"), ask(2, 1000, name="y")))
    assert placed is not None
    assert [[s.card for s in shares] for shares in placed.containers.values()] == [["GPU-a", "GPU-b"]] * 2
    assert len({s.slice for _, s in placed.shares()}) == 4
