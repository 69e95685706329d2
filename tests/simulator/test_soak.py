"""Minutes of life with everything failing at random: no slice ever has two owners, and in the end nothing is lost."""

import asyncio
import contextlib
import io
import itertools
import json
import os
import random
import signal
import tempfile
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gpuslice.cluster.errors import ApiError, Unreachable
from gpuslice.cluster.resources import PODS
from simulator.apiserver.faults import matching
from simulator.audit import audit
from simulator.demo.nodes import NodeSpec
from simulator.demo.pods import allocation_of, refusal_of
from simulator.demo.report import Report
from simulator.demo.stage import Stage, stage
from simulator.inventory import dump_node, load_nodes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.xdist_group("demo")]
Object = dict[str, Any]
NODES, CARDS, PODS_AT_MOST = 3, 4, 120
FAULT_SECONDS, SETTLE_SECONDS = 60.0, 60.0
SCHEDULER = "system:serviceaccount:gpuslice-system:gpuslice-scheduler"
NODE = "system:serviceaccount:gpuslice-system:gpuslice-node"
SHAPES = (
    *[{"gpu": 1, "gpumem": memory, "gpucores": cores} for memory, cores in ((1000, 0), (20_000, 30), (40_000, 50))],
    {"gpu": 2, "gpumem": 10_000, "gpucores": 20},
    {"gpu": 1, "gpucores": 100},
    {"gpu": 1, "gpumem-percentage": 25, "gpucores": 25},
)
STUBBORN = ["sh", "-c", "trap '' TERM; sleep 1000 & wait; wait"]


def pod(name: str, draw: random.Random) -> Object:
    def container(title: str) -> Object:
        limits = {f"nvidia.com/{key}": str(value) for key, value in draw.choice(SHAPES).items()}
        command = STUBBORN if draw.random() < 0.15 else ["sleep", "1000"]
        return {"name": title, "image": "none", "command": command, "resources": {"limits": limits}}

    containers = [container(title) for title in ("a", "b")[: draw.choice((1, 1, 1, 2))]]
    spec = {"terminationGracePeriodSeconds": draw.choice((0, 1, 3)), "containers": containers}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


async def churn(running: Stage, names: list[str], draw: random.Random) -> None:
    """Create, delete, force-delete and re-create pods of the same names until cancelled."""
    user = running.plane.user
    while True:
        name = draw.choice(names)
        with contextlib.suppress(ApiError, Unreachable):
            if draw.random() < 0.5:
                grace_seconds = draw.choice((None, None, 0))
                await user.delete(PODS, name, namespace="default", grace_seconds=grace_seconds)
            await user.create(PODS, pod(name, draw), namespace="default")
        await asyncio.sleep(draw.uniform(0.02, 0.25))


class Chaos:
    """Everything that can go wrong outside the daemons, and their deaths."""

    def __init__(self, running: Stage, draw: random.Random) -> None:
        self._server, self._supervisor, self._draw = running.plane.server, running.plane.supervisor, draw
        self._kubelets = list(running.kubelets.values())
        self.over = False
        self.daemons = ["extender", "webhook", *(f"device-plugin-{name}" for name in running.kubelets)]

    async def run(self) -> None:
        """Break something, again and again, until it is over; what was begun is brought to its end."""
        kinds: tuple[Callable[[], Awaitable[None]], ...] = (
            self.kill, self.kill, self.kill, self.pause, self.partition, self.forget_history, self.lose_answers,
            self.slow, self.refuse, self.restart_kubelet, self.spoil_checkpoint, self.reboot,
        )  # fmt: skip
        while not self.over:
            await self._draw.choice(kinds)()
            self._server.faults.clear()
            await asyncio.sleep(self._draw.uniform(0.5, 3))

    def _signal(self, name: str, number: signal.Signals) -> None:
        if (pid := self._supervisor.pid(name)) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    async def kill(self) -> None:
        self._signal(self._draw.choice(self.daemons), signal.SIGKILL)

    async def pause(self) -> None:
        name = self._draw.choice(self.daemons)
        self._signal(name, signal.SIGSTOP)
        try:
            await asyncio.sleep(self._draw.uniform(3, 12))
        finally:
            self._signal(name, signal.SIGCONT)

    async def partition(self) -> None:
        self._server.faults.partition(matching(user=self._draw.choice((SCHEDULER, NODE))))
        self._server.cut_connections()
        await asyncio.sleep(self._draw.uniform(2, 8))

    async def forget_history(self) -> None:
        for _ in range(3):
            self._server.expire_watches()
            await asyncio.sleep(0.5)

    async def lose_answers(self) -> None:
        self._server.faults.lose_answer(matching(method="POST", path="/binding"), times=8)
        await asyncio.sleep(3)

    async def slow(self) -> None:
        for user in (SCHEDULER, NODE):
            self._server.faults.delay(2.0, matching(user=user))
        await asyncio.sleep(6)

    async def refuse(self) -> None:
        user = self._draw.choice((SCHEDULER, NODE))
        self._server.faults.fail(self._draw.choice((429, 500, 503, 504)), matching(user=user), times=15)
        await asyncio.sleep(2)

    async def restart_kubelet(self) -> None:
        await self._draw.choice(self._kubelets).restart(self._draw.uniform(0, 2))

    async def spoil_checkpoint(self) -> None:
        kubelet = self._draw.choice(self._kubelets)
        await kubelet.stop()
        (kubelet.layout.plugins / "kubelet_internal_checkpoint").write_bytes(self._draw.randbytes(300))
        await kubelet.start()

    async def reboot(self) -> None:
        await self._draw.choice(self._kubelets).reboot()


class Watcher:
    """Audits the API server's record all the time, and remembers who was promised what."""

    def __init__(self, running: Stage) -> None:
        self._running = running
        self._slices: dict[tuple[str, str], tuple[str, ...]] = {}
        self.findings: set[str] = set()

    async def run(self) -> None:
        while True:
            server = self._running.plane.server
            pods = server.list("v1", "Pod")
            self.findings |= {str(found) for found in audit(pods, server.list("v1", "Node"))}
            for item in pods:
                allocation = allocation_of(item) if item["spec"].get("nodeName") else None
                for name, shares in allocation.containers.items() if allocation else ():
                    self._slices[item["metadata"]["uid"], name] = tuple(share.slice for share in shares)
            await asyncio.sleep(0.2)

    def overlaps(self) -> Iterator[str]:
        """Name the processes of two pods that lived on one slice at the same time."""
        lives: dict[str, list[tuple[float, float, str]]] = defaultdict(list)
        for kubelet in self._running.kubelets.values():
            for run in kubelet.runtime.history:
                for name in self._slices.get((run.pod.uid, run.spec.name), ()):
                    lives[name].append((run.started_at, run.finished_at or float("inf"), run.pod.uid))
        for name, runs in lives.items():
            runs.sort()
            for before, after in itertools.pairwise(runs):
                if before[2] != after[2] and after[0] < before[1]:
                    yield f"{name}: {before} and {after}"


def unsettled(running: Stage) -> list[str]:
    """List the pods that neither run nor say why they wait."""
    found = []
    for item in running.plane.server.list("v1", "Pod"):
        phase = item["status"].get("phase")
        settled = phase in ("Running", "Succeeded", "Failed") if item["spec"].get("nodeName") else refusal_of(item)
        if not settled or item["metadata"].get("deletionTimestamp"):
            found.append(f"{item['metadata']['name']}: {phase}: {json.dumps(item['status'])[:600]}")
    return found


async def until(good: Callable[[], bool]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SETTLE_SECONDS):
            while not good():  # noqa: ASYNC110  other processes have no event to give us
                await asyncio.sleep(0.2)


def fleet(folder: Path) -> list[NodeSpec]:
    lines = [f"  - {{name: node-{n}, cards: [{{model: A100-SXM4-80GB, count: {CARDS}}}]}}" for n in range(NODES)]
    (folder / "fleet.yaml").write_text("\n".join(["nodes:", *lines, ""]))
    specs = []
    for inventory in load_nodes(folder / "fleet.yaml"):
        (folder / f"{inventory.name}.yaml").write_text(dump_node(inventory))
        specs.append(NodeSpec(inventory.name, folder / f"{inventory.name}.yaml"))
    return specs


async def delete_all(running: Stage) -> None:
    server = running.plane.server
    for item in server.list("v1", "Pod"):
        with contextlib.suppress(ApiError):
            await running.plane.admin.delete(PODS, item["metadata"]["name"], namespace="default", grace_seconds=0)
    await until(lambda: not server.list("v1", "Pod"))


async def fill(running: Stage) -> list[str]:
    """Ask for every card of the cluster as a whole; return the phases of the pods."""
    server, limits = running.plane.server, {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "100"}
    body = {"name": "m", "image": "none", "command": ["sleep", "1000"], "resources": {"limits": limits}}
    for number in range(NODES * CARDS):
        whole = {"metadata": {"name": f"whole-{number}"}, "spec": {"containers": [body]}}
        await running.plane.user.create(PODS, {"apiVersion": "v1", "kind": "Pod", **whole}, namespace="default")

    def phases() -> list[str]:
        return [item["status"].get("phase") for item in server.list("v1", "Pod")]

    await until(lambda: set(phases()) == {"Running"})
    return phases()


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_nothing_is_doubled_or_lost_while_everything_fails(seed: int) -> None:
    asyncio.run(soak(random.Random(seed)))


async def soak(draw: random.Random) -> None:
    with tempfile.TemporaryDirectory(prefix="gs-", dir="/tmp") as name:
        specs = fleet(Path(name))
        async with stage(Path(name), specs, Report(Console(file=io.StringIO()))) as running:
            watcher, chaos = Watcher(running), Chaos(running, draw)
            names = [f"p{number}" for number in range(PODS_AT_MOST)]
            watching = asyncio.create_task(watcher.run())
            makers = [asyncio.create_task(churn(running, names[part::3], draw)) for part in range(3)]
            breaker = asyncio.create_task(chaos.run())
            await asyncio.sleep(FAULT_SECONDS)
            chaos.over = True
            await breaker
            for task in makers:
                task.cancel()
            await asyncio.gather(*makers, return_exceptions=True)
            await asyncio.gather(*(running.plane.supervisor.wait_ready(daemon) for daemon in chaos.daemons))
            await until(lambda: not unsettled(running))
            assert unsettled(running) == []
            await delete_all(running)
            assert await fill(running) == ["Running"] * (NODES * CARDS), "a share was lost"
            assert watcher.findings == set()
            assert list(watcher.overlaps()) == []
            logs = [path.read_text(errors="replace") for path in (Path(name) / "logs").glob("*.log")]
            assert not any("Traceback" in text for text in logs)
            watching.cancel()
