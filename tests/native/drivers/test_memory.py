"""Each way to allocate, against the drivers' own ledger."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native.drivers.rig import MIB, Node, Program

Start = Callable[..., Program]
NO_CONTEXT = "cards: [{model: T4}]\ncontextMiB: 0\n"
OUT_OF_MEMORY = "2"
USABLE_T4_MIB = 15360 - 120


def used(node: Node) -> int:
    return int(node.ledger()[0]["used_bytes"]) // MIB


@pytest.mark.parametrize(
    ("command", "mib"),
    [
        pytest.param(f"alloc {3 * MIB}", 4, id="a plain allocation takes whole 2 MiB units"),
        pytest.param("alloc 1000", 2, id="a small one takes a unit that others will share"),
        pytest.param("pitch 1000 4096", 4, id="pitched rows count with their padding"),
        pytest.param(f"managed {10 * MIB}", 10, id="managed memory is the device's here"),
        pytest.param(f"vmm {64 * MIB}", 64, id="a physical handle counts without any mapping"),
        pytest.param("array 1024 1024", 16, id="an array of float4 counts its padded rows"),
        pytest.param(f"async {10 * MIB}", 32, id="a pool reserves in steps of 32 MiB"),
    ],
)
def test_what_an_allocation_takes_and_gives_back(tmp_path: Path, programs: Start, command: str, mib: int) -> None:
    node = Node(tmp_path, NO_CONTEXT)
    program = programs(node).start()
    program.ok(command)
    after_allocation = used(node)
    program.ok("free 0")
    program.ok("sync")
    assert (after_allocation, used(node)) == (mib, 0)


def test_small_blocks_share_a_unit(tmp_path: Path, programs: Start) -> None:
    node = Node(tmp_path, NO_CONTEXT)
    program = programs(node).start()
    for _ in range(100):
        program.ok("alloc 20000")
    assert used(node) == 2


def test_a_pool_keeps_memory_up_to_its_threshold(tmp_path: Path, programs: Start) -> None:
    node = Node(tmp_path, NO_CONTEXT)
    program = programs(node).start()
    program.ok(f"threshold {16 * MIB}")
    program.ok(f"async {40 * MIB}")
    program.ok("freeasync 0")
    before_sync = used(node)
    program.ok("sync")
    kept = used(node)
    program.ok("trim 0")
    assert (before_sync, kept, used(node)) == (64, 16, 0)


def test_graph_memory_is_taken_at_launch_and_kept_until_trimmed(tmp_path: Path, programs: Start) -> None:
    node = Node(tmp_path, NO_CONTEXT)
    program = programs(node).start()
    program.ok(f"graph {40 * MIB} k_1us")
    program.ok("sync")
    kept = used(node)
    program.ok("graphfree")
    modules = 2  # the graph's kernel came with a module
    assert (kept, used(node)) == (64 + modules, modules)


def test_a_stack_limit_takes_memory_for_every_resident_thread(tmp_path: Path, programs: Start) -> None:
    node = Node(tmp_path, NO_CONTEXT)
    program = programs(node).start()
    program.ok("limit 0 5120")
    assert used(node) == 4096 * 40 * 1024 // MIB


def test_a_full_card_refuses_with_out_of_memory(tmp_path: Path, programs: Start) -> None:
    node = Node(tmp_path, NO_CONTEXT)
    first, second = programs(node).start(), programs(node).start()
    first.ok(f"alloc {(USABLE_T4_MIB - 10) * MIB}")
    refused = [second.ask(f"{how} {12 * MIB}")[0] for how in ("alloc", "managed", "async", "vmm")]
    assert refused == [OUT_OF_MEMORY] * 4
    assert second.ok(f"alloc {10 * MIB}")
    assert second.ok("info")[0] == "0"


def test_a_killed_process_gives_everything_back(tmp_path: Path, programs: Start) -> None:
    node = Node(tmp_path, "cards: [{model: T4}]\n")
    victim, other = programs(node).start(), programs(node).start()
    victim.ok(f"alloc {8000 * MIB}")
    victim.kill()
    other.ok(f"alloc {14000 * MIB}")
    assert used(node) == 300 + 14000


def test_exported_memory_outlives_its_exporter(tmp_path: Path, programs: Start) -> None:
    node = Node(tmp_path, NO_CONTEXT)
    exporter, importer = programs(node).start(), programs(node).start()
    exporter.ok(f"vmm {64 * MIB}")
    exporter.ok(f"export 0 {tmp_path / 'handle'}")
    importer.ok(f"import {tmp_path / 'handle'}")
    shared = used(node)
    exporter.kill()
    alone = used(node)
    importer.ok("free 0")
    assert (shared, alone, used(node)) == (64, 64, 0)


def test_a_forked_child_cannot_use_cuda(tmp_path: Path, programs: Start) -> None:
    program = programs(Node(tmp_path, NO_CONTEXT)).start()
    not_initialised = "3"
    assert program.ask("fork") == [not_initialised]


def test_a_child_that_lives_on_does_not_keep_its_parents_memory(tmp_path: Path) -> None:
    node = Node(tmp_path, NO_CONTEXT)
    done = node.run(
        "sh",
        "-c",
        "gpuprobe --fork --allocate 100 --launch 0.01",
        PATH=f"{node.environment['LD_LIBRARY_PATH']}:/usr/bin:/bin",
    )
    assert done.returncode == 0, done.stderr
    assert used(node) == 0


@pytest.mark.parametrize(
    ("fault", "taken"),
    [
        pytest.param("kill cuMemAlloc_v2 after 1", 2, id="killed before the second allocation"),
        pytest.param("kill-after cuMemAlloc_v2 after 1", 4, id="killed once the second allocation is done"),
    ],
)
def test_a_kill_strikes_at_its_point(tmp_path: Path, programs: Start, fault: str, taken: int) -> None:
    node = Node(tmp_path, NO_CONTEXT)
    program = programs(node, GPUSLICE_FAKE_FAULTS=fault).start()
    program.ok(f"alloc {2 * MIB}")
    assert program.ask(f"alloc {2 * MIB}") == []
    program.end()
    assert program.process.returncode == -9
    assert (int(node.ledger()[0]["peak_bytes"]) // MIB, used(node)) == (taken, 0)


def test_a_failing_call_fails_as_often_as_told(tmp_path: Path, programs: Start) -> None:
    node = Node(tmp_path, NO_CONTEXT)
    program = programs(node, GPUSLICE_FAKE_FAULTS="fail cuMemAlloc_v2 999 after 1 times 2").start()
    assert [program.ask("alloc 512")[0] for _ in range(7)] == ["0", "999", "999", "0", "0", "0", "0"]


def test_pid_namespaces_do_not_confuse_the_ledger(tmp_path: Path, programs: Start) -> None:
    """A container's process has a pid of its own; outside it has another, and its death is noticed all the same."""
    unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    node = Node(tmp_path, NO_CONTEXT)
    if node.run(*unshare, "true").returncode != 0:
        pytest.skip("needs the right to create pid namespaces")
    gpuprobe = f"{node.environment['LD_LIBRARY_PATH']}/gpuprobe"
    command = [*unshare, gpuprobe, "--allocate", "64", "--hold", "forever"]
    with subprocess.Popen(command, env=node.environment, stdout=subprocess.PIPE, text=True) as container:
        assert container.stdout is not None
        while "holding" not in container.stdout.readline():
            pass
        [inside] = node.ledger()[0]["processes"]
        neighbour = programs(node).start()
        full = neighbour.ask(f"alloc {(USABLE_T4_MIB - 63) * MIB}")[0]
        container.kill()
        container.wait()
        deadline = time.monotonic() + 5  # the kernel ends the container a moment after its parent
        freed = OUT_OF_MEMORY
        while freed == OUT_OF_MEMORY and time.monotonic() < deadline:
            freed = neighbour.ask(f"alloc {(USABLE_T4_MIB - 63) * MIB}")[0]
    assert (inside["pid"] != inside["host_pid"] > 1, full, freed) == (True, OUT_OF_MEMORY, "0")


def test_a_context_takes_everything_with_it(tmp_path: Path, programs: Start) -> None:
    node = Node(tmp_path, "cards: [{model: T4}]\n")
    program = programs(node).start()
    for command in (
        f"alloc {4 * MIB}",
        "alloc 100",
        f"managed {2 * MIB}",
        "array 64 64",
        "launch k_1us 1",
        "limit 0 4096",
    ):
        program.ok(command)
    program.ok("reset")
    assert used(node) == 0


def test_asking_for_the_version_does_not_spoil_a_later_fork(tmp_path: Path) -> None:
    code = """
import ctypes, os
cuda = ctypes.CDLL("libcuda.so.1")
version = ctypes.c_int()
first = cuda.cuDriverGetVersion(ctypes.byref(version))
child = os.fork()
if child == 0:
    os._exit(cuda.cuInit(0))
print(first, version.value, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = Node(tmp_path, NO_CONTEXT).run(sys.executable, "-c", code)
    assert done.stdout == "0 13000 0\n", done.stderr


def test_racing_processes_get_the_card_and_no_more(tmp_path: Path) -> None:
    node = Node(tmp_path, NO_CONTEXT)
    probe = [f"{node.environment['LD_LIBRARY_PATH']}/gpuprobe", "--allocate", "0", "--step", "2", "--hold", "forever"]
    racing = [subprocess.Popen(probe, env=node.environment, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    granted = []
    for process in racing:
        assert process.stdout is not None
        events = {}
        while "holding" not in events:
            event = json.loads(process.stdout.readline())
            events[event["event"]] = event
        granted.append(events["allocated"]["granted_mib"])
    held = used(node)
    for process in racing:
        process.kill()
        process.communicate()
    assert (sum(granted), held, used(node)) == (USABLE_T4_MIB, USABLE_T4_MIB, 0)
