"""Our own definitions of the CUDA and NVML interfaces against NVIDIA's headers, where these are installed.

The headers come with PyPI wheels (nvidia-cuda-runtime, nvidia-cuda-runtime-cu12, nvidia-nvml-dev); the environment
variable GPUSLICE_CUDA_HEADERS may name further include directories, separated by colons.
"""

import os
import sys
from pathlib import Path

import pytest

from tests.native.drivers.rig import HERE, compile_c


def include_directories(header: str) -> list[Path]:
    named = [Path(entry) for entry in os.environ.get("GPUSLICE_CUDA_HEADERS", "").split(":") if entry]
    installed = [
        found.parent
        for entry in sys.path
        if (Path(entry) / "nvidia").is_dir()
        for found in (Path(entry) / "nvidia").glob(f"*/include/{header}")
    ]
    return [directory for directory in (*named, *installed) if (directory / header).is_file()]


@pytest.mark.parametrize(("header", "source"), [("cuda.h", "cuda_abi_check.c"), ("nvml.h", "nvml_abi_check.c")])
def test_our_definitions_are_nvidias(tmp_path: Path, header: str, source: str) -> None:
    directories = include_directories(header)
    if not directories:
        pytest.skip(f"{header} is not installed (nvidia-cuda-runtime, nvidia-nvml-dev)")
    for directory in directories:
        compile_c(HERE / source, tmp_path / "check.o", "-c", f"-I{directory}")
