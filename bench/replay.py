"""Packing: how much of the openb cluster each policy fills, and what a decision costs on the way.

    python -m bench.replay [--seeds 42-44] [--policies fgd,balanced] [--data DIR]

Figures are percent of all cards allocated when 100 % and 130 % have been asked for, beside published FGD; and the
processor time of a decision (filter, place and booking) on 1,213 nodes.
"""

import argparse
import csv
import gzip
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from bench.harness import Figure, report
from gpuslice.placement.policies.registry import PolicyDefaults
from simulator.replay.arrivals import recorded
from simulator.replay.inflation import run_inflation
from simulator.replay.machine import Machine, arrival_of, mix_of
from simulator.replay.trace import read_nodes, read_pods

DATA = Path(__file__).parents[1] / "tests" / "data" / "openb"
TARGETS = {"best-fit": (92.8, 93.0), "fgd": (95.2, 95.35), "fgd-plus": (95.8, 95.9), "balanced": (95.3, 95.4)}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.replay")
    parser.add_argument("--seeds", default="42-44")
    parser.add_argument("--policies", default=",".join(TARGETS))
    parser.add_argument("--data", type=Path, default=DATA)
    options = parser.parse_args(argv)
    first, _, last = options.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    figures: list[Figure] = []
    for policy in options.policies.split(","):
        figures.extend(measure(options.data, policy, seeds))
    report(f"openb default trace, seeds {options.seeds}", figures)
    return 0


def measure(data: Path, policy: str, seeds: Sequence[int]) -> list[Figure]:
    """Replay the default trace and compare with published FGD on the same seeds."""
    nodes, pods = (
        read_nodes(data / "openb_node_list_gpu_node.csv.gz"),
        read_pods(data / "openb_pod_list_default.csv.gz"),
    )
    offers, mix = [arrival_of(pod) for pod in pods], mix_of(pods)
    found: dict[str, list[float]] = {"100": [], "130": []}
    started, decisions = time.process_time(), 0
    for seed in seeds:
        machine = Machine(nodes, PolicyDefaults(policy, policy), mix)
        arrivals = recorded(data / "openb_arrival_orders.npz", "default", seed, pods, nodes)
        machine.set_rank(arrivals.ranks or ())
        curve = run_inflation(machine, pods, offers, arrivals)
        decisions += len(arrivals.order)
        points = curve.points(130)
        for at, values in found.items():
            values.append(points[at])
    spent = time.process_time() - started
    baseline = published(data, seeds)
    targets = dict(zip(found, TARGETS.get(policy, (None, None)), strict=True))
    figures = [
        Figure.compared(f"{policy} allocated at {at} %", "%", fmean(values), baseline[at], target=targets[at])
        for at, values in found.items()
    ]
    return [*figures, Figure.alone(f"{policy} decision", "ms", 1000 * spent / decisions, target=0.9)]


def published(data: Path, seeds: Sequence[int]) -> dict[str, float]:
    """Return the published means of FGD on these seeds."""
    text = gzip.decompress((data / "fgd_published_results.csv.gz").read_bytes()).decode()
    wanted = {str(seed) for seed in seeds}
    rows = [
        row
        for row in csv.DictReader(text.splitlines())
        if row["workload"] == "openb_pod_list_default" and row["policy"] == "06-FGD" and row["seed"] in wanted
    ]
    return {at: fmean(float(row[f"alloc_{at}"]) for row in rows) for at in ("100", "130")}


if __name__ == "__main__":
    sys.exit(main())
