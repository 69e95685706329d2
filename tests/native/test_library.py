"""The library as a file: gates, generated parts, musl, the stand-in driver, NVIDIA's headers."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuslice.devices.limits import MIB
from tests.native.shim_rig import DRIVERS, OUT_OF_MEMORY, SHIM, Client, Container, build

OLD_HEADERS = "nvidia-cuda-runtime-cu11"


def test_symbols_size_and_generated_files(built: None) -> None:
    """glibc 2.17 ceiling, libc alone, exactly the exports of the policy, at most 400 KB, nothing generated is stale."""
    build(SHIM, "gates", "check-generated")


def test_the_parts_without_a_driver_under_sanitizers(built: None) -> None:
    build(SHIM, "unit")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_static_analyzer_is_silent(built: None) -> None:
    build(SHIM, "analyze")


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.skipif(shutil.which("clang-14") is None, reason="needs clang with libFuzzer: apt-get install clang-14")
def test_parsers_survive_the_fuzzer(built: None) -> None:
    build(SHIM, "fuzz", "FUZZ_SECONDS=8")


def test_every_symbol_is_classified_and_our_abi_is_nvidias() -> None:
    """A symbol of NVIDIA's newest headers that the policy does not know fails here."""
    folders = [folder for folder in os.environ.get("GPUSLICE_CUDA_HEADERS", "").split(":") if folder]
    if not folders:
        pytest.skip("needs NVIDIA's headers in GPUSLICE_CUDA_HEADERS; `make test` installs them")
    checked = subprocess.run(
        [sys.executable, str(SHIM / "gen" / "classify.py"), *folders], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_our_abi_is_that_of_older_headers_too(tmp_path: Path) -> None:
    """The wheel of CUDA 11 comes for the length of this test."""
    done = subprocess.run(
        ["uv", "pip", "install", "-q", "--target", str(tmp_path), OLD_HEADERS], capture_output=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"{OLD_HEADERS} cannot be installed here: {done.stderr.decode()[:200]}")
    folders = sorted({str(header.parent) for header in tmp_path.rglob("cuda.h")})
    checked = subprocess.run(
        [sys.executable, str(SHIM / "gen" / "classify.py"), *folders], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout


@pytest.mark.skipif(shutil.which("musl-gcc") is None, reason="needs musl-gcc: apt-get install musl-tools")
def test_musl_programs_run_with_the_library_preloaded(container: Callable[..., Container], tmp_path: Path) -> None:
    source = tmp_path / "hello.c"
    source.write_text(
        '#include <dlfcn.h>\n#include <stdio.h>\nint main(void){printf("%d", dlsym(RTLD_DEFAULT, "malloc") != 0);}\n'
    )
    program = tmp_path / "hello"
    subprocess.run(["musl-gcc", str(source), "-o", str(program)], check=True)
    done = subprocess.run([str(program)], env=container(1000).environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1", "")


def test_the_stand_in_driver_enforces_without_a_preload(container: Callable[..., Container]) -> None:
    build(SHIM, "replacement")
    box = container(1000)
    environment = {name: value for name, value in box.environment.items() if name != "LD_PRELOAD"}
    environment["GPUSLICE_REAL_LIBCUDA"] = str(DRIVERS / "build" / "libcuda.so.1")
    environment["LD_LIBRARY_PATH"] = f"{SHIM / 'build' / 'replacement'}:{environment['LD_LIBRARY_PATH']}"
    with Client(environment) as client:
        assert client.code("device 0") == 0
        assert client.ask("info")[2] == str(1000 * MIB)
        assert client.alloc(900) == OUT_OF_MEMORY
        assert client.alloc(500) == 0
        assert client.code("kernel k_20us") == 0
        assert client.code("launch 10 sync") == 0


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind")
@pytest.mark.timeout(300)
def test_a_program_under_valgrind_shows_no_error_of_ours(built: None) -> None:
    build(SHIM, "valgrind")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_program_with_the_library_in_it_is_clean_under_sanitizers(built: None) -> None:
    build(SHIM, "asan")


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.skipif(
    shutil.which("aarch64-linux-gnu-gcc") is None,
    reason="needs a cross compiler: apt-get install gcc-aarch64-linux-gnu",
)
def test_it_builds_for_arm_and_its_parts_run_there() -> None:
    build(SHIM, "aarch64")
