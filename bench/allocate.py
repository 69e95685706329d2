"""Benchmark of the device plugin: ``python -m bench.allocate [--allocations 10000] [--bursts 5] [--slices 80 720]``.

Correctness: pods race for their slices on a stub kubelet, eight at a time, two containers each that ask for the same
number of cards; a third each with preferences honoured, ignored, and without podresources.

Speed: the real daemon as a process, real pynvml on the fake driver, a real API server process, bursts of 64 pods from
the stub kubelet, whose admission calls are made and timed by a process that does nothing else; containers only pretend
to run. The baseline is a plugin that decides nothing in the same world under the same bursts.

On a node, kubelet and API server run on processors of their own; here they share two with the plugin. So both have a
lower priority than the plugin and the process that times it: what is timed is the plugin, not the wait for equipment.
Files are in memory where the machine has such a directory (as CDI files are on a node): on ext4 without a journal a new
file takes 0.4 ms of processor, 20 times as long as with one. See docs/decisions/0078.
"""

import argparse
import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import grpc
import structlog

from bench.allocate_caller import CalledElsewhere, Caller
from bench.allocate_trivial import trivial_cards
from bench.allocate_world import Outcome, race
from bench.harness import Figure, percentile, report, resident_mib
from gpuslice.cluster.client import KubeClient
from gpuslice.cluster.config import load_cluster_config
from gpuslice.cluster.resources import NODES, PODS
from gpuslice.cluster.transport import Transport
from gpuslice.devices import annotations, pods
from simulator.kubelet.api import ClusterApi
from simulator.kubelet.devicemanager import Endpoint
from simulator.kubelet.kubelet import Behaviour, Layout, StubKubelet
from simulator.kubelet.podworker import Pace
from simulator.kubelet.rig import Ask, pod
from simulator.kubelet.runtime import Driver

ROOT = Path(__file__).resolve().parent.parent
DRIVERS = ROOT / "simulator" / "drivers" / "build"
RESOURCE = "nvidia.com/gpu"
BURST = 64
IN_MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
EQUIPMENT_NICE = 10


@dataclass(slots=True)
class Speed:
    """What one plugin process showed."""

    allocate: list[float]
    prefer: list[float]
    running_seconds: list[float]
    rss_mib: float = 0.0
    registered_seconds: float = 0.0
    registered_after_ms: float = 0.0
    idle_percent: float = 0.0
    ran_ms: float = 0.0
    """Processor time of the plugin for each pod."""
    waited_ms: float = 0.0
    """Time for each pod that the plugin's threads were ready to run and had no processor: the machine's, not ours."""
    inside_p99_ms: float = 0.0
    """Within the plugin, by its own histogram: the upper bound of the bucket that holds 99 % of the calls."""


async def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Look every 2 ms until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {seconds:g} s")
        await asyncio.sleep(0.002)


def endpoint(kubelet: StubKubelet, devices: int) -> bool:
    """Tell whether the plugin has listed so many devices."""
    found: Endpoint | None = kubelet.manager.endpoints.get(RESOURCE)
    return found is not None and len(found.healthy) == devices


def start(stack: ExitStack, arguments: list[str], **environment: str) -> subprocess.Popen[bytes]:
    """Start a Python module; it is stopped with the stack."""
    # As in an image: modules are compiled once, not at each start.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env = {**inherited, "PYTHONPATH": str(ROOT), **environment}
    process = subprocess.Popen([sys.executable, *arguments], env=env, stdout=subprocess.PIPE)
    stack.callback(process.wait)
    stack.callback(process.send_signal, signal.SIGTERM)
    return process


def plugin_arguments(layout: Layout, root: Path, kubeconfig: str) -> list[str]:
    """Return the daemon's command line."""
    return [
        "-m", "deviceplugin", "--node-name", "n1", "--kubeconfig", kubeconfig,
        "--device-plugin-dir", str(layout.plugins), "--pod-resources-socket", str(layout.pod_resources),
        "--state-dir", str(root / "s"), "--cdi-dir", str(layout.cdi), "--cgroup-root", str(layout.cgroups),
        "--library-path", "/dev/null", "--metrics-host", "127.0.0.1", "--log-level", "warning",
        "--ports-file", str(root / "ports.json"),
    ]  # fmt: skip


@dataclass(slots=True)
class World:
    """An API server, a kubelet and one plugin, and what makes the kubelet's calls."""

    root: Path
    client: KubeClient
    kubelet: StubKubelet
    plugin: subprocess.Popen[bytes]
    caller: Caller
    registered_seconds: float


Command = Callable[[Layout, Path, str], list[str]]
"""The plugin's command line, from the kubelet's directories, a directory of its own, and a kubeconfig."""


@asynccontextmanager
async def world(slices: int, command: Command) -> AsyncIterator[World]:
    """Start everything; the plugin is registered with so many slices."""
    with tempfile.TemporaryDirectory(prefix="gs", dir=IN_MEMORY) as name, ExitStack() as stack:
        root = Path(name)
        environment = fake_hardware(root, slices)
        api = start(stack, ["-m", "simulator.apiserver", "--listen", "127.0.0.1:0", "--data", str(root / "api")])
        assert api.stdout is not None
        kubeconfig = json.loads(api.stdout.readline())["kubeconfig"]
        async with Transport(load_cluster_config(Path(kubeconfig)), connections=8) as transport:
            client = KubeClient(transport)
            behaviour = Behaviour(pretend=True, pace=Pace(start_retry=0.2, node_status=2.0, first_admission=0.0))
            kubelet = StubKubelet("n1", root / "k", ClusterApi(client), Driver(), behaviour)
            await kubelet.start()
            started = time.monotonic()
            plugin = start(stack, command(kubelet.layout, root, kubeconfig), **environment)
            try:
                await wait_for(lambda: endpoint(kubelet, slices), 30, "registration")
                registered_seconds = time.monotonic() - started
                listed = kubelet.manager.endpoints[RESOURCE]
                caller = Caller(kubelet.layout.plugins / listed.socket)
                listed.channel = cast(
                    "grpc.aio.Channel", CalledElsewhere(cast("grpc.aio.Channel", listed.channel), caller)
                )
                await caller.start()
                step_back(os.getpid())
                step_back(api.pid)
                yield World(root, client, kubelet, plugin, caller, registered_seconds)
                await caller.close()
            finally:
                await kubelet.shut_down()


def step_back(pid: int) -> None:
    """Give all threads of a process a lower priority than others have. There is no way back."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        thread = int(task.name)
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + EQUIPMENT_NICE)


def fake_hardware(root: Path, slices: int) -> dict[str, str]:
    """Describe a node of so many slices; return the environment that shows it to NVML."""
    inventory, state = root / "node.yaml", root / "fake"
    model = "A100-SXM4-80GB" if slices <= 160 else "GB200"
    inventory.write_text(
        f'name: n1\ndriver: "580.65.06"\ncuda: "13.0"\ncards:\n- {{model: {model}, count: {slices // 10}}}\n'
    )
    state.mkdir()
    return {
        "GPUSLICE_FAKE_INVENTORY": str(inventory), "GPUSLICE_FAKE_STATE": str(state), "LD_LIBRARY_PATH": str(DRIVERS),
    }  # fmt: skip


async def measure(slices: int, bursts: int) -> Speed:
    """Run bursts of 64 pods through the real daemon."""
    async with world(slices, plugin_arguments) as running:
        speed = await _bursts(running, await _cards(running.client), bursts)
        lines = await asyncio.to_thread(own_metrics, running.root / "ports.json")
        speed.inside_p99_ms, speed.registered_after_ms = inside_p99_ms(lines), registered_after_ms(lines)
        await asyncio.sleep(7)
        speed.idle_percent = await idle_percent(running.plugin.pid)
        speed.rss_mib = own_mib(running.plugin.pid, running.root / "fake")
        speed.registered_seconds = running.registered_seconds
    return speed


async def baseline(slices: int, bursts: int) -> Speed:
    """Run the same bursts through the plugin that decides nothing."""
    async with world(slices, lambda layout, _, __: trivial_arguments(layout, slices)) as running:
        return await _bursts(running, trivial_cards(slices), bursts)


def trivial_arguments(layout: Layout, slices: int) -> list[str]:
    """Return the command line of the plugin that decides nothing."""
    return ["-m", "bench.allocate_trivial", str(layout.plugins), str(slices)]


async def _bursts(running: World, cards: list[str], bursts: int) -> Speed:
    client, kubelet = running.client, running.kubelet
    seconds = []
    before = processor_ms(running.plugin.pid)
    for burst in range(bursts + 1):
        if burst == 1:
            # The first one warms up.
            running.caller.seconds.clear()
            before = processor_ms(running.plugin.pid)
        bodies = [
            pod(f"p{burst}-{n}", Ask("c", (f"{cards[n % len(cards)]}::{n // len(cards)}",))) for n in range(BURST)
        ]
        started = time.monotonic()
        await asyncio.gather(*(client.create(PODS, _complete(body), namespace="default") for body in bodies))
        await wait_for(lambda: sum(_is_up(w) for w in kubelet.workers.values()) == BURST, 60, "64 pods running")
        seconds.append(time.monotonic() - started)
        await asyncio.gather(
            *(client.delete(PODS, b["metadata"]["name"], namespace="default", grace_seconds=0) for b in bodies)
        )
        await wait_for(lambda: not kubelet.workers, 60, "64 pods gone")
        await asyncio.sleep(1.5)
    timed = running.caller.seconds
    if len(timed["Allocate"]) != bursts * BURST:
        raise RuntimeError(
            f"{len(timed['Allocate'])} calls were timed, not {bursts * BURST}: the plugin registered anew"
        )
    ran, waited = (
        (now - then) / bursts / BURST for now, then in zip(processor_ms(running.plugin.pid), before, strict=True)
    )
    return Speed(timed["Allocate"], timed["GetPreferredAllocation"], seconds[1:], ran_ms=ran, waited_ms=waited)


def _is_up(worker: Any) -> bool:  # noqa: ANN401  a pod worker
    return len(worker.running()) == len(worker.states)


def _complete(body: dict[str, Any]) -> dict[str, Any]:
    for container in body["spec"]["containers"]:
        container["image"] = "none"
    return {"apiVersion": "v1", "kind": "Pod", **body}


async def _cards(client: KubeClient) -> list[str]:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        node = await client.get(NODES, "n1", pods.Node)
        if text := node.metadata.annotations.get(annotations.CARDS):
            return [card.uuid for card in annotations.decode_cards("n1", text).cards]
        await asyncio.sleep(0.05)
    raise TimeoutError("the plugin did not publish its cards within 20 s")


async def idle_percent(pid: int, seconds: float = 20.0) -> float:
    """Return the processor time of an idle process, in percent of one processor.

    By the scheduler's own account: clock ticks of 10 ms are too coarse for what an idle process takes.
    """
    before, _ = processor_ms(pid)
    await asyncio.sleep(seconds)
    return (processor_ms(pid)[0] - before) / 1000 / seconds * 100


def processor_ms(pid: int) -> tuple[float, float]:
    """Return how long a process's threads have run, and how long they were ready but had no processor."""
    ran = waited = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            running, waiting, _ = path.read_text().split()
        except OSError:
            continue
        ran, waited = ran + int(running), waited + int(waiting)
    return ran / 1e6, waited / 1e6


def own_metrics(ports_file: Path) -> list[str]:
    """Read what the plugin says of itself."""
    port = json.loads(ports_file.read_text())["metrics"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines: list[str] = answer.read().decode().splitlines()
    return lines


def registered_after_ms(lines: list[str]) -> float:
    """Find the time from NVML's inventory to registration."""
    name = "gpuslice_plugin_registered_after_seconds "
    return 1000 * float(next(line for line in lines if line.startswith(name)).removeprefix(name))


def inside_p99_ms(lines: list[str]) -> float:
    """Find the 99th percentile in the plugin's own histogram of Allocate."""
    name = 'gpuslice_plugin_call_seconds_bucket{call="allocate",le="'
    counts = []
    for line in lines:
        if line.startswith(name):
            bound, _, count = line[len(name) :].partition('",resource=')
            counts.append((float(bound.replace("+Inf", "inf")), float(count.rpartition(" ")[2])))
    return next(bound for bound, count in counts if count >= counts[-1][1] * 0.99) * 1000


def own_mib(pid: int, fake_state: Path) -> float:
    """Return resident memory without the fake driver's shared region, which stands for the hardware."""
    region = 0
    current = ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            current = line.partition("/")[1] + line.partition("/")[2]
        elif line.startswith("Rss:") and current.startswith(str(fake_state)):
            region += int(line.split()[1])
    return resident_mib(pid) - region / 1024


def correctness(allocations: int) -> Outcome:
    """Race in the three modes."""
    total = Outcome()
    layers: Counter[str] = Counter()
    modes: tuple[dict[str, bool], ...] = ({}, {"honour": False}, {"listing": False})
    for seed, mode in enumerate(modes):
        with tempfile.TemporaryDirectory(prefix="gs") as name:
            found = asyncio.run(race(Path(name), allocations // len(modes), seed=seed, **mode))
        total.allocations += found.allocations
        total.wrong_cards += found.wrong_cards
        total.wrong_limits += found.wrong_limits
        total.failed_pods += found.failed_pods
        layers.update(found.layers)
        sys.stdout.write(f"race {mode or 'usual kubelet'}: {found}\n")
    total.layers = dict(layers)
    return total


def main() -> None:
    """Run everything and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--allocations", type=int, default=10_000, help="containers in the race (0: skip it)")
    parser.add_argument("--bursts", type=int, default=5, help="bursts of 64 pods for each number of slices")
    parser.add_argument("--slices", type=int, nargs="*", default=[80, 720])
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    figures: list[Figure] = []
    for slices in options.slices:
        figures += _speed_figures(slices, options.bursts, suffix="" if slices == options.slices[0] else f"_{slices}")
    if options.allocations:
        outcome = correctness(options.allocations)
        sys.stdout.write(f"identity layers: {json.dumps(outcome.layers, sort_keys=True)}\n")
        figures += [
            Figure.alone("wrong_cards", "containers", outcome.wrong_cards, target=0),
            Figure.alone("wrong_limits", "containers", outcome.wrong_limits, target=0),
            Figure.alone("failed_pods", "pods", outcome.failed_pods, target=0),
            Figure.alone("allocations", "containers", outcome.allocations),
        ]
    report("allocate: the device plugin on the stub kubelet", figures)


def _run(work: Callable[[int, int], Coroutine[Any, Any, Speed]], slices: int, bursts: int) -> Speed:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    return asyncio.run(work(slices, bursts))


def _speed_figures(slices: int, bursts: int, suffix: str) -> list[Figure]:
    # Each in a process of its own: it steps back for the plugin, and the next plugin must not inherit that.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as processes:
        speed = processes.submit(_run, measure, slices, bursts).result()
        plain = processes.submit(_run, baseline, slices, bursts).result()
    milliseconds = [seconds * 1000 for seconds in speed.allocate]
    plain_ms = [seconds * 1000 for seconds in plain.allocate]
    prefer_ms = [seconds * 1000 for seconds in speed.prefer]
    return [
        Figure.compared(
            f"allocate_p50{suffix}", "ms", percentile(milliseconds, 50), percentile(plain_ms, 50), target=1.0
        ),
        Figure.compared(
            f"allocate_p99{suffix}", "ms", percentile(milliseconds, 99), percentile(plain_ms, 99), target=5.0
        ),
        Figure.alone(f"allocate_inside_p99{suffix}", "ms", speed.inside_p99_ms, target=5.0),
        Figure.compared(
            f"prefer_p99{suffix}", "ms", percentile(prefer_ms, 99), percentile([s * 1000 for s in plain.prefer], 99)
        ),
        Figure.compared(
            f"burst_64_running{suffix}",
            "s",
            percentile(speed.running_seconds, 50),
            percentile(plain.running_seconds, 50),
            target=2.0,
        ),
        Figure.compared(f"plugin_ran{suffix}", "ms/pod", speed.ran_ms, plain.ran_ms),
        Figure.compared(f"plugin_waited_for_cpu{suffix}", "ms/pod", speed.waited_ms, plain.waited_ms),
        Figure.alone(f"plugin_rss{suffix}", "MiB", speed.rss_mib, target=60.0),
        Figure.alone(f"plugin_registered{suffix}", "s", speed.registered_seconds, target=0.7),
        Figure.alone(f"plugin_registered_after_nvml{suffix}", "ms", speed.registered_after_ms, target=30.0),
        Figure.alone(f"plugin_idle_cpu{suffix}", "%", speed.idle_percent, target=0.2),
    ]


if __name__ == "__main__":
    main()
