"""Opening NVML, and what its error codes mean to a daemon.

Real pynvml (nvidia-ml-py) is used as it is: it loads `libnvidia-ml.so.1` by name, so a path of our own choice is loaded
before it under the same name.
"""

import ctypes
import os
from pathlib import Path

import pynvml

from gpuslice.devices.errors import GpusliceError

LIBRARY = "libnvidia-ml.so.1"
NvmlError = pynvml.NVMLError
"""Any error that NVML itself reports."""


class NvmlUnavailable(GpusliceError):
    """NVML cannot be used now: no driver, driver not loaded, or a version skew after an upgrade. Worth a retry."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"NVML is not usable: {problem}; install or load the NVIDIA driver, or give --driver-root or "
            f"LD_LIBRARY_PATH so that {LIBRARY} is found"
        )
        self.problem = problem


def open_nvml(driver_root: Path | None = None) -> None:
    """Load NVML and initialise it. Repeated calls are counted by NVML and must each be closed.

    Args:
        driver_root: Where the host's file system is mounted, when the library is not on the loader's path.

    Raises:
        NvmlUnavailable: It cannot be loaded or initialised; says which file was tried.
    """
    tried = _preload(driver_root) if driver_root is not None else f"{LIBRARY} on the loader's path"
    try:
        pynvml.nvmlInitWithFlags(_INIT_FLAG_NO_ATTACH_NO_GPUS)
    except pynvml.NVMLError as error:
        raise NvmlUnavailable(f"{error} (tried {tried})") from error


# NVML_INIT_FLAG_NO_GPUS: a node without cards is not an error.
_INIT_FLAG_NO_ATTACH_NO_GPUS = 1


def close_nvml() -> None:
    """Undo one `open_nvml`; a library that has gone away is no error."""
    try:
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return


def is_lost(error: pynvml.NVMLError) -> bool:
    """Tell whether a card's error means that the card itself is gone or must be reset."""
    return error.value in {
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_RESET_REQUIRED,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_UNKNOWN,
        pynvml.NVML_ERROR_IRQ_ISSUE,
        pynvml.NVML_ERROR_INSUFFICIENT_POWER,
    }


_PLACES = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "run/nvidia/driver/usr/lib64",
    "",
)


def _preload(driver_root: Path) -> str:
    """Load the library of `driver_root`, so that pynvml's own load by name finds it."""
    for place in _PLACES:
        candidate = driver_root / place / LIBRARY
        if candidate.exists():
            try:
                ctypes.CDLL(os.fspath(candidate), mode=ctypes.RTLD_GLOBAL)
            except OSError as error:
                raise NvmlUnavailable(f"{candidate}: {error}") from error
            return os.fspath(candidate)
    return f"{LIBRARY} below {driver_root} and on the loader's path"
