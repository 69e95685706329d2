"""What the demo prints: who got which card and why, what each container saw, what was refused, how long it took."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from simulator.demo.inspection import ContainerOutcome
from simulator.demo.pods import Applied, Object, allocation_of, refusal_of

INDENT = 2
TABLE_WIDTH = 120
"""Columns; in a narrower terminal tables break names in the middle, so their rows are printed as lines."""
SHOWN_VARIABLES = ("NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT")


class Report:
    """Prints as things happen and remembers what did not hold."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._timings: list[tuple[str, float]] = []
        self.problems: list[str] = []

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Time a step and say that it is done."""
        start = time.monotonic()
        with self._console.status(what) if self._console.is_terminal else _nothing():
            yield
        took = time.monotonic() - start
        self._timings.append((what, took))
        self._console.print(f"[green]✓[/] {what} [dim]{took:.1f} s[/]")

    def problem(self, text: str) -> None:
        """Note something that did not hold."""
        self.problems.append(text)

    def admissions(self, applied: Sequence[Applied]) -> None:
        """Show which manifests admission refused."""
        for pod in applied:
            if pod.refusal:
                self._console.print(f"[yellow]refused[/] {pod.source}: {escape(pod.refusal)}")

    def placements(self, pods: Sequence[Object], reasons: Mapping[str, str]) -> None:
        """Show who got which card and why."""
        rows = [row for pod in pods for row in _placement(pod, reasons)]
        self._rows("Who got which card", ("POD", "CONTAINER", "NODE", "SLICE", "MEMORY", "CORES", "WHY"), rows)

    def containers(self, outcomes: Sequence[ContainerOutcome]) -> None:
        """Show what each container received and where a greedy process in it was stopped."""
        rows = [
            (
                f"{outcome.pod}/{outcome.container}",
                "\n".join(_environment(outcome.environment)),
                "\n".join(_seen(outcome)),
                "\n".join(_greedy(outcome)),
            )
            for outcome in outcomes
        ]
        self._rows(
            "What each container sees", ("CONTAINER", "ENVIRONMENT", "CUDA AND NVML SHOW", "A GREEDY PROCESS"), rows
        )
        if rows:
            self._console.print("[dim]The CUDA context of the greedy process counts against the share, too.[/]")
        for outcome in outcomes:
            self.problems += [f"{outcome.pod}/{outcome.container}: {problem}" for problem in outcome.problems]

    def verdict(self) -> int:
        """Print timings and problems; return the exit code."""
        total = sum(seconds for _, seconds in self._timings)
        self._console.print(f"[dim]all steps together {total:.1f} s[/]")
        for problem in self.problems:
            self._console.print(f"[red]✗[/] {escape(problem)}")
        if self.problems:
            self._console.print(f"[red bold]{counted(len(self.problems), 'thing')} did not hold[/]")
            return 1
        self._console.print("[green bold]Everything held.[/]")
        return 0

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(text)

    def _rows(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print rows below a title: as a table, or where that is too wide as a heading and lines for each."""
        self._console.print(f"\n[bold]{title}[/]")
        if self._console.width >= TABLE_WIDTH:
            table = Table(box=None, pad_edge=False)
            for column in columns:
                table.add_column(column, overflow="fold", no_wrap=column in ("POD", "NODE"))
            for row in rows:
                table.add_row(*row)
            self._console.print(table)
            return
        for first, *rest in rows:
            if first:
                self._console.print(f"[bold]{first}[/]", highlight=False)
            for line in _packed(rest, self._console.width - INDENT):
                self._console.print(Padding(line, (0, 0, 0, INDENT)), highlight=False)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def counted(number: int, noun: str) -> str:
    """Put a number before a regular noun: ``1 node``, ``2 nodes``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _packed(cells: Sequence[str], width: int) -> Iterator[str]:
    """Put as many cells on a line as fit; a cell of several lines stands alone."""
    line = ""
    for cell in filter(None, cells):
        joined = f"{line}  {cell}" if line else cell
        if "\n" not in joined and len(joined) <= width:
            line = joined
            continue
        if line:
            yield line
        line = cell
    if line:
        yield line


def _placement(pod: Object, reasons: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """Tell a pod's slices, one row each; the first row names the pod and says why."""
    name = pod["metadata"]["name"]
    allocation = allocation_of(pod)
    if allocation is None:
        where, why = _without_cards(pod)
        yield name, "", where, "", "", "", why
        return
    why = escape(reasons.get(name, ""))
    for container, share in allocation.shares():
        cores = f"{share.core_percent} %" if share.core_percent else "no cap"
        cores += " alone" if share.exclusive else ""
        yield name, container, allocation.node, _short(share.slice), f"{share.memory_mib} MiB", cores, why
        name = why = ""


def _without_cards(pod: Object) -> tuple[str, str]:
    """Tell where a pod without an allocation runs, or why it waits."""
    if node := pod["spec"].get("nodeName"):
        return node, "asks for no card"
    return "[yellow]none[/]", escape(refusal_of(pod)) or "[red]no reason given[/]"


def _short(slice_name: str) -> str:
    """Shorten a UUID for the eye: the first group is unique among a node's cards."""
    card, _, number = slice_name.rpartition("::")
    return f"{card[:12]}…::{number}" if len(card) > 13 else slice_name


def _environment(variables: Mapping[str, str]) -> Iterator[str]:
    for name, value in sorted(variables.items()):
        if name.startswith(SHOWN_VARIABLES):
            shown = ",".join(f"{uuid[:12]}…" for uuid in value.split(",")) if value.startswith("GPU-") else value
            yield f"{name}={shown}"


def _seen(outcome: ContainerOutcome) -> Iterator[str]:
    if outcome.devices is None:
        yield "[red]nothing[/]"
        return
    for cuda in outcome.devices.cuda:
        nvml = next((card.total_mib for card in outcome.devices.nvml if card.card == cuda.card), None)
        both = f"{cuda.total_mib} MiB" if nvml == cuda.total_mib else f"{cuda.total_mib} MiB, NVML {nvml} MiB"
        yield f"{cuda.card[:12]}… {both}"


def _greedy(outcome: ContainerOutcome) -> Iterator[str]:
    for share, found in zip(outcome.shares, outcome.refusals, strict=False):
        yield f"got {found.granted_mib} of {share.memory_mib} MiB, then {found.result_name}"


def reason_of(decision: Mapping[str, Any]) -> str:
    """Put the extender's explanation of a placed pod into one line."""
    nodes = decision["nodes"]
    feasible, considered = nodes["feasible"], nodes["considered"]
    fitting = (
        "the only node that fits" if feasible == 1 else f"best by {decision['policy']} of {feasible} nodes that fit"
    )
    return f"{fitting} ({considered} looked at)"
