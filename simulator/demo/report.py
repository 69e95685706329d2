"""What the demo prints: who got which card and why, what each container saw, what was refused, how long it took."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table

from simulator.demo.inspection import ContainerOutcome
from simulator.demo.pods import Applied, Object, allocation_of, refusal_of

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
                self._console.print(f"[yellow]refused[/] {pod.source}: {pod.refusal}")

    def placements(self, pods: Sequence[Object], reasons: Mapping[str, str]) -> None:
        """Show who got which card and why."""
        table = Table(title="Who got which card", title_justify="left", box=None, pad_edge=False)
        for column in ("POD", "CONTAINER", "NODE", "SLICE", "MEMORY", "CORES", "WHY"):
            table.add_column(column, overflow="fold", no_wrap=column in ("POD", "NODE"))
        for pod in pods:
            name = pod["metadata"]["name"]
            allocation = allocation_of(pod)
            if allocation is None:
                table.add_row(name, "", "[yellow]none[/]", "", "", "", refusal_of(pod) or "[red]no reason given[/]")
                continue
            reason = reasons.get(name, "")
            for container, share in allocation.shares():
                cores = f"{share.core_percent} %" if share.core_percent else "no cap"
                cores += " alone" if share.exclusive else ""
                table.add_row(
                    name, container, allocation.node, _short(share.slice), f"{share.memory_mib} MiB", cores, reason
                )
                name = reason = ""
        self._console.print(table)

    def containers(self, outcomes: Sequence[ContainerOutcome]) -> None:
        """Show what each container received and where a greedy process in it was stopped."""
        table = Table(title="What each container sees", title_justify="left", box=None, pad_edge=False)
        for column in ("CONTAINER", "ENVIRONMENT", "CUDA AND NVML SHOW", "A GREEDY PROCESS"):
            table.add_column(column, overflow="fold")
        for outcome in outcomes:
            table.add_row(
                f"{outcome.pod}/{outcome.container}",
                "\n".join(_environment(outcome.environment)),
                "\n".join(_seen(outcome)),
                "\n".join(_greedy(outcome)),
            )
            self.problems += [f"{outcome.pod}/{outcome.container}: {problem}" for problem in outcome.problems]
        self._console.print(table)

    def verdict(self) -> int:
        """Print timings and problems; return the exit code."""
        total = sum(seconds for _, seconds in self._timings)
        self._console.print(f"[dim]all steps together {total:.1f} s[/]")
        for problem in self.problems:
            self._console.print(f"[red]✗[/] {problem}")
        if self.problems:
            self._console.print(f"[red bold]{len(self.problems)} things did not hold[/]")
            return 1
        self._console.print("[green bold]Everything held.[/]")
        return 0

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(text)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


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
    return f"best by {decision['policy']} of {nodes['feasible']} nodes that fit ({nodes['considered']} looked at)"
