"""The grid of core limits, kernel lengths, processes and card sizes: ``python -m bench.shim_matrix [--sample]``.

Every cell is one container on a fake card with a virtual clock. The card's own record of when it was busy is the
judge: each window of one second after the time to settle is looked at, in steps of 10 ms.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.native.shim_rig import DRIVERS, SHIM, Client, Node, build
from tests.native.virtual_rig import SETTLE_MS, box_on, virtual_node

STEP_MS = 10
WINDOW_STEPS = 1000 // STEP_MS
LIMITS = (10, 30, 50, 90)
KERNELS = ("k_20us", "k_100us", "k_1ms", "k_10ms", "k_50ms", "mixed")
PROCESSES = (1, 2, 4, 8)
SM_COUNTS = (20, 80, 108, 132, 188)
MIXED = "mix k_20us k_1ms k_100us k_10ms k_20us k_5ms k_1ms"
MOST_ERROR = 2.0
LEAST_THROUGHPUT = 97.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of the grid; `kernel` is a name of the test client's or "mixed"."""

    percent: int
    kernel: str
    processes: int
    sm_count: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a cell measured: farthest a window lay from the limit, in points, and work done in per cent of the cap."""

    cell: Cell
    worst_window: float
    throughput: float
    took_seconds: float

    def holds(self) -> bool:
        """Both promises are kept."""
        return abs(self.worst_window) <= MOST_ERROR and self.throughput >= LEAST_THROUGHPUT


def run_cell(cell: Cell, directory: Path, run_ms: int = 3300) -> Outcome:
    """Let the processes launch for `run_ms` of the card's time and judge all windows after the first 300 ms."""
    began = time.perf_counter()
    node = virtual_node(directory, cell.processes, card_fields=f", smCount: {cell.sm_count}")
    box = box_on(node, "box", cell.percent)
    clients = [box.start(GPUSLICE_FAKE_RANK=str(rank)) for rank in range(cell.processes)]
    kernel = MIXED if cell.kernel == "mixed" else f"kernel {cell.kernel}"
    for client in clients:
        client.send(f"device 0\n{kernel}\nrun {run_ms}")
    first_end_ns = min(_end_of_run(client, run_ms) for client in clients)
    steps, from_ns = busy_steps(node)
    for client in clients:
        client.close()
    whole = (first_end_ns - from_ns) // (STEP_MS * 1_000_000)
    settled = (steps + [0] * whole)[SETTLE_MS // STEP_MS : whole]
    return Outcome(
        cell,
        worst_window=worst_window(settled, cell.percent),
        throughput=100 * share_of(settled) / cell.percent,
        took_seconds=time.perf_counter() - began,
    )


def _end_of_run(client: Client, run_ms: int) -> int:
    for _ in range(2):
        answer = client.answer()
        assert answer[0] == "0", f"the program could not start: {answer}"
    code, _, _, began = client.answer()
    assert code == "0", f"a launch was refused: {code}"
    return int(began) + run_ms * 1_000_000


def busy_steps(node: Node) -> tuple[list[int], int]:
    """Busy nanoseconds of the first card in each step, and when the first step began."""
    done = subprocess.run(
        [str(DRIVERS / "build" / "fakestat"), "--busy"],
        env=node.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    card = json.loads(done.stdout)["cards"][0]
    return card["busy_steps_ns"], card["busy_from_ns"]


def share_of(steps: Sequence[int]) -> float:
    """Per cent of the time in which the card was busy."""
    return 100 * sum(steps) / (len(steps) * STEP_MS * 1_000_000)


def worst_window(steps: Sequence[int], percent: int) -> float:
    """Distance from the limit, in points and with its sign, of the second that lies farthest from it."""
    sums = [0, *itertools.accumulate(steps)]
    second_ns = WINDOW_STEPS * STEP_MS * 1_000_000
    errors = [
        100 * (sums[at + WINDOW_STEPS] - sums[at]) / second_ns - percent for at in range(len(steps) - WINDOW_STEPS + 1)
    ]
    return max(errors, key=abs)


def whole_grid() -> Iterable[Cell]:
    """Every combination, 480 of them."""
    return (Cell(*point) for point in itertools.product(LIMITS, KERNELS, PROCESSES, SM_COUNTS))


def sample() -> Iterable[Cell]:
    """Every limit with every kernel; number of processes and card size take turns through all their values."""
    for number, (percent, kernel) in enumerate(itertools.product(LIMITS, KERNELS)):
        row, column = divmod(number, len(KERNELS))
        yield Cell(percent, kernel, PROCESSES[(row + column) % 4], SM_COUNTS[number % 5])


def run_cells(cells: Iterable[Cell], scratch: Path) -> list[Outcome]:
    """Measure cells one after another and print a line for each."""
    outcomes = []
    print(f"{'limit':>6}  {'kernel':8}  {'processes':>9}  {'SMs':>4}  {'worst window':>12}  {'throughput':>10}  took")
    for number, cell in enumerate(cells):
        outcome = run_cell(cell, scratch / f"cell-{number}")
        outcomes.append(outcome)
        place = f"{cell.percent:4} %  {cell.kernel:8}  {cell.processes:9}  {cell.sm_count:4}"
        figures = f"{outcome.worst_window:+12.2f}  {outcome.throughput:8.2f} %  {outcome.took_seconds:4.1f} s"
        print(place, figures, "" if outcome.holds() else "missed", sep="  ", flush=True)
    return outcomes


def main(argv: Sequence[str] | None = None) -> int:
    """Run the grid; 1 when a cell misses its promise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", action="store_true", help="24 cells instead of 480")
    for name, choices in (("limits", LIMITS), ("kernels", KERNELS), ("processes", PROCESSES), ("sms", SM_COUNTS)):
        parser.add_argument(f"--{name}", nargs="*", type=type(choices[0]), default=choices, metavar="VALUE")
    chosen = parser.parse_args(argv)
    build(DRIVERS)
    build(SHIM, "all", "test-programs")
    points = itertools.product(chosen.limits, chosen.kernels, chosen.processes, chosen.sms)
    cells = sample() if chosen.sample else (Cell(*point) for point in points)
    with tempfile.TemporaryDirectory(prefix="gpuslice-matrix-") as folder:
        outcomes = run_cells(cells, Path(folder))
    missed = [outcome for outcome in outcomes if not outcome.holds()]
    worst = max(outcomes, key=lambda outcome: abs(outcome.worst_window))
    least = min(outcome.throughput for outcome in outcomes)
    print(f"{len(outcomes)} cells, {len(missed)} missed; worst window {worst.worst_window:+.2f} points ({worst.cell}),")
    print(f"least throughput {least:.2f} % of the cap")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
