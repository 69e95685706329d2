"""The quotas on a real NVIDIA GPU: the same small CUDA programs as on the fake driver, and torch where it is installed.

`make test-gpu` runs them; elsewhere they are skipped and say why.
"""

import ctypes
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuslice.devices.limits import MIB, DeviceLimit, read_state, write_limits
from tests.native.shim_rig import CLIENT, LIBRARY, OUT_OF_MEMORY, SHIM, Client, build

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]
QUOTA_MIB = 4000


def why_not() -> str | None:
    """Reason for which this machine cannot run them."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no NVIDIA driver here: {error}"
    if hasattr(driver, "gpuslice_fake_clock_now"):
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
            **os.environ, "LD_PRELOAD": str(LIBRARY), "GPUSLICE_DIR": str(directory), "CUDA_VISIBLE_DEVICES": "0",
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
    build(SHIM, "all", "test-programs")
    return tmp_path / "box"


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
    share = 100 * int(launches) * milliseconds / (int(took) / 1e6)
    print(f"limit {percent} %, {kernel}: {share:.2f} %")
    assert share == pytest.approx(percent, abs=3)


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
    assert figures["unlimited"] <= figures["native"] * 1.05 + 10


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
