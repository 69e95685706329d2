"""Run the demo from start to verdict."""

import asyncio
import io
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Never

import structlog
from rich.console import Console
from rich.markup import escape

from gpuslice.devices.annotations import ALLOCATION
from gpuslice.devices.errors import BadConfiguration, GpusliceError
from simulator.audit import audit
from simulator.demo.nodes import DRIVERS, LIBRARY, NodeSpec
from simulator.demo.pods import Applied, Object, apply, read_manifests, refusal_of, settle
from simulator.demo.report import Report, counted
from simulator.demo.stage import Stage, stage
from simulator.inventory import cards_of, dump_node, load_nodes

EXAMPLES = (Path(__file__).parent / "examples", Path(__file__).parents[2] / "examples")
"""In an installed wheel, in a checkout."""
PIPE_WIDTH = 150
LONGEST_WORKPLACE = 28
"""Bytes; below it are sockets like gpuslice-xxxxxxxx/node-100/device-plugins/gs-nvidia-com-gpu-4194304-99999.sock."""
FLEET = Path("fleets/three-nodes.yaml")
UNSATISFIABLE = frozenset({"never-fits.yaml"})
"""Examples that must stay pending with a reason."""
FORGED = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "forged", "annotations": {ALLOCATION: '{"v":1,"node":"node-1","containers":{}}'}},
    "spec": {"containers": [{"name": "main", "image": "example.invalid/app:1"}]},
}
"""A pod that writes its own decision; admission must refuse it and name the annotation."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What to run."""

    files: Sequence[Path] = ()
    """Manifests; empty means the examples."""
    fleet: Sequence[Path] = ()
    """Inventories of nodes or clusters; empty means three nodes of eight cards."""
    keep: bool = False
    """Leave it running until interrupted."""


def run_demo(options: DemoOptions, console: Console | None = None) -> int:
    """Run the demo; 0 only if everything held.

    Raises:
        GpusliceError: It could not be set up; the text says what to do.
    """
    _require_builds()
    structlog.configure(processors=[_drop])
    report = Report(console or _console())
    try:
        return asyncio.run(_main(options, report))
    except (KeyboardInterrupt, asyncio.CancelledError):
        report.say("stopped")
        return 130
    except BaseExceptionGroup as group:
        _raise_first(group)


def _console() -> Console:
    """Write to a terminal at its width, to a file or pipe wide enough for the tables."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a check mark is no reason to fail where the locale has none
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)


def _drop(_logger: object, _method: str, _event: object) -> str:
    """Keep this process's own log lines out of the report; the daemons log to their files."""
    raise structlog.DropEvent


def _raise_first(group: BaseExceptionGroup[BaseException]) -> Never:
    """Raise the error of ours that a task group wrapped; anything else is a bug and keeps its whole story."""
    ours = group.subgroup(GpusliceError)
    while ours is not None:
        inner = ours.exceptions[0]
        if not isinstance(inner, BaseExceptionGroup):
            raise inner from None
        ours = inner
    raise group


def _require_builds() -> None:
    for path in (LIBRARY, DRIVERS / "libcuda.so.1"):
        if not path.exists():
            raise BadConfiguration(str(path), "build", "is missing", "run `make build` first")


def _workplace() -> str:
    """Return where to work: sockets have paths of at most 107 bytes, LD_PRELOAD ends a path at a space or colon."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) <= LONGEST_WORKPLACE and not set(usual) & set(" :;") else "/tmp"


def _examples() -> Path:
    return next(folder for folder in EXAMPLES if folder.is_dir())


async def _main(options: DemoOptions, report: Report) -> int:
    main_task = asyncio.current_task()
    if main_task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main_task.cancel)
    manifests = read_manifests(options.files or [_examples()])
    with tempfile.TemporaryDirectory(prefix="gpuslice-", dir=_workplace()) as folder:
        specs = _fleet(options.fleet or [_examples() / FLEET], Path(folder))
        for note in _cards_with_mig(specs):
            report.say(note)
        async with stage(Path(folder), specs, report) as running:
            await _show(running, manifests, report, may_wait=bool(options.fleet and not options.files))
            code = report.verdict()
            if options.keep:
                kubeconfig = running.plane.server.kubeconfig()
                report.say(f"\nRunning until Ctrl-C.\n  export KUBECONFIG={kubeconfig}\n  kubectl get pods -o wide")
                report.say(f"  logs: {running.plane.folder / 'logs'}   containers: {running.plane.folder}/node-*/logs")
                await asyncio.Event().wait()
            return code


async def _show(running: Stage, manifests: Sequence[tuple[str, Object]], report: Report, *, may_wait: bool) -> None:
    """Run the manifests; ``may_wait`` where they were not written for these machines."""
    with report.step(f"applied {counted(len(manifests), 'manifest')}, each pod scheduled and admitted"):
        applied = await apply(running.plane.user, manifests)
        pods = await settle(running.plane, applied)
    report.admissions(applied)
    with report.step("asked every container what it sees, and how much a greedy process gets"):
        outcomes = await running.inspect(pods)
        reasons = await running.reasons(pods)
    report.placements(pods, reasons)
    report.containers(outcomes)
    for problem in (*_unsettled(running, applied, pods, may_wait=may_wait), *await _forgery(running), *_audit(running)):
        report.problem(problem)


def _unsettled(running: Stage, applied: Sequence[Applied], pods: Sequence[Object], *, may_wait: bool) -> list[str]:
    """List the pods that did not come as far as they should."""
    found = [f"{pod.source}: admission refused it: {pod.refusal}" for pod in applied if pod.refusal]
    sources = {pod.uid: pod.source for pod in applied}
    for pod in pods:
        name, phase = pod["metadata"]["name"], pod["status"].get("phase")
        must_wait = sources[pod["metadata"]["uid"]] in UNSATISFIABLE
        if must_wait and not refusal_of(pod):
            found.append(f"{name}: should wait with a reason, but is {phase}")
        elif not must_wait and phase not in ("Running", "Succeeded") and not (may_wait and refusal_of(pod)):
            failure = running.plane.scheduler.failures.get(pod["metadata"]["uid"])
            reason = pod["status"].get("message") or refusal_of(pod) or failure or "no reason given"
            found.append(f"{name}: {phase}: {reason}")
    return found


async def _forgery(running: Stage) -> list[str]:
    """Try to create a pod that names our annotation itself."""
    refused = (await apply(running.plane.user, [("forged", FORGED)]))[0].refusal
    if ALLOCATION in refused:
        running.report.say(f"[green]✓[/] a pod that writes its own decision was refused: [dim]{escape(refused)}[/]")
        return []
    return [f"a pod with the annotation {ALLOCATION} was not refused by name: {refused or 'it was stored'}"]


def _audit(running: Stage) -> list[str]:
    server = running.plane.server
    return [f"audit: {finding}" for finding in audit(server.list("v1", "Pod"), server.list("v1", "Node"))]


def _fleet(paths: Sequence[Path], folder: Path) -> list[NodeSpec]:
    """Write one inventory file for each node of the fleet."""
    specs: dict[str, NodeSpec] = {}
    for path in paths:
        for inventory in load_nodes(path):
            if inventory.name in specs:
                raise BadConfiguration(
                    str(path), "name", f"{inventory.name} is there twice", "give each node its own name"
                )
            file = folder / f"{inventory.name}.yaml"
            file.write_text(dump_node(inventory))
            specs[inventory.name] = NodeSpec(inventory.name, file)
    return list(specs.values())


def _cards_with_mig(specs: Sequence[NodeSpec]) -> Iterator[str]:
    """Say of which cards the demo's pods, which ask for shares of whole cards, can get none."""
    for spec in specs:
        cards = [card for node in load_nodes(spec.inventory) for card in cards_of(node)]
        if partitioned := sum(card.mig is not None for card in cards):
            yield f"{spec.name}: {partitioned} of {counted(len(cards), 'card')} partitioned by MIG, not used here"
