"""When work runs, on the virtual clock: every figure here is exact."""

from collections.abc import Sequence
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from tests.native.drivers.rig import Node

CARD = "cards: [{model: T4}]\ncontextMiB: 0\n"
NO_WAIT = {"GPUSLICE_FAKE_CLOCK": "virtual"}
START = ["init", "context 0"]
START_NS = 1_000_000_000
"""Where the virtual clock begins."""


def run_together(node: Node, client: Path, scripts: Sequence[Sequence[str]]) -> list[list[list[str]]]:
    """Run one program a script at the same virtual time; return the words of their answers, without the start's."""
    environment = node.environment | NO_WAIT | {"GPUSLICE_FAKE_PARTICIPANTS": str(len(scripts))}
    running = [
        Popen(
            [client, "-c", *START, *script], env=environment | {"GPUSLICE_FAKE_RANK": str(rank)}, stdout=PIPE, text=True
        )
        for rank, script in enumerate(scripts)
    ]
    try:
        answers = [program.communicate(timeout=30)[0] for program in running]
    finally:
        for program in running:
            program.kill()
            program.communicate()
    return [[line.split() for line in text.splitlines()[len(START) :]] for text in answers]


def values(answers: list[list[str]], position: int) -> list[str]:
    return [words[position] for words in answers if len(words) > position]


def test_kernels_of_a_process_run_one_after_another(tmp_path: Path, client: Path) -> None:
    script = [
        "sleep 0",
        "stream",
        "stream",
        "record",
        "launch k_5ms 3 0",
        "launch k_500us 4 1",
        "record",
        "sync",
        "now",
        "elapsed 0 1",
    ]
    [answers] = run_together(Node(tmp_path, CARD), client, [script])
    assert answers[-2:] == [["0", str(START_NS + 17_000_002)], ["0", "17.0000"]]


def test_an_event_is_not_reached_before_its_work(tmp_path: Path, client: Path) -> None:
    script = ["sleep 0", "launch k_1ms 1", "record", "query 0", "sleep 500000", "query 0", "sleep 600000", "query 0"]
    [answers] = run_together(Node(tmp_path, CARD), client, [script])
    assert [answers[i][0] for i in (3, 5, 7)] == ["600", "600", "0"]


@pytest.mark.parametrize(
    ("sharing", "first_ends", "second_ends"),
    [
        pytest.param("timeslice", 18_000_000, 20_000_000, id="time slices of 2 ms in turn"),
        pytest.param("mps", 20_000_000, 20_000_000, id="mps: both at half speed"),
    ],
)
def test_two_processes_share_the_device(
    tmp_path: Path, client: Path, sharing: str, first_ends: int, second_ends: int
) -> None:
    script = ["sleep 1000000", "launch k_10ms 1", "sleep 0", "sync", "now"]
    node = Node(tmp_path, f"{CARD}sharing: {sharing}\n")
    answers = run_together(node, client, [script, script])
    ends = [int(program[-1][1]) - START_NS - 1_000_000 for program in answers]
    assert ends == [first_ends, second_ends]


def test_the_same_run_gives_the_same_figures(tmp_path: Path, client: Path) -> None:
    scripts = [
        ["sleep 10000", *["launch k_700us 1", "sleep 0", "sync"] * 5, "now"],
        ["sleep 10000", *["launch k_3ms 1", "sync"] * 3, "now"],
        ["sleep 500000", *["launch k_50us 7", "sync", "sleep 123456"] * 4, "now"],
    ]
    runs = [run_together(Node(tmp_path / str(i), CARD), client, scripts) for i in range(3)]
    assert runs[0] == runs[1] == runs[2]


def test_a_short_kernel_is_measured_without_its_neighbours_queue(tmp_path: Path, client: Path) -> None:
    neighbour = ["sleep 1000", "launch k_50ms 1", "sync"]
    measured = ["sleep 2000", "record", "launch k_100us 1", "record", "sync", "elapsed 0 1"]
    answers = run_together(Node(tmp_path, CARD), client, [neighbour, measured])
    assert answers[1][-1] == ["0", "0.1000"]


def test_a_participant_that_dies_does_not_stop_the_clock(tmp_path: Path, client: Path) -> None:
    node = Node(tmp_path, CARD, {"GPUSLICE_FAKE_FAULTS": "kill cuCtxSynchronize after 2"})
    short = ["sleep 1000", "launch k_1ms 1", "sync", "now"]
    doomed = ["sleep 1000", *["launch k_1ms 1", "sync"] * 3, "now"]
    answers = run_together(node, client, [short, doomed])
    assert answers[0][-1][0] == "0"
    assert len(answers[1]) < len(doomed)
