"""The kubelet's wire: generated the same each time, with the published field numbers."""

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from gpuslice.proto.deviceplugin.v1beta1 import api_pb2 as dp
from gpuslice.proto.podresources.v1 import api_pb2 as res

ROOT = Path(__file__).resolve().parents[2]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_protos", ROOT / "proto" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generation_is_deterministic_and_a_second_run_touches_nothing(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    generate = generator().generate
    first = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in generate(tmp_path)}
    assert first == {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in generate(tmp_path)}
    assert {path.relative_to(tmp_path) for path in first} >= {
        Path("gpuslice/proto/deviceplugin/v1beta1/api_pb2_grpc.py"),
        Path("gpuslice/proto/podresources/v1/api_pb2.pyi"),
    }
    text = (tmp_path / "gpuslice/proto/deviceplugin/v1beta1/api_pb2_grpc.py").read_text()
    assert "from gpuslice.proto.deviceplugin.v1beta1 import api_pb2" in text


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        pytest.param(
            dp.RegisterRequest(version="v1beta1", endpoint="e", resource_name="a/b"),
            b"\x0a\x07v1beta1\x12\x01e\x1a\x03a/b",
            id="RegisterRequest",
        ),
        pytest.param(dp.DevicePluginOptions(get_preferred_allocation_available=True), b"\x10\x01", id="options"),
        pytest.param(
            dp.Device(ID="d", health="Healthy", topology=dp.TopologyInfo(nodes=[dp.NUMANode(ID=1)])),
            b"\x0a\x01d\x12\x07Healthy\x1a\x04\x0a\x02\x08\x01",
            id="Device",
        ),
        pytest.param(
            dp.ContainerPreferredAllocationRequest(
                available_deviceIDs=["a"], must_include_deviceIDs=["b"], allocation_size=2
            ),
            b"\x0a\x01a\x12\x01b\x18\x02",
            id="preference",
        ),
        pytest.param(
            dp.ContainerAllocateResponse(cdi_devices=[dp.CDIDevice(name="v/c=n")]), b"\x2a\x07\x0a\x05v/c=n", id="CDI"
        ),
        pytest.param(res.PodResources(name="p", namespace="n"), b"\x0a\x01p\x12\x01n", id="PodResources"),
        pytest.param(
            res.ContainerDevices(resource_name="a/b", device_ids=["d"]), b"\x0a\x03a/b\x12\x01d", id="ContainerDevices"
        ),
    ],
)
def test_field_numbers_are_the_published_ones(message: dp.Device | res.PodResources, wire: bytes) -> None:
    assert message.SerializeToString() == wire


def test_the_package_is_part_of_every_method_path() -> None:
    assert dp.DESCRIPTOR.package == "v1beta1"
    assert res.DESCRIPTOR.package == "v1"
