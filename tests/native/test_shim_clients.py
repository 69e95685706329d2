"""Other people's programs under the library, unchanged: they see the share, and no more than the share.

GPUSLICE_CLIENTS_PYTHON may name an interpreter that has them when this one has not.
"""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.native.shim_rig import CONTEXT_MIB, Container

PYTHON = os.environ.get("GPUSLICE_CLIENTS_PYTHON", sys.executable)
SHARE_MIB = 3000
Maker = Callable[..., Container]


def run(box: Container, module: str, *words: str) -> str:
    found = subprocess.run([PYTHON, "-c", f"import {module}"], capture_output=True, check=False)
    if found.returncode != 0:
        pytest.skip(f"{module} is not installed (`make test` installs it; or set GPUSLICE_CLIENTS_PYTHON)")
    environment = {**box.environment, "HOME": str(box.directory), "TERM": "xterm", "CUDA_VISIBLE_DEVICES": "0"}
    done = subprocess.run([PYTHON, *words], env=environment, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 0, done.stderr
    return done.stdout


PYNVML = """
import pynvml as n
n.nvmlInit()
card = n.nvmlDeviceGetHandleByIndex(0)
one, two = n.nvmlDeviceGetMemoryInfo(card), n.nvmlDeviceGetMemoryInfo(card, version=n.nvmlMemory_v2)
processes = n.nvmlDeviceGetComputeRunningProcesses(card)
print(one.total >> 20, one.used >> 20, two.total >> 20, two.free >> 20, len(processes))
"""


def test_nvidia_ml_py_sees_the_share(container: Maker) -> None:
    assert run(container(SHARE_MIB), "pynvml", "-c", PYNVML).split() == ["3000", "0", "3000", "3000", "0"]


def test_gpustat_and_nvitop_see_the_share_and_its_use(container: Maker) -> None:
    box = container(SHARE_MIB)
    with box.start() as client:
        client.code("device 0")
        client.alloc(700)
        assert f"{700 + CONTEXT_MIB} /  3000 MB" in run(box, "gpustat", "-m", "gpustat", "--no-color", "--no-header")
        shown = run(box, "nvitop", "-m", "nvitop", "--once", "--ascii", "--colorful")
        assert f"{700 + CONTEXT_MIB}.0MiB / 3000MiB" in shown or f"{700 + CONTEXT_MIB}MiB / 3000MiB" in shown
        assert str(client.process.pid) in shown


CUDA_BINDINGS = """
from cuda.bindings import driver as d
def ok(answer):
    assert answer[0] == d.CUresult.CUDA_SUCCESS, answer
    return answer[1] if len(answer) == 2 else answer[1:]
ok(d.cuInit(0))
ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(ok(d.cuDeviceGet(0))))))
print(ok(d.cuMemGetInfo())[1] >> 20, ok(d.cuDeviceTotalMem(0)) >> 20)
kept = [ok(d.cuMemAlloc(1 << 30)) for _ in range(2)]
print(d.cuMemAlloc(1 << 30)[0].name, d.cuMemAllocAsync(1 << 30, 0)[0].name, d.cuMemAllocManaged(1 << 30, 1)[0].name)
module = ok(d.cuModuleLoadData(b".version 7.0\\n.target sm_70\\n.visible .entry k_1ms(){ret;}"))
kernel = ok(d.cuModuleGetFunction(module, b"k_1ms"))
import time
began = time.monotonic()
for _ in range(200):
    ok(d.cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0))
ok(d.cuCtxSynchronize())
print(0.9 < 200 * 0.001 / 0.5 / (time.monotonic() - began) < 1.15)
"""


def test_cuda_bindings_gets_its_share_of_memory_and_time(container: Maker) -> None:
    lines = run(container(SHARE_MIB, 50), "cuda.bindings.driver", "-c", CUDA_BINDINGS).splitlines()
    assert lines[:2] == ["3000 3000", " ".join(["CUDA_ERROR_OUT_OF_MEMORY"] * 3)]
    assert lines[2] == "True"


NUMBA = """
import numpy as np
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError
numbers = np.arange(1000, dtype=np.float32)
on_device = cuda.to_device(numbers)
free, total = cuda.current_context().get_memory_info()
print(np.array_equal(on_device.copy_to_host(), numbers), total >> 20, free < total)
try:
    cuda.device_array(1 << 30, dtype=np.float32)
    print("granted")
except CudaAPIError as error:
    print(int(error.code))
"""


def test_numba_sees_the_share_and_its_end(container: Maker) -> None:
    assert run(container(SHARE_MIB), "numba.cuda", "-c", NUMBA).splitlines() == ["True 3000 True", "2"]
