"""The promise of the core limit over the grid of limits, kernel lengths, processes and card sizes."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from bench.shim_matrix import KERNELS, LIMITS, PROCESSES, SM_COUNTS, Cell, run_cell, sample, share_of, worst_window


def name(cell: Cell) -> str:
    return f"{cell.percent} % of {cell.kernel} in {cell.processes} processes on {cell.sm_count} SMs"


@pytest.mark.parametrize("cell", list(sample()), ids=name)
def test_every_second_is_within_two_points_and_the_share_is_used(built: None, tmp_path: Path, cell: Cell) -> None:
    assert run_cell(cell, tmp_path).holds()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("percent", LIMITS)
@pytest.mark.parametrize("processes", PROCESSES)
def test_the_whole_grid_holds(built: None, tmp_path: Path, percent: int, processes: int) -> None:
    cells = [Cell(percent, kernel, processes, sm_count) for kernel in KERNELS for sm_count in SM_COUNTS]
    outcomes = [run_cell(cell, tmp_path / str(number)) for number, cell in enumerate(cells)]
    assert [outcome for outcome in outcomes if not outcome.holds()] == []


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param([3_000_000] * 150, 0.0, id="even"),
        pytest.param([3_000_000] * 100 + [4_000_000] * 100, 10.0, id="the second half is ten points over"),
        pytest.param([0] * 30 + [3_000_000] * 200, -9.0, id="a pause of 300 ms within one window"),
        pytest.param(
            [3_000_000] * 100 + [5_000_000] * 10 + [3_000_000] * 100, 2.0, id="a window between whole seconds"
        ),
    ],
)
def test_the_judge_finds_the_worst_second(steps: Sequence[int], expected: float) -> None:
    assert worst_window(steps, 30) == pytest.approx(expected)
    assert share_of(steps) == pytest.approx(sum(steps) / len(steps) / 100_000)
