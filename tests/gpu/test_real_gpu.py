"""The quotas on a real NVIDIA GPU: the same small CUDA programs as on the fake driver, and torch where it is installed.

`make test-gpu` runs them; elsewhere they are skipped and say why. They need the driver's libcuda.so.1 and gcc, no CUDA
toolkit: kernels are PTX text that the driver compiles. The first GPU must be idle. GPUSLICE_GPU_TESTS_ON_FAKE=1 lets
them run on the fake driver, to try the tests themselves.
"""

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuslice.devices.limits import MIB, DeviceLimit, read_state, write_limits
from tests.native.shim_rig import CLIENT, DRIVERS, LIBRARY, OUT_OF_MEMORY, SHIM, Client, build

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]
QUOTA_MIB = 4000


def why_not() -> str | None:
    """Reason for which this machine cannot run them."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no NVIDIA driver here: {error}"
    if hasattr(driver, "gpuslice_fake_clock_now") and "GPUSLICE_GPU_TESTS_ON_FAKE" not in os.environ:
        return "the fake driver is on the library path"
    count = ctypes.c_int()
    result = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return None if result == 0 and count.value > 0 else f"the driver finds no GPU (code {result})"


class Uuid(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 16)]


def first_uuid() -> str:
    driver = ctypes.CDLL("libcuda.so.1")
    uuid = Uuid()
    driver.cuInit(0)
    assert driver.cuDeviceGetUuid_v2(ctypes.byref(uuid), 0) == 0
    digits = bytes(uuid.bytes).hex()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


class Box:
    """A directory with limits for the first GPU."""

    def __init__(self, directory: Path, memory_mib: int = QUOTA_MIB, core_percent: int = 0) -> None:
        self.directory = directory
        self.uuid = first_uuid()
        directory.mkdir()
        self.limit(memory_mib, core_percent)
        self.environment = {
            **os.environ, "LD_PRELOAD": str(LIBRARY), "GPUSLICE_DIR": str(directory), "CUDA_VISIBLE_DEVICES": self.uuid,
        }  # fmt: skip

    def limit(self, memory_mib: int, core_percent: int) -> None:
        write_limits(self.directory / "limits", [DeviceLimit(self.uuid, memory_mib, core_percent)])

    def start(self) -> Client:
        client = Client(self.environment, [str(CLIENT)])
        assert client.code("device 0") == 0
        return client


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    # The programs are linked against the fake driver, which has the real one's symbols, and run with what is installed.
    build(DRIVERS)
    build(SHIM, "all", "test-programs")
    return tmp_path / "box"


def share_of(launches: str, milliseconds: float, took_ns: str) -> float:
    return 100 * int(launches) * milliseconds / (int(took_ns) / 1e6)


def test_the_share_is_all_that_is_seen(directory: Path) -> None:
    with Box(directory).start() as client:
        assert client.total_mib() == QUOTA_MIB
        assert client.ask("total 0")[1] == str(QUOTA_MIB * MIB)
        assert client.ask("nvml 0")[1] == str(QUOTA_MIB * MIB)


@pytest.mark.parametrize("kind", ["plain", "pitch", "managed", "async", "pool", "vmm", "array", "array3d", "mipmap"])
def test_every_way_of_allocating_ends_at_the_quota(directory: Path, kind: str) -> None:
    with Box(directory).start() as client:
        before = client.free_mib()
        assert client.alloc(500, kind) == 0
        assert before - client.free_mib() >= 500
        assert client.alloc(QUOTA_MIB, kind) == OUT_OF_MEMORY
        assert client.code("free") == 0
        assert client.code("wait") == 0
        assert client.free_mib() >= before - 64


def test_the_books_agree_with_nvml_within_a_percent(directory: Path) -> None:
    box = Box(directory)
    with box.start() as client:
        client.alloc(2000)
        client.code("fill 65536")
        used_mib = read_state(box.directory / "state").devices[0].used_bytes / MIB
        if shutil.which("nvidia-smi") is None:
            pytest.skip("nvidia-smi is not installed")
        report = subprocess.run(
            ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        own = [int(line.split(",")[1]) for line in report.splitlines() if line.startswith(f"{client.process.pid},")]
        if not own:
            pytest.skip("NVML does not name this process by its pid here")
        assert abs(own[0] - used_mib) <= max(32, own[0] * 0.01)


@pytest.mark.parametrize("percent", [10, 30, 50, 90])
@pytest.mark.parametrize(("kernel", "milliseconds"), [("k_500us", 0.5), ("k_5ms", 5.0), ("k_50ms", 50.0)])
def test_a_core_share_holds(directory: Path, percent: int, kernel: str, milliseconds: float) -> None:
    with Box(directory, core_percent=percent).start() as client:
        assert client.code(f"kernel {kernel}") == 0
        client.ask("run 500")
        _, launches, took, _ = client.ask("run 3000")
    share = share_of(launches, milliseconds, took)
    print(f"limit {percent} %, {kernel}: {share:.2f} %")
    assert share == pytest.approx(percent, abs=3)


def run_both(clients: Sequence[Client], commands: str) -> list[list[str]]:
    for client in clients:
        client.send(commands)
    return [[client.answer() for _ in commands.splitlines()][-1] for client in clients]


def test_two_tenants_get_what_each_was_given(directory: Path) -> None:
    boxes = [Box(directory.with_name(f"tenant-{percent}"), core_percent=percent) for percent in (30, 70)]
    clients = [box.start() for box in boxes]
    answers = run_both(clients, "kernel k_5ms\nrun 4000\nrun 6000")
    shares = [share_of(launches, 5.0, took) for _, launches, took, _ in answers]
    for client in clients:
        client.close()
    print(f"two tenants at 30 and 70: {shares[0]:.2f} and {shares[1]:.2f} %")
    assert shares == [pytest.approx(30, abs=3), pytest.approx(70, abs=3)]


def test_processes_of_one_container_share_its_memory(directory: Path) -> None:
    box = Box(directory)
    with box.start() as first, box.start() as second:
        room_mib = first.free_mib()
        assert first.alloc(room_mib - 500) == 0
        assert second.alloc(600) == OUT_OF_MEMORY
        assert second.alloc(400) == 0


def test_memory_of_a_killed_process_is_there_again(directory: Path) -> None:
    box = Box(directory)
    with box.start() as survivor:
        victim = box.start()
        assert victim.alloc(2000) == 0
        assert survivor.alloc(2500) == OUT_OF_MEMORY
        victim.kill()
        assert survivor.alloc(2500) == 0


def test_a_changed_limit_is_in_force_at_once(directory: Path) -> None:
    box = Box(directory)
    with box.start() as client:
        for memory_mib in (6000, 3000):
            box.limit(memory_mib, 0)
            began = time.monotonic()
            while client.total_mib() != memory_mib:
                assert time.monotonic() - began < 0.1
        assert client.alloc(3000) == OUT_OF_MEMORY


def test_memory_shared_by_ipc_is_charged_once(directory: Path) -> None:
    box = Box(directory)
    with box.start() as maker, box.start() as user:
        assert maker.alloc(500) == 0
        before = user.free_mib()
        code, handle = maker.ask("export")
        assert code == "0"
        assert user.code(f"import plain 0 {handle}") == 0
        assert user.free_mib() == before
        assert user.code("unimport") == 0


def test_the_driver_gives_out_our_hooks_for_what_the_runtime_looks_up(directory: Path) -> None:
    """Answers, status and the missing ones are the driver's own; only addresses of hooked functions are ours."""
    program = str(SHIM / "build" / "tests" / "lookups")
    listed = str(Path(__file__).parents[1] / "native" / "data" / "cudart12_9.txt")
    box = Box(directory)
    bare = {name: value for name, value in box.environment.items() if name != "LD_PRELOAD"}
    ours, native = (
        subprocess.run([program, "queries", listed], env=env, capture_output=True, text=True, check=True).stdout
        for env in (box.environment, bare)
    )
    hooked = 0
    for line, plain in zip(ours.splitlines(), native.splitlines(), strict=True):
        assert line.split()[:5] == plain.split()[:5]
        assert (line.split()[5] == "none") == (plain.split()[5] == "none")
        hooked += line.split()[5] == "libvgpu.so"
    print(f"{hooked} of {len(ours.splitlines())} lookups end at hooks")
    assert hooked > 60


def test_a_launch_costs_no_more_than_it_did(directory: Path) -> None:
    figures = {}
    for name, percent in (("native", None), ("unlimited", 0), ("limited", 99)):
        box = Box(directory.with_name(name), core_percent=percent or 0)
        if percent is None:
            del box.environment["LD_PRELOAD"]
        with box.start() as client:
            client.code("kernel k_1ns")
            figures[name] = min(int(client.ask("launch 20000")[1]) / 20000 for _ in range(5))
    print({name: round(ns, 1) for name, ns in figures.items()})
    if "GPUSLICE_GPU_TESTS_ON_FAKE" in os.environ:
        return  # what a busy machine adds to a launch of 90 ns says nothing; bench.shim measures it on the fake
    assert figures["unlimited"] <= figures["native"] * 1.05 + 10
    assert figures["limited"] <= figures["native"] * 1.10 + 100


TORCH = """
import torch
free, total = torch.cuda.mem_get_info()
print(total >> 20)
try:
    torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
    print("granted")
except torch.cuda.OutOfMemoryError:
    print("refused")
x = torch.randn(512, 512, device="cuda")
print(bool(torch.isfinite(x @ x).all()))
"""


def test_torch_sees_the_share_and_recovers_from_its_end(directory: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    done = subprocess.run(
        [sys.executable, "-c", TORCH], env=Box(directory).environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(QUOTA_MIB), "refused", "True"]
