"""The tests for a real GPU run on the fake one too, so that they are right when somebody has a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.native.shim_rig import ROOT, Node

H200 = "[{model: H200-SXM5-141GB}]"


def run(tmp_path: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    node = Node(tmp_path / "node", cards=H200)
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-rs", "-p", "no:cacheprovider", "tests/gpu", *arguments]
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **node.environment, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.timeout(60)
def test_they_are_collected_and_say_why_they_are_skipped(built: None, tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the fake driver is on the library path" in done.stdout
    assert "passed" not in done.stdout


@pytest.mark.timeout(90)
def test_those_about_memory_and_lookups_pass(built: None, tmp_path: Path) -> None:
    chosen = "not core_share and not two_tenants and not launch and not torch and not nvml_within"
    done = run(tmp_path, "-k", chosen, GPUSLICE_GPU_TESTS_ON_FAKE="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_those_about_time_pass(built: None, tmp_path: Path) -> None:
    done = run(tmp_path, "-k", "core_share or two_tenants or launch", GPUSLICE_GPU_TESTS_ON_FAKE="1")
    assert done.returncode == 0, done.stdout + done.stderr
