"""The wheel is what people install: commands, generated wire, the shim and the fake drivers must be inside."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gpuslice import __version__

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.xdist_group("wheel"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    uv = shutil.which("uv") or str(ROOT / ".venv" / "bootstrap" / "bin" / "uv")
    command = [uv, "build", "--wheel", "--quiet", "--no-build-isolation", "--python", sys.executable]
    subprocess.run([*command, "--out-dir", str(folder), str(ROOT)], check=True, timeout=280)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("gpuslice/lib/libvgpu.so", id="the preload library"),
        pytest.param("gpuslice/proto/deviceplugin/v1beta1/api_pb2_grpc.py", id="the generated kubelet wire"),
        pytest.param("gpuslice/devices/families/nvidia.yaml", id="the device families"),
        pytest.param("simulator/drivers/build/libcuda.so.1", id="the fake CUDA driver"),
        pytest.param("simulator/drivers/build/libnvidia-ml.so.1", id="the fake NVML"),
        pytest.param("simulator/demo/examples/one-slice.yaml", id="the demo's manifests"),
    ],
)
def test_the_wheel_holds(installed: Path, path: str) -> None:
    assert (installed / path).is_file()


def test_the_wheel_is_for_linux_on_x86_64_and_any_python_3(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")


@pytest.mark.parametrize("command", ["gpuslice", "kubectl-gpuslice"])
def test_both_commands_start(installed: Path, command: str) -> None:
    entry_points = next(installed.glob("*.dist-info")) / "entry_points.txt"
    assert f"{command} = cli.main:main" in entry_points.read_text().splitlines()
    done = subprocess.run(
        [sys.executable, "-m", "cli", "version"],
        cwd=installed,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout.strip() == __version__
