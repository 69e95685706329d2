"""Devices described in a file: the study demo's example.com/foo, and what is refused."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from deviceplugin import generic
from deviceplugin.backend import Refused
from gpuslice.devices.errors import BadConfiguration

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "foo-device"
FOO = {"resource": "example.com/foo", "count": 4}


def described(tmp_path: Path, **fields: object) -> generic.Description:
    file = tmp_path / "device.yaml"
    file.write_text(yaml.safe_dump({**FOO, **fields}))
    return generic.load(file)


async def backend(tmp_path: Path, **fields: object) -> generic.GenericBackend:
    made = generic.GenericBackend(described(tmp_path, **fields))
    await made.refresh()
    return made


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        pytest.param({"resource": "foo"}, "resource: 'foo' is not vendor.tld/name", id="a name without a vendor"),
        pytest.param({"resource": "x.kubernetes.io/foo"}, "is not vendor.tld/name", id="a name of Kubernetes itself"),
        pytest.param({"count": 0}, "give either count or paths", id="neither count nor paths"),
        pytest.param({"paths": ["/dev/x*"]}, "give either count or paths", id="both count and paths"),
        pytest.param({"count": -1}, "count: -1 is out of range", id="a negative count"),
        pytest.param({"cuont": 4}, "unknown field `cuont`", id="a typo"),
        pytest.param({"env": {"A": 1}}, "Expected `str`, got `int`", id="a number where text belongs"),
        pytest.param(
            {"devices": [{"hostPath": "/dev/x", "containerPath": "/dev/x", "permissions": "rwx"}]},
            "permissions: 'rwx' is not of r, w, m",
            id="a permission that does not exist",
        ),
    ],
)
def test_a_wrong_file_is_refused_by_field(tmp_path: Path, fields: dict[str, object], problem: str) -> None:
    with pytest.raises(BadConfiguration, match=re.escape(problem)):
        described(tmp_path, **fields)


@pytest.mark.anyio
async def test_a_container_sees_its_own_devices_in_order(tmp_path: Path) -> None:
    foo = await backend(tmp_path, env={"FOO": "{ids}", "AT": "{indexes}"})
    assert foo.allocate(["foo-3", "foo-1"]).env == {"FOO": "foo-1,foo-3", "AT": "1,3"}


@pytest.mark.anyio
async def test_device_files_are_handed_over_by_path(tmp_path: Path) -> None:
    for name in ("cam0", "cam1"):
        (tmp_path / name).touch()
    node = {"hostPath": "{path}", "containerPath": "/dev/video{index}"}
    cams = await backend(tmp_path, count=0, paths=[f"{tmp_path}/cam*"], devices=[node])
    edits = cams.allocate([sorted(cams.devices.ids)[1]])
    assert [(n.host_path, n.container_path) for n in edits.devices] == [(f"{tmp_path}/cam1", "/dev/video1")]


@pytest.mark.anyio
async def test_a_path_that_vanishes_stays_listed_as_unhealthy(tmp_path: Path) -> None:
    file = tmp_path / "cam0"
    file.touch()
    cams = await backend(tmp_path, count=0, paths=[f"{tmp_path}/cam*"])
    file.unlink()
    await cams.refresh()
    assert [device.healthy for device in cams.devices.devices] == [False]


@pytest.mark.anyio
async def test_health_follows_the_file_and_holds_back_a_start(tmp_path: Path) -> None:
    foo = await backend(tmp_path, health={"file": f"{tmp_path}/{{index}}.broken"})
    (tmp_path / "2.broken").touch()
    await foo.refresh()
    assert [device.id for device in foo.devices.devices if not device.healthy] == ["foo-2"]
    with pytest.raises(Refused, match="device foo-2 is not healthy"):
        await foo.pre_start(["foo-2"])
    (tmp_path / "2.broken").unlink()
    await foo.pre_start(["foo-2"])


@pytest.mark.parametrize("ids", [["foo-9"], ["foo-1", "foo-1"], []])
@pytest.mark.anyio
async def test_strange_ids_are_refused(tmp_path: Path, ids: list[str]) -> None:
    foo = await backend(tmp_path)
    with pytest.raises(Refused):
        foo.allocate(ids)


@pytest.mark.anyio
async def test_two_devices_come_from_one_numa_node_where_one_has_both(tmp_path: Path) -> None:
    foo = await backend(tmp_path, numa={"0": 0, "1": 1, "2": 1, "3": 2})
    assert sorted(await foo.prefer(["foo-0", "foo-1", "foo-2", "foo-3"], [], 2)) == ["foo-1", "foo-2"]


def test_the_study_demo_plays_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "foo.yaml"
    file.write_text((EXAMPLE / "foo.yaml").read_text().replace("/tmp/foo", str(tmp_path)))
    command = [sys.executable, "-m", "simulator.kubelet.play", "--device-file", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    calls = set(re.findall(r"^  (\w+): ", done.stdout, re.MULTILINE))
    assert {"GetPreferredAllocation", "Allocate", "PreStartContainer"} <= calls
    assert "allocatable 3" in done.stdout
    assert "container says: I see FOO_DEVICES=foo-" in done.stdout
