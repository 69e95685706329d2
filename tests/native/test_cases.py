"""Bugs that another sharing library had in public, each as its report tells it, on the fake driver with four cards."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuslice.devices.limits import MIB, DeviceLimit, uuid_to_bytes
from tests.native.shim_rig import (
    CLIENT,
    CONTEXT_MIB,
    DRIVERS,
    FAULTY_LIBRARY,
    LIBRARY,
    OUT_OF_MEMORY,
    Client,
    Container,
    Node,
)
from tests.native.virtual_rig import CLOCK, kernel_ns

FOUR = "[{model: A100-SXM4-80GB, count: 4}]"
LIMIT_MIB = 1024 + CONTEXT_MIB


@pytest.fixture
def four(built: None, tmp_path: Path) -> Node:
    return Node(tmp_path / "node", cards=FOUR)


def visible_value(visible: str, uuids: Sequence[str]) -> tuple[str, list[int]]:
    """The variable's value, and the NVML index behind each CUDA ordinal."""
    indices = [int(word) for word in visible.removeprefix("uuid ").split(",")]
    by_uuid = ",".join(uuids[index] for index in indices)
    return (by_uuid if visible.startswith("uuid") else visible), indices


VISIBLE = ["2,3", "3,2", "1", "0,1", "uuid 2,3", "uuid 3,1,0"]


@pytest.mark.parametrize("visible", VISIBLE)
def test_usage_is_kept_and_checked_for_the_same_card(four: Node, visible: str) -> None:
    """HAMi-core#319: stored under NVML's index and checked under CUDA's, so the limit never applied."""
    uuids = four.uuids()
    value, indices = visible_value(visible, uuids)
    box = Container(four, "box", [DeviceLimit(uuid, LIMIT_MIB) for uuid in uuids])
    with box.start(CUDA_VISIBLE_DEVICES=value) as client:
        for ordinal in range(len(indices)):
            assert client.code(f"device {ordinal}") == 0
            assert client.alloc(1536) == OUT_OF_MEMORY
            assert [client.alloc(256) for _ in range(5)] == [0, 0, 0, 0, OUT_OF_MEMORY]
            full = {uuids[index] for index in indices[: ordinal + 1]}
            state = box.state()
            recorded = {device.uuid_bytes: device.used_bytes // MIB for device in state.devices if device.used_bytes}
            assert recorded == dict.fromkeys(map(uuid_to_bytes, full), LIMIT_MIB)
            used = [card["used_bytes"] // MIB for card in four.ledger()["cards"]]
            assert [mib == LIMIT_MIB for mib in used] == [uuid in full for uuid in uuids]


def test_what_was_allocated_in_stream_order_may_be_freed_in_any_way_once(four: Node) -> None:
    """HAMi-core#257: freeing what the library did not know gave -1 and leaked."""
    box = Container(four, "box", [DeviceLimit(four.uuids()[0], LIMIT_MIB)])
    native = {name: text for name, text in box.environment.items() if name != "LD_PRELOAD"}
    stories = (
        ("alloc async 67108864", "freeas cuMemFree_v2", "wait"),
        ("alloc plain 67108864", "freeas cuMemFreeAsync", "wait"),
        ("badfree 0",),
        ("badfree 12345",),
    )
    with box.start() as client, Client(native) as bare:
        for side in (client, bare):
            assert side.code("device 0") == 0
        before = client.free_mib()
        for story in stories:
            assert [client.code(step) for step in story] == [bare.code(step) for step in story], story
            assert client.free_mib() >= before - 2
        _, address = client.ask(f"alloc plain {64 * MIB}")
        _, other = bare.ask(f"alloc plain {64 * MIB}")
        inside = client.code(f"badfree {int(address) + 4096}"), bare.code(f"badfree {int(other) + 4096}")
        assert inside[0] == inside[1] != 0
        assert client.free_mib() == before - 64, "an address inside a block frees nothing"
        for _ in range(3):
            assert client.code(f"badfree {address}") == bare.code(f"badfree {other}")
            assert client.free_mib() == before, "down once, and never below what is held"
        assert box.held_mib() == CONTEXT_MIB


@pytest.mark.parametrize("existing", [True, False], ids=["existing state", "fresh state"])
@pytest.mark.parametrize("second", [True, False], ids=["then with variables", "then without"])
@pytest.mark.parametrize("first", [True, False], ids=["first with variables", "first without"])
def test_a_process_without_variables_does_not_open_the_quota(
    four: Node, first: bool, second: bool, existing: bool
) -> None:
    """HAMi#2125, #2488, #1090: a shell by ssh, su or cron started first and wrote 0, unlimited, for everybody."""
    box = Container(four, "box", [DeviceLimit(four.uuids()[0], LIMIT_MIB)])
    variables = {"CUDA_DEVICE_MEMORY_LIMIT_0": f"{LIMIT_MIB}m", "CUDA_DEVICE_SM_LIMIT": "50"}
    if existing:
        with box.start() as earlier:
            earlier.code("device 0")
    bare = {"LD_PRELOAD", "GPUSLICE_DIR", *four.environment}
    stripped = {name: text for name, text in box.environment.items() if name in bare}
    clients = [Client(stripped | (variables if given else {})) for given in (first, second)]
    try:
        for client in clients:
            assert client.code("device 0") == 0
        assert clients[0].alloc(512 - CONTEXT_MIB) == 0
        assert clients[1].alloc(512) == 0
        assert [client.alloc(2) for client in clients] == [OUT_OF_MEMORY] * 2
    finally:
        for client in clients:
            client.close()


@pytest.mark.parametrize(("visible", "loaded"), [("2,3", 0), ("3,2", 1), ("0,1", 3), ("1", 0)])
def test_the_load_of_cards_that_are_not_ours_slows_nobody(
    built: None, tmp_path: Path, visible: str, loaded: int
) -> None:
    """HAMi-core#318: with CUDA_VISIBLE_DEVICES=2,3 the watcher sampled cards 0 and 1, and their tenants' load."""
    node = Node(tmp_path / "node", cards=FOUR)
    node.environment.update({"GPUSLICE_FAKE_CLOCK": "virtual", "GPUSLICE_FAKE_PARTICIPANTS": "2"})
    uuids = node.uuids()
    box = Container(node, "box", [DeviceLimit(uuid, 20_000, 30 + 10 * index) for index, uuid in enumerate(uuids)])
    neighbour = Container(node, "neighbour", [DeviceLimit(uuids[loaded], 20_000)])
    for each in (box, neighbour):
        each.environment["LD_PRELOAD"] = f"{LIBRARY}:{CLOCK}"
    mine = box.start(CUDA_VISIBLE_DEVICES=visible, GPUSLICE_FAKE_RANK="0")
    theirs = neighbour.start(CUDA_VISIBLE_DEVICES=str(loaded), GPUSLICE_FAKE_RANK="1")
    kernel = "k_500us"
    try:
        theirs.send(f"device 0\nkernel {kernel}\nrun 3000")
        for ordinal, index in enumerate(int(word) for word in visible.split(",")):
            mine.send(f"device {ordinal}\nkernel {kernel}\nrun 300\nrun 700")
            assert [mine.answer()[0] for _ in range(3)] == ["0"] * 3
            code, launches, took, _ = mine.answer()
            share = 100 * int(launches) * kernel_ns(kernel) / int(took)
            assert code == "0"
            assert share == pytest.approx(30 + 10 * index, abs=2)
        mine.close()
        busy = {device.uuid_bytes for device in box.state().devices if device.busy_ns}
        assert busy == {uuid_to_bytes(uuids[int(word)]) for word in visible.split(",")}
    finally:
        theirs.kill()
        mine.close()


@pytest.mark.parametrize("percent", [10, 50, 90])
@pytest.mark.parametrize("processors", [20, 80, 132, 188])
def test_the_number_of_processors_does_not_change_the_share(
    built: None, tmp_path: Path, processors: int, percent: int
) -> None:
    """HAMi-core#274: the correction grew with the square of the number; 188 of them stayed at 99 %."""
    card = f"[{{model: A100-SXM4-80GB, uuid: GPU-00000000-0000-0000-0000-000000000001, smCount: {processors}}}]"
    node = Node(tmp_path / "node", cards=card)
    node.environment.update({"GPUSLICE_FAKE_CLOCK": "virtual", "GPUSLICE_FAKE_PARTICIPANTS": "1"})
    box = Container(node, "box", [DeviceLimit("GPU-00000000-0000-0000-0000-000000000001", 20_000, percent)])
    box.environment["LD_PRELOAD"] = f"{LIBRARY}:{CLOCK}"
    with box.start() as client:
        client.send("device 0\nkernel k_500us\nrun 300" + "\nrun 200" * 10)
        assert [client.answer()[0] for _ in range(3)] == ["0"] * 3
        windows = []
        for _ in range(10):
            _, launches, took, _ = client.answer()
            windows.append(100 * int(launches) * kernel_ns("k_500us") / int(took))
    assert sum(windows) / len(windows) == pytest.approx(percent, abs=2)
    assert max(windows) <= percent + 10, "no long burst at full speed"


FORWARDING_DRIVER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static void *driver;
static int depth;

#define F(name) void *to_##name; __asm__( \\
	".pushsection .text\\n.globl " #name "\\n.type " #name ",@function\\n" \\
	#name ": jmp *to_" #name "(%rip)\\n.popsection\\n");
#include "names.h"
#undef F
int (*to_cuInit)(unsigned);

__attribute__((constructor)) static void start(void)
{
	driver = dlopen(getenv("FORWARDED_DRIVER"), RTLD_NOW | RTLD_LOCAL);
#define F(name) to_##name = dlsym(driver, #name);
#include "names.h"
#undef F
}

int cuInit(unsigned flags)
{
	Dl_info mine;
	dladdr((void *)start, &mine);
	void *self = dlopen(mine.dli_fname, RTLD_NOW | RTLD_NOLOAD);
	if (++depth > 1 || dlsym(self, "cuInit") != (void *)cuInit) {
		fprintf(stderr, "the driver met the library inside itself\\n");
		abort();
	}
	to_cuInit = (int (*)(unsigned))dlsym(driver, "cuInit");
	int result = to_cuInit(flags);
	depth--;
	return result;
}
"""


def forwarding_driver(folder: Path) -> Path:
    """A libcuda.so.1 as on WSL2: it looks every function up in another library, and itself again in cuInit."""
    real = DRIVERS / "build" / "libcuda.so.1"
    listed = subprocess.run(["nm", "-D", "--defined-only", str(real)], capture_output=True, text=True, check=True)
    names = [name for line in listed.stdout.splitlines() if (name := line.split()[-1]).startswith(("cu", "gpuslice"))]
    folder.mkdir()
    (folder / "names.h").write_text("".join(f"F({name})\n" for name in names if name != "cuInit"))
    (folder / "driver.c").write_text(FORWARDING_DRIVER)
    target = folder / "libcuda.so.1"
    flags = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic", "-o", str(target)]
    subprocess.run(["cc", *flags, str(folder / "driver.c"), "-ldl"], check=True, capture_output=True)
    return folder


def test_a_driver_that_looks_itself_up_finds_itself_and_the_program_finds_the_library(built: None, four: Node) -> None:
    """HAMi-core#326: the caller's handle was dropped, so that the driver's own lookup came back to the library."""
    folder = forwarding_driver(four.directory / "forwarding")
    box = Container(four, "box", [DeviceLimit(uuid, LIMIT_MIB) for uuid in four.uuids()])
    real = str(DRIVERS / "build" / "libcuda.so.1")
    paths = {"LD_LIBRARY_PATH": f"{folder}:{DRIVERS / 'build'}", "FORWARDED_DRIVER": real}
    with box.start(**paths) as client:
        assert client.started == ["0", "ready"]
        assert client.code("device 0") == 0
        assert client.alloc(1536) == OUT_OF_MEMORY
        assert client.alloc(1024) == 0
        assert client.close() == ""


REUSE = """
import os, subprocess, sys
client, library, point = sys.argv[1:]

def start(**more):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    made = subprocess.Popen([client], env={**os.environ, "LD_PRELOAD": library, **more}, **pipes)
    made.stdout.readline()
    return made

def ask(made, line):
    made.stdin.write(line + "\\n")
    made.stdin.flush()
    return made.stdout.readline().split()

first = start(GPUSLICE_FAULT=point) if point else start()
if point:
    first.stdin.write("device 0\\nrace 4194304 200\\n")
    first.stdin.flush()
else:
    ask(first, "device 0")
    ask(first, "alloc plain 629145600")
    first.kill()
first.wait()
with open("/proc/sys/kernel/ns_last_pid", "w") as last:
    last.write(str(first.pid - 1))
second = start()
print(first.returncode, first.pid == second.pid, ask(second, "device 0")[0], ask(second, "alloc plain 943718400")[0])
"""


@pytest.mark.parametrize("point", ["", "locked", "between", "unlock"], ids=["idle", "locked", "in a call", "unlocking"])
def test_a_new_process_with_the_pid_of_a_killed_one_inherits_neither_lock_nor_memory(four: Node, point: str) -> None:
    """HAMi#2500, HAMi-core#86: a killed process kept the lock; also when its pid is in use again."""
    unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to create pid namespaces")
    box = Container(four, "box", [DeviceLimit(four.uuids()[0], LIMIT_MIB)])
    library = str(FAULTY_LIBRARY if point else LIBRARY)
    environment = {name: text for name, text in box.environment.items() if name != "LD_PRELOAD"}
    program = [*unshare, sys.executable, "-c", REUSE, str(CLIENT), library, point]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False, timeout=30)
    assert done.stdout.split() == ["-9", "True", "0", "0"], done.stderr
