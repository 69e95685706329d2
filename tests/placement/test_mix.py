"""The mix of requests: typical tasks, pressure on scarce models, and when a new view of it is taken."""

import numpy as np
import pytest
from hypothesis import given as forall
from hypothesis import strategies as st

from gpuslice.devices.allocation import PodAllocation
from gpuslice.placement.columns import ratio, row_any, row_count, row_masks, row_max, row_sum
from gpuslice.placement.fleet import Fleet
from gpuslice.placement.ledger import Ledger
from gpuslice.placement.mix import Task, cpu_per_card, task_of, typical
from gpuslice.placement.outlook import Observer, Outlook
from gpuslice.placement.policies.fragments import Meter
from gpuslice.placement.policies.registry import PolicyDefaults
from tests.placement.build import ask, card, given, node, request, run, share

HALF = Task(4000, 500, 1)
WHOLE = Task(8000, 1000, 1)
EIGHT = Task(64000, 1000, 8)
CPU = Task(2000, 0, 0)


@pytest.mark.parametrize(
    ("counts", "options", "expected"),
    [
        pytest.param({HALF: 90, WHOLE: 9, EIGHT: 1}, {"percent": 95}, [(HALF, 90), (WHOLE, 9)], id="until enough"),
        pytest.param({HALF: 9, CPU: 1}, {"percent": 100, "cpu_only": False}, [(HALF, 9)], id="without CPU pods"),
        pytest.param(
            {HALF: 8, EIGHT: 1}, {"percent": 100, "by_demand": True}, [(HALF, 4000), (EIGHT, 8000)], id="by demand"
        ),
        pytest.param({}, {"percent": 95}, [], id="nothing seen"),
    ],
)
def test_typical_tasks(counts: dict[Task, int], options: dict[str, int], expected: list[tuple[Task, int]]) -> None:
    assert list(typical(counts, **options).tasks) == expected  # type: ignore[arg-type]


def test_cpu_that_comes_with_a_card() -> None:
    assert cpu_per_card({HALF: 2, CPU: 50}) == 8000
    assert cpu_per_card({}) == 1


@pytest.mark.parametrize(
    ("allocation", "expected"),
    [
        pytest.param(given("n", share("GPU-a::0", 250, 10)), Task(500, 250, 1), id="by memory"),
        pytest.param(given("n", share("GPU-a::0", 1, 60)), Task(500, 600, 1), id="by compute"),
        pytest.param(given("n", share("GPU-a::0", 1, exclusive=True)), Task(500, 1000, 1), id="the whole card"),
        pytest.param(PodAllocation("n", {}), Task(500, 0, 0), id="no card"),
    ],
)
def test_a_pod_as_a_task(allocation: PodAllocation, expected: Task) -> None:
    assert task_of(allocation, {"GPU-a": 1000}, 500, ()) == expected


def test_pressure_counts_what_pods_insist_on() -> None:
    typed = Task(0, 1000, 1, models=("A100",))
    outlook = Outlook({WHOLE: 3, typed: 1}, ("", "nvidia\nNVIDIA A100", "nvidia\nNVIDIA A10"), (0, 2000, 6000))
    assert outlook.pressure() == [0, 1_000_000, 0]


def test_the_ledger_learns_the_mix_and_takes_a_new_view_now_and_then() -> None:
    ledger = Ledger()
    ledger.apply(node("n1", *(card(f"GPU-{n}", slots=50) for n in range(8))))
    first = ledger.outlook
    assert first.counts == {}
    for number in range(110):
        run(ledger, f"p{number}", request(ask(memory_mib=100)), cpu_milli=1000)
    second = ledger.outlook
    assert second is not first
    assert sum(second.counts.values()) >= 100
    assert ledger.outlook is second


@pytest.mark.parametrize(
    ("later", "is_new"),
    [
        pytest.param({HALF: 90, WHOLE: 30}, False, id="more of the same"),
        pytest.param({HALF: 84, WHOLE: 36}, False, id="a chance difference"),
        pytest.param({HALF: 60, WHOLE: 60}, True, id="the mix moves"),
        pytest.param({HALF: 90, EIGHT: 30}, True, id="pods of a new kind"),
        pytest.param({HALF: 30}, False, id="too few to tell"),
    ],
)
def test_a_new_view_is_taken_when_the_mix_has_changed(later: dict[Task, int], is_new: bool) -> None:
    observer, fleet = Observer(), Fleet()
    for task in (*[HALF] * 90, *[WHOLE] * 30):
        observer.see(task)
    first = observer.outlook(fleet)
    for task, count in later.items():
        for _ in range(count):
            observer.see(task)
    assert (observer.outlook(fleet) is not first) == is_new
    assert observer.outlook(fleet) is observer.outlook(fleet)


def test_a_card_that_changes_its_model_in_place_is_measured_anew() -> None:
    """The same UUIDs under another model (a driver that renames it): a kind that the last view does not know."""
    ledger = Ledger()
    ledger.apply(node("n1", *(card(f"GPU-{n}", model="A") for n in range(2))))
    assert run(ledger, "p", request(), defaults=PolicyDefaults()) is not None
    ledger.apply(node("n1", *(card(f"GPU-{n}", model="B") for n in range(2))))
    assert run(ledger, "q", request(), defaults=PolicyDefaults()) is not None
    assert "nvidia\nB" in ledger.outlook.kinds


@forall(
    st.lists(st.integers(0, 1000), min_size=1, max_size=8),
    st.integers(0, 70000),
    st.dictionaries(
        st.builds(Task, st.integers(0, 9).map(lambda n: n * 8000), st.integers(1, 1000), st.integers(0, 8)),
        st.integers(1, 99),
        max_size=8,
    ),
)
def test_fragments_are_what_the_definition_says(left: list[int], cpu: int, counts: dict[Task, int]) -> None:
    """All idle share of a node is a fragment for a task that does not fit, else the share on cards too small for it."""
    mix = typical(counts, percent=100)
    meter = Meter(mix, Outlook({}, ("nvidia\n",), (0,)))
    expected = 0
    for task, weight in mix.tasks:
        fitting = [milli for milli in left if milli >= task.share_milli]
        fits = task.cards and cpu >= task.cpu_milli and len(fitting) >= task.cards
        expected += weight * (sum(left) - (sum(fitting) if fits else 0))
    kinds = [0] * len(left)
    assert meter.fragments(left, kinds, cpu) == expected
    rows = meter.columns(np.array([left]), np.array([0]), np.array([cpu]))
    assert rows.tolist() == [expected]
    trials = meter.trials(np.array([left]), np.array([[7] * len(left)]), np.array([0]), np.array([cpu]))
    assert trials[0].tolist() == meter.tries(left, kinds, cpu, [(at, 7) for at in range(len(left))])


@forall(st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**31 - 1)), min_size=3, max_size=3))
def test_narrow_columns(pairs: list[tuple[int, int]]) -> None:
    part, whole = (np.array([column], dtype=np.int64) for column in zip(*pairs, strict=True))
    assert ratio(part, whole).tolist() == [[p // w if w else 0 for p, w in pairs]]
    assert row_sum(part).tolist() == [sum(p for p, _ in pairs)]
    assert row_max(part).tolist() == [max(p for p, _ in pairs)]
    marks = part % 2 == 1
    assert row_count(marks).tolist() == [sum(p % 2 for p, _ in pairs)]
    assert row_masks(marks) == [sum((p % 2) << at for at, (p, _) in enumerate(pairs))]
    wide = np.tile(marks, 30)
    assert row_masks(wide) == [sum((p % 2) << at for at, (p, _) in enumerate(pairs * 30))]
    assert row_any(marks).tolist() == [any(p % 2 for p, _ in pairs)]
