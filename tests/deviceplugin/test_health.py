"""Which cards are out of order, event by event, on a clock of numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin import health
from deviceplugin.health import HealthBook, HealthPolicy
from gpuslice.nvml.events import CardEvent, Probe, Signal

A, B = "GPU-a", "GPU-b"
BOTH = frozenset({A, B})
POLICY = HealthPolicy(quiet_seconds=60, clean_probes=3)


def xid(number: int, uuid: str | None = A) -> CardEvent:
    return CardEvent(uuid, Signal.XID, number)


def book(*events: CardEvent, at: float = 0) -> HealthBook:
    made = HealthBook(POLICY)
    for event in events:
        made.event(event, BOTH, at)
    return made


@pytest.mark.parametrize(
    ("event", "sick"),
    [
        pytest.param(xid(79), {A}, id="a critical XID takes its card"),
        *(pytest.param(xid(n), set(), id=f"application XID {n} is ignored") for n in (13, 31, 43, 45, 68, 109)),
        pytest.param(xid(94), {A}, id="an XID that nobody has listed counts as critical"),
        pytest.param(CardEvent(B, Signal.DOUBLE_BIT_ECC), {B}, id="a double-bit error takes its card"),
        pytest.param(xid(79, None), {A, B}, id="an event without a card counts against all, never against none"),
        pytest.param(xid(79, "GPU-unknown"), {A, B}, id="an event of a card we do not know counts against all"),
        pytest.param(CardEvent(A, Signal.MIG_CHANGED), set(), id="a MIG change is no illness"),
    ],
)
def test_events(event: CardEvent, sick: set[str]) -> None:
    assert set(book(event).sick) == sick


@pytest.mark.parametrize(
    ("probes", "now", "healthy"),
    [
        pytest.param(3, 61, True, id="quiet and clean: healthy again"),
        pytest.param(3, 59, False, id="clean but not quiet for long enough"),
        pytest.param(2, 61, False, id="quiet but too few clean probes"),
    ],
)
def test_recovery(probes: int, now: float, healthy: bool) -> None:
    made = book(xid(79))
    for _ in range(probes):
        made.probe(Probe(A), now)
    assert (A not in made.sick) is healthy


def test_the_drivers_recommendation_keeps_a_card_out() -> None:
    made = book(xid(79))
    for _ in range(5):
        made.probe(Probe(A, recovery_action=1), 100)
    made.probe(Probe(A), 101)
    assert made.sick[A].clean_probes == 1


def test_a_lost_card_recovers_only_when_its_handle_is_back() -> None:
    made = HealthBook(POLICY)
    made.probe(Probe(A, problem="GPU is lost", lost=True), 0)
    for second in range(1, 100):
        made.probe(Probe(A, problem="GPU is lost", lost=True), second)
    assert A in made.sick
    for second in (200, 201, 202):
        made.probe(Probe(A), second)
    assert A not in made.sick


def test_each_relapse_doubles_the_quiet_time() -> None:
    made, now, quiet = book(), 0.0, []
    for _ in range(4):
        made.event(xid(79), BOTH, now)
        quiet.append(made.quiet_for(made.sick[A]))
        now += quiet[-1]
        for _ in range(3):
            made.probe(Probe(A), now)
    assert quiet == [60, 120, 240, 480]


def test_a_recovery_that_lasted_is_forgiven() -> None:
    made = book(xid(79))
    for _ in range(3):
        made.probe(Probe(A), 60)
    made.event(xid(79), BOTH, 60 + POLICY.relapse_seconds)
    assert made.quiet_for(made.sick[A]) == 60


@pytest.mark.parametrize(
    ("content", "boot", "taken"),
    [
        pytest.param(health.encode(book(xid(79)), "boot-1"), "boot-1", {A}, id="the same boot"),
        pytest.param(health.encode(book(xid(79)), "boot-1"), "boot-2", set(), id="a reboot reset the cards"),
        pytest.param(b"{", "boot-1", set(), id="a damaged file"),
        pytest.param(b"", "boot-1", set(), id="an empty file"),
    ],
)
def test_the_state_survives_the_process_but_not_the_boot(content: bytes, boot: str, taken: set[str]) -> None:
    fresh = HealthBook(POLICY)
    health.restore(fresh, content, boot)
    assert set(fresh.sick) == taken


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("xid"), st.sampled_from([13, 48, 79, 94])),
            st.tuples(st.just("probe"), st.sampled_from([0, 1])),
        ),
        max_size=60,
    )
)
def test_a_card_is_never_healthy_within_the_quiet_time_after_a_bad_sign(story: list[tuple[str, int]]) -> None:
    made, last_bad = HealthBook(POLICY), float("-inf")
    for second, (kind, value) in enumerate(story):
        now = second * 10.0
        if kind == "xid":
            made.event(xid(value), BOTH, now)
            last_bad = now if value != 13 else last_bad
        else:
            made.probe(Probe(A, recovery_action=value), now)
            last_bad = now if value else last_bad
        assert A in made.sick or now - last_bad >= POLICY.quiet_seconds
