"""Other people's programs on the fake drivers, unchanged. They are in the dependency group `clients`.

GPUSLICE_CLIENTS_PYTHON may name an interpreter that has them when this one has not.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.native.drivers.rig import Node

PYTHON = os.environ.get("GPUSLICE_CLIENTS_PYTHON", sys.executable)
INVENTORY = """
name: clients
cards: [{model: A100-SXM4-80GB, count: 2, processes: [{pid: 1, memoryMiB: 2000}]}]
links: nvswitch
"""


def require(module: str) -> None:
    found = subprocess.run([PYTHON, "-c", f"import {module}"], capture_output=True, check=False)
    if found.returncode != 0:
        pytest.skip(f"{module} is not installed (`make test` installs it; or set GPUSLICE_CLIENTS_PYTHON)")


def run_python(node: Node, code: str) -> str:
    done = node.run(PYTHON, "-c", code)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_gpustat_shows_the_cards(tmp_path: Path) -> None:
    require("gpustat")
    done = Node(tmp_path, INVENTORY).run(PYTHON, "-m", "gpustat", "--no-color", "--no-header")
    assert [line.split("|")[0].strip() for line in done.stdout.splitlines()] == [
        "[0] NVIDIA A100-SXM4-80GB",
        "[1] NVIDIA A100-SXM4-80GB",
    ]
    assert "2000 / 81920 MB" in done.stdout


def test_nvitop_shows_the_cards(tmp_path: Path) -> None:
    require("nvitop")
    done = Node(tmp_path, INVENTORY).run(PYTHON, "-m", "nvitop", "--once", "--ascii", "--colorful")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2000MiB / 80.00GiB") == 2


def test_nvitop_shows_mig_instances(tmp_path: Path) -> None:
    require("nvitop")
    inventory = "name: mig\ncards: [{model: A100-SXM4-80GB, mig: [1g.20gb, 3g.40gb]}, {model: T4}]\n"
    done = Node(tmp_path, inventory).run(PYTHON, "-m", "nvitop", "--once", "--ascii", "--colorful")
    assert done.returncode == 0, done.stderr
    assert [line.split("@")[0].split() for line in done.stdout.splitlines() if "@ GI/CI" in line] == [
        ["|", "0:0", "1g.20gb"],
        ["|", "0:1", "3g.40gb"],
    ]


CUDA_BINDINGS = """
from cuda.bindings import driver as d
def ok(answer):
    assert answer[0] == d.CUresult.CUDA_SUCCESS, answer
    return answer[1] if len(answer) == 2 else answer[1:]
ok(d.cuInit(0))
ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(ok(d.cuDeviceGet(0))))))
stream, data = ok(d.cuStreamCreate(1)), bytes(range(256))
memory, back = ok(d.cuMemAllocAsync(len(data), stream)), bytearray(256)
ok(d.cuMemcpyHtoDAsync(memory, data, len(data), stream))
ok(d.cuMemcpyDtoHAsync(back, memory, len(data), stream))
module = ok(d.cuModuleLoadData(b".version 7.0\\n.target sm_70\\n.visible .entry k_2ms(){ret;}"))
kernel = ok(d.cuModuleGetFunction(module, b"k_2ms"))
events = [ok(d.cuEventCreate(0)) for _ in range(2)]
ok(d.cuEventRecord(events[0], stream))
ok(d.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, 0, 0))
ok(d.cuEventRecord(events[1], stream))
ok(d.cuStreamSynchronize(stream))
print(bytes(back) == data, ok(d.cuEventElapsedTime(*events)) >= 2.0, ok(d.cuMemGetInfo())[1] >> 30)
"""


def test_cuda_bindings_allocate_copy_and_launch(tmp_path: Path) -> None:
    require("cuda.bindings.driver")
    assert run_python(Node(tmp_path, INVENTORY), CUDA_BINDINGS) == "True True 79\n"


NUMBA = """
import numpy as np
from numba import cuda
numbers = np.arange(1000, dtype=np.float32)
on_device = cuda.to_device(numbers)
free, total = cuda.current_context().get_memory_info()
print([card.name for card in cuda.gpus], np.array_equal(on_device.copy_to_host(), numbers), total >> 30, free < total)
"""


def test_numba_moves_arrays(tmp_path: Path) -> None:
    require("numba.cuda")
    expected = "['NVIDIA A100-SXM4-80GB', 'NVIDIA A100-SXM4-80GB'] True 79 True\n"
    assert run_python(Node(tmp_path, INVENTORY), NUMBA) == expected
