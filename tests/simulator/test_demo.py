"""The demo as a person meets it: it holds, it survives kills, it leaves nothing behind."""

import asyncio
import io
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gpuslice.devices.annotations import ALLOCATION
from simulator.audit import audit
from simulator.demo.nodes import NodeSpec
from simulator.demo.pods import apply, settle
from simulator.demo.report import Report
from simulator.demo.stage import Stage, stage
from simulator.nvidia_smi import import_inventory
from tests.simulator.test_nvidia_smi import INSTANCES, gpu, smi

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("demo")]
Object = dict[str, Any]


def start_demo(*arguments: str, folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "cli", "demo", *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: the path of a Unix socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="gs-", dir="/tmp") as name:
        yield Path(name)


def processes_below(folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if str(folder).encode() in words:
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


def test_two_demos_at_once_hold_and_leave_nothing(folder: Path) -> None:
    demos = [start_demo(folder=folder) for _ in range(2)]
    outputs = [demo.communicate(timeout=100)[0] for demo in demos]
    for demo, output in zip(demos, outputs, strict=True):
        assert "Everything held." in output, output
        assert demo.returncode == 0
    assert list(folder.iterdir()) == []
    assert processes_below(folder) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "kill"])
def test_a_stopped_demo_leaves_nothing(folder: Path, number: signal.Signals) -> None:
    manifest = ROOT / "examples" / "one-slice.yaml"
    demo = start_demo("--keep", "-f", str(manifest), folder=folder)
    assert demo.stdout is not None
    for line in demo.stdout:
        if "Running until Ctrl-C" in line:
            break
    demo.send_signal(number)
    demo.communicate(timeout=30)
    assert demo.returncode == 130
    assert list(folder.iterdir()) == []
    assert processes_below(folder) == []


def test_a_killed_demo_leaves_no_process(folder: Path) -> None:
    demo = start_demo("--keep", "-f", str(ROOT / "examples" / "one-slice.yaml"), folder=folder)
    assert demo.stdout is not None
    for line in demo.stdout:
        if "Running until Ctrl-C" in line:
            break
    demo.kill()
    demo.wait(timeout=10)
    demo.stdout.close()
    deadline = time.monotonic() + 10
    while (left := processes_below(folder)) and time.monotonic() < deadline:
        os.sched_yield()
    assert left == []


def pod(name: str, memory_mib: int) -> tuple[str, Object]:
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": memory_mib, "nvidia.com/gpucores": 20}
    container = {"name": "main", "image": "example.invalid/app:1", "command": ["sleep", "3600"]}
    return name, {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "containers": [container | {"resources": {"limits": limits}}]},
    }


def decisions(running: Stage) -> dict[str, str]:
    return {
        item["metadata"]["name"]: item["metadata"]["annotations"][ALLOCATION]
        for item in running.plane.server.list("v1", "Pod")
        if ALLOCATION in (item["metadata"].get("annotations") or {})
    }


async def wait_restarted(running: Stage, daemon: str, killed: int) -> None:
    async with asyncio.timeout(20):
        while True:
            if running.plane.supervisor.pid(daemon) not in (None, killed):
                break
            await asyncio.sleep(0)
    await running.plane.supervisor.wait_ready(daemon)


async def kill_and_go_on(folder: Path, daemon: str) -> None:
    inventory = folder / "inventory.yaml"
    inventory.write_text('driver: "580.65.06"\ncuda: "13.0"\ncards:\n  - {model: T4, count: 2}\nlinks: pcie\n')
    report = Report(Console(file=io.StringIO()))
    async with stage(folder / "run", [NodeSpec("n1", inventory)], report) as running:
        first = await apply(running.plane.user, [pod(f"before-{n}", 6000) for n in range(3)])
        await settle(running.plane, first)
        before = decisions(running)
        assert len(before) == 3
        pid = running.plane.supervisor.pid(daemon)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await wait_restarted(running, daemon, pid)
        second = await apply(running.plane.user, [pod(f"after-{n}", 6000) for n in range(2)])
        pods = await settle(running.plane, second)
        phases = {item["metadata"]["name"]: item["status"]["phase"] for item in pods}
        assert sorted(phases.values()) == ["Pending", "Running"], (
            f"4 of 5 fit: 2 cards of 15 GiB, 6000 MiB each: {phases}"
        )
        assert before.items() <= decisions(running).items()
        assert audit(running.plane.server.list("v1", "Pod"), running.plane.server.list("v1", "Node")) == []


@pytest.mark.parametrize("daemon", ["webhook", "extender", "device-plugin-n1"])
def test_a_killed_daemon_comes_back_and_no_share_is_lost_or_doubled(folder: Path, daemon: str) -> None:
    asyncio.run(kill_and_go_on(folder, daemon))


def test_it_holds_on_machines_that_were_imported(folder: Path) -> None:
    """A machine of which MIG has one card, and one with a card that nobody knows."""
    machines = {
        "dgx": smi(gpu("07", mig="Enabled", instances=INSTANCES), gpu("0f", minor="1")),
        "desk": smi(gpu("2d", name="NVIDIA Future 9000", device="0xFFFF10DE", memory="24576")),
    }
    for name, xml in machines.items():
        (folder / f"{name}.yaml").write_text(import_inventory(xml, name=name))
    demo = start_demo("--nodes", *(str(folder / f"{name}.yaml") for name in machines), folder=folder)
    output, _ = demo.communicate(timeout=100)
    assert demo.returncode == 0, output
    assert "dgx: 1 of 2 cards partitioned by MIG, not used here" in output
    assert "Everything held." in output
