"""Benchmark on a real control plane: ``python -m bench.cluster [--nodes 1000] [--pods 1000] [--repeat 5]``; no root.

A thousand pods wait; kube-scheduler starts; the time from the first to the last binding gives pods per second. Every
mode runs beside stock kube-scheduler and beside an extender with the same verbs that decides nothing
(bench/trivial.py), in one control plane, in turns, every second one backwards: a shared machine wanders, so look at the
ratios, which are taken within each turn. ``--bare`` adds that extender without its framework. The scheduler's
configuration is the chart's.
"""

import argparse
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from bench.harness import Figure, cpu_seconds, report
from tests.cluster.harness import chart
from tests.cluster.harness.api import Json
from tests.cluster.harness.fleet import Fleet
from tests.cluster.harness.process import Supervised, wait_until

BEST_NODES = 16
SMALL_PERCENTAGE = 5
DEADLINE_SECONDS = 300
SCHEDULER_QPS = 5000


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to schedule the pods. ``extender``: ours, trivial, bare, or none."""

    name: str
    extender: str
    scoring: str = "prioritize"
    percentage: int = 0


MODES = (
    Mode("stock", "none"),
    Mode("trivial_prioritize", "trivial"),
    Mode("ours_prioritize", "ours"),
    Mode("trivial_filter", "trivial", "filter", SMALL_PERCENTAGE),
    Mode("ours_filter", "ours", "filter", SMALL_PERCENTAGE),
)
BARE_MODES = (
    Mode("bare_prioritize", "bare"),
    Mode("bare_filter", "bare", "filter", SMALL_PERCENTAGE),
)


@dataclass(frozen=True, slots=True)
class Run:
    """What one run measured."""

    pods_per_second: float
    extender_cpu: float
    """CPU seconds of the extender for 1,000 pods."""
    scheduler_cpu: float


def waiting_pod(number: int, scheduler: str) -> Json:
    """Return a pod that asks for a slice of one card."""
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(1000 + 500 * (number % 8))}
    if scheduler == "stock":
        limits.pop("nvidia.com/gpumem")  # stock kube-scheduler knows only what nodes list as allocatable
    container = {"name": "main", "image": "example.invalid/app:1", "resources": {"limits": limits}}
    spec = {"schedulerName": scheduler, "containers": [container], "automountServiceAccountToken": False}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"pod-{number:05d}"}, "spec": spec}


class Bench:
    """One control plane for all runs."""

    def __init__(self, nodes: int, pods: int) -> None:
        self.fleet = Fleet(nodes=nodes, cards=8)
        self._pods = pods

    def __enter__(self) -> Self:
        plane = self.fleet.plane
        plane.start()
        plane.start_controller_manager("serviceaccount-controller,root-ca-certificate-publisher-controller")
        self.fleet.install_chart()
        self.fleet.create_nodes()
        wait_until(
            lambda: self.fleet.admin.find("serviceaccounts", "default", "default"),
            what="default service account",
            within_seconds=30,
        )
        plane.process("kube-controller-manager").kill()
        return self

    def __exit__(self, *_: object) -> None:
        self.fleet.stop()

    def run(self, mode: Mode) -> Run:
        """Create the pods, start the scheduler, and time the bindings."""
        scheduler = "stock" if mode.extender == "none" else "gpuslice-scheduler"
        self.fleet.create_pods([waiting_pod(number, scheduler) for number in range(self._pods)])
        extender = self._start_extender(mode)
        version = self.fleet.admin.request("GET", "/api/v1/namespaces/default/pods?limit=1")["metadata"][
            "resourceVersion"
        ]
        before = cpu_seconds(extender.pid) if extender else 0.0
        process = self.fleet.plane.start_scheduler(
            scheduler, self._configuration(mode, scheduler), kubeconfig=self.fleet.scheduler_kubeconfig()
        )
        first, last = self._bindings(version)
        spent = cpu_seconds(extender.pid) - before if extender else 0.0
        scheduler_spent = cpu_seconds(process.pid)
        process.kill()
        if extender:
            extender.kill()
        self.fleet.clear()
        per_thousand = 1000 / self._pods
        return Run((self._pods - 1) / (last - first), spent * per_thousand, scheduler_spent * per_thousand)

    def _start_extender(self, mode: Mode) -> Supervised | None:
        if mode.extender == "none":
            return None
        if mode.extender == "ours":
            flags = [f"--scoring={mode.scoring}", f"--best-nodes={BEST_NODES}"]
            # The relay runs in this process, and every byte through it would count against ours alone.
            self.fleet.start_extender(flags, relayed=False)
            self.port = self.fleet.extender.ports["listen"]
            return self.fleet.extender.process
        ports = self.fleet.folder / "trivial.json"
        ports.unlink(missing_ok=True)
        command = ["-m", "bench.trivial", str(self.fleet.scheduler_kubeconfig()), str(ports)]
        command += [f"--best-nodes={BEST_NODES}"] * (mode.scoring == "filter") + ["--bare"] * (mode.extender == "bare")
        process = Supervised("trivial", [sys.executable, *command], log=self.fleet.folder / "logs" / "trivial.log")
        wait_until(
            lambda: ports.exists() and ports.read_text(), what="trivial extender", within_seconds=30, watched=[process]
        )
        self.port = json.loads(ports.read_text())["listen"]
        return process

    def _configuration(self, mode: Mode, scheduler: str) -> dict[str, Any]:
        """Return the chart's configuration for the mode; stock is the same without extenders."""
        if mode.extender != "none":
            self.fleet.install_chart(mode.scoring, mode.percentage, extender_port=self.port)
        configuration = chart.scheduler_configuration(self.fleet.admin)
        configuration["leaderElection"] = {"leaderElect": False}
        # Stock binds through this client, whose default of 50 calls a second would be all that is measured.
        configuration["clientConnection"] = {"qps": SCHEDULER_QPS, "burst": SCHEDULER_QPS}
        if mode.extender == "none":
            configuration.pop("extenders")
            configuration.pop("percentageOfNodesToScore", None)
            configuration["profiles"] = [{"schedulerName": scheduler}]
        return configuration

    def _bindings(self, version: str) -> tuple[float, float]:
        """Return when the first and the last pod were bound, monotonic seconds, from the API server's watch."""
        bound: set[str] = set()
        first = last = 0.0
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            # The API server hangs up on a watcher that it finds slow; the next watch goes on from the last event.
            for event in self.fleet.admin.watch("pods", "default", version=version, seconds=DEADLINE_SECONDS):
                pod = event["object"]
                version = pod["metadata"]["resourceVersion"]
                if pod.get("spec", {}).get("nodeName") and pod["metadata"]["name"] not in bound:
                    last = time.monotonic()
                    first = first or last
                    bound.add(pod["metadata"]["name"])
                    if len(bound) == self._pods:
                        return first, last
        raise TimeoutError(f"{len(bound)} of {self._pods} pods bound within {DEADLINE_SECONDS} s")


def figures(runs: dict[str, list[Run]]) -> list[Figure]:
    """Return medians beside their baselines, and the medians of the ratios of each turn."""

    def rates(name: str) -> list[float]:
        return [run.pods_per_second for run in runs[name]]

    def cpu(name: str) -> list[float]:
        return [run.extender_cpu for run in runs[name]]

    found = [Figure.alone("cluster_stock", "pods/s", statistics.median(rates("stock")))]
    for name, ours, theirs, target in (
        ("cluster_prioritize", "ours_prioritize", "trivial_prioritize", 0.9),
        ("cluster_filter", "ours_filter", "trivial_filter", 0.9),
        ("cluster_filter_to_stock", "ours_filter", "stock", 0.8),
        ("cluster_prioritize_to_bare", "ours_prioritize", "bare_prioritize", None),
        ("cluster_filter_to_bare", "ours_filter", "bare_filter", None),
    ):
        if theirs in runs:
            found.append(Figure.paired(name, "pods/s", rates(ours), rates(theirs), target=target))
    for scoring in ("prioritize", "filter"):
        spent = cpu(f"ours_{scoring}"), cpu(f"trivial_{scoring}")
        found.append(Figure.paired(f"extender_cpu_{scoring}", "s/1000 pods", *spent, target=2.0))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run all modes in turns and print the medians."""
    parser = argparse.ArgumentParser(description="pods per second on a real control plane")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--bare", action="store_true")
    arguments = parser.parse_args(argv)
    modes = MODES + BARE_MODES * arguments.bare
    runs: dict[str, list[Run]] = defaultdict(list)
    with Bench(arguments.nodes, arguments.pods) as bench:
        for turn in range(arguments.repeat):
            for mode in modes if turn % 2 == 0 else modes[::-1]:
                run = bench.run(mode)
                runs[mode.name].append(run)
                print(
                    f"turn {turn + 1}: {mode.name:20} {run.pods_per_second:6.0f} pods/s, CPU s per 1,000 pods: "
                    f"extender {run.extender_cpu:.2f}, scheduler {run.scheduler_cpu:.2f}",
                    flush=True,
                )
    report(f"{arguments.pods} pods, {arguments.nodes} nodes, medians of {arguments.repeat}", figures(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
