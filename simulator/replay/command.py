"""``gpuslice replay``: what a policy would have made of recorded arrivals."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuslice.devices.errors import BadConfiguration, GpusliceError
from gpuslice.placement.policies.registry import NAMES, PolicyDefaults, known_names
from simulator.replay.arrivals import Arrivals, recorded, shuffled, trace_name
from simulator.replay.departures import Loss, run_departures
from simulator.replay.inflation import Curve, run_inflation
from simulator.replay.machine import Machine, arrival_of, mix_of
from simulator.replay.plot import draw
from simulator.replay.report import inflation_object, loss_object, table
from simulator.replay.trace import TraceNode, TracePod, read_nodes, read_pods


@dataclass(frozen=True, slots=True)
class Lists:
    """What is replayed."""

    nodes: list[TraceNode]
    pods: list[TracePod]
    trace: str

    def machine(self, defaults: PolicyDefaults, *, knows_mix: bool) -> Machine:
        """Return an empty cluster."""
        return Machine(self.nodes, defaults, mix_of(self.pods) if knows_mix else None)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 1 when the input is wrong (with one line that says why)."""
    options = _parser().parse_args(argv)
    try:
        run(options)
    except GpusliceError as error:
        print(f"gpuslice replay: {error}", file=sys.stderr)
        return 1
    return 0


def run(options: argparse.Namespace) -> None:
    """Replay every policy asked for and print what came of it."""
    lists = Lists(read_nodes(options.nodes), read_pods(options.pods), trace_name(options.pods))
    seeds = _seeds(options.seeds)
    results = []
    curves: dict[str, list[Curve]] = {}
    for name in options.policy or ["balanced"]:
        defaults = _defaults(name, options.card_policy)
        label = name if options.card_policy is None else f"{name}/{options.card_policy}"
        if options.departures is not None:
            losses = {seed: _departures(lists, defaults, options, seed) for seed in seeds}
            results.append(loss_object(label, losses, options.departures))
        else:
            found = {seed: _inflation(lists, defaults, options, seed) for seed in seeds}
            curves[label] = list(found.values())
            results.append(inflation_object(label, found, options.arrived))
    if options.plot is not None:
        options.plot.write_text(draw(curves, options.arrived))
    if options.json:
        print(json.dumps(results[0] if len(results) == 1 else {"runs": results}))
    else:
        print(table(results))


def _inflation(lists: Lists, defaults: PolicyDefaults, options: argparse.Namespace, seed: int) -> Curve:
    machine = lists.machine(defaults, knows_mix=options.mix == "trace")
    arrivals = _arrivals(lists, options, seed, machine.capacity_milli)
    if arrivals.ranks is not None:
        machine.set_rank(arrivals.ranks)
    return run_inflation(machine, lists.pods, [arrival_of(pod) for pod in lists.pods], arrivals)


def _arrivals(lists: Lists, options: argparse.Namespace, seed: int, capacity_milli: int) -> Arrivals:
    target = int(capacity_milli * options.arrived / 100)
    if options.order is None:
        return shuffled(lists.pods, seed, target)
    arrivals = recorded(options.order, lists.trace, seed, lists.pods, lists.nodes)
    demand = 0
    for at, position in enumerate(arrivals.order):
        demand += lists.pods[position].demand_milli
        if demand > target:
            return Arrivals(arrivals.order[:at], arrivals.ranks)
    return arrivals


def _departures(lists: Lists, defaults: PolicyDefaults, options: argparse.Namespace, seed: int) -> Loss:
    machine = lists.machine(defaults, knows_mix=options.mix == "trace")
    offers = [arrival_of(pod) for pod in lists.pods]
    return run_departures(machine, lists.pods, offers, load=options.departures, seed=seed)


def _defaults(node: str, card: str | None) -> PolicyDefaults:
    for text in (node, *([card] if card is not None else [])):
        if len(known_names(text)) != len(text.split(",")):
            raise BadConfiguration("--policy", text, "is not a policy", f"use one of {', '.join(NAMES)}")
    return PolicyDefaults(node=node, card=card or node)


def _seeds(text: str) -> list[int]:
    """Read ``42``, ``42,44`` or ``42-51``."""
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.strip().isdecimal() or (dash and not last.strip().isdecimal()):
            raise BadConfiguration("--seeds", text, "is not a list of seeds", "write 42 or 42,43 or 42-51")
        seeds.extend(range(int(first), int(last or first) + 1))
    if not seeds:
        raise BadConfiguration("--seeds", text, "is empty", "write 42 or 42,43 or 42-51")
    return seeds


def _percent(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1000:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1000")
    return value


def _load(text: str) -> float:
    value = float(text)
    if not 0 < value <= 10:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 10")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpuslice replay", description="Replay recorded arrivals against the placement code of the scheduler."
    )
    add = parser.add_argument
    add("--nodes", type=Path, required=True, metavar="CSV", help="node list (openb format, .gz allowed)")
    add("--pods", type=Path, required=True, metavar="CSV", help="pod list (openb format, .gz allowed)")
    add("--policy", action="append", metavar="P", help=f"one of {', '.join(NAMES)}; repeat to compare")
    add("--card-policy", metavar="P", help="another policy between the cards of a node")
    add("--arrived", type=_percent, default=130.0, metavar="PCT", help="stop when so much has been asked for (130)")
    add("--seeds", default="42", metavar="LIST", help="42, 42,44 or 42-51")
    add("--order", type=Path, metavar="NPZ", help="recorded arrival orders; shuffled by seed without")
    add("--mix", choices=("trace", "learned"), default="trace", help="whether the mix of requests is known beforehand")
    add("--departures", type=_load, metavar="LOAD", help="pods also end; report what is refused at this offered load")
    add("--json", action="store_true", help="print one JSON object")
    add("--plot", type=Path, metavar="SVG", help="draw the allocation curves")
    return parser
