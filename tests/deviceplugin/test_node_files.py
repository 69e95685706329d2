"""Files of others that we read (checkpoint, cgroups) and files that we write (CDI, limits)."""

import base64
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin import cdi, checkpoint
from deviceplugin.backend import DeviceNode, Edits, Mount
from deviceplugin.book import Grant, Identity
from deviceplugin.cgroups import PodProcesses
from deviceplugin.delivery import Delivery
from deviceplugin.limitfile import limits_of
from deviceplugin.offers import GPU_RESOURCE
from gpuslice.devices import limits
from gpuslice.devices.allocation import SliceShare
from gpuslice.devices.inventory import slice_id
from gpuslice.proto.deviceplugin.v1beta1 import api_pb2 as pb
from simulator.kubelet.rig import gpu

UID = "6ecd1a0f-1111-4222-8333-944455566677"


def file(ids: object, response: str = "") -> bytes:
    entry = {"PodUID": UID, "ContainerName": "c", "ResourceName": "r/x", "DeviceIDs": ids, "AllocResp": response}
    return json.dumps({"Data": {"PodDeviceEntries": [entry], "RegisteredDevices": {}}, "Checksum": 1}).encode()


@pytest.mark.parametrize(
    ("content", "ids"),
    [
        pytest.param(file({"0": ["a"], "-1": ["b"]}), {"a", "b"}, id="by NUMA node, since 1.20"),
        pytest.param(file(["a", "b"]), {"a", "b"}, id="a flat list, up to 1.19"),
        pytest.param(file(None), set(), id="null, as Go writes an empty map"),
        pytest.param(b'{"Data":{"PodDeviceEntries":null},"Checksum":2}', None, id="no entries at all"),
    ],
)
def test_a_checkpoint_is_read_in_every_version(content: bytes, ids: set[str] | None) -> None:
    entries = checkpoint.parse(content)
    assert entries is not None
    assert [set(entry.ids) for entry in entries] == ([] if ids is None else [ids])


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"Data": 3}', b"\xff\xfe", file(7), b'{"x":' * 50_000])
def test_a_damaged_checkpoint_is_no_checkpoint(content: bytes) -> None:
    assert checkpoint.parse(content) is None


def entry_of(container: str, ids: object) -> dict[str, object]:
    return {"PodUID": UID, "ContainerName": container, "ResourceName": "r/x", "DeviceIDs": ids}


@pytest.mark.parametrize(
    ("among", "containers"),
    [
        pytest.param({"GPU-1::1"}, ["first", "third"], id="one whose name begins another's"),
        pytest.param({"GPU-1::10", "GPU-1::1"}, ["first", "second", "third"], id="two, in the order of the file"),
        pytest.param({"GPU-9::0"}, [], id="an ID that nobody holds"),
        pytest.param({"a&b"}, ["fourth"], id="a character that Go escapes"),
    ],
)
def test_entries_are_found_by_the_ids_they_hold(among: set[str], containers: list[str]) -> None:
    entries = [
        entry_of("first", {"0": ["GPU-1::1"]}),
        entry_of("second", ["GPU-1::10"]),
        entry_of("third", {"0": ["GPU-2::1"], "1": ["GPU-1::1", "GPU-1::10"]}),
        entry_of("fourth", ["a&b"]),
    ]
    data = {"PodDeviceEntries": entries, "RegisteredDevices": {"r/x": ["GPU-1::1", "GPU-9::0"]}}
    for whole in ({"Data": data, "Checksum": 7}, {"Checksum": 7, "Data": data}, {"Data": data}):
        for separators in ((",", ":"), (", ", ": ")):
            content = json.dumps(whole, separators=separators).replace("&", "\\u0026").encode()
            found = checkpoint.parse(content, frozenset(among))
            assert found is not None
            assert [entry.container for entry in found] == containers


def test_an_entry_that_does_not_begin_with_its_pod_is_found_too() -> None:
    entries = [entry_of("first", ["GPU-1::1"]), dict(reversed(entry_of("second", ["GPU-1::2"]).items()))]
    data = {"PodDeviceEntries": entries, "RegisteredDevices": {}}
    found = checkpoint.parse(json.dumps({"Data": data, "Checksum": 7}).encode(), frozenset({"GPU-1::2"}))
    assert found is not None
    assert [entry.container for entry in found] == ["second"]


@pytest.mark.parametrize("pod_first", [True, False])
def test_entries_that_come_after_the_registered_devices_are_found_too(pod_first: bool) -> None:
    entry = entry_of("first", ["GPU-1::1"])
    entries = [entry if pod_first else dict(reversed(entry.items()))]
    data = {"RegisteredDevices": {"r/x": ["GPU-1::1"]}, "PodDeviceEntries": entries}
    found = checkpoint.parse(json.dumps({"Data": data, "Checksum": 7}).encode(), frozenset({"GPU-1::1"}))
    assert found is not None
    assert [each.container for each in found] == ["first"]


@given(st.integers(0, 400))
def test_a_checkpoint_that_is_cut_short_is_no_checkpoint_wherever_it_ends(length: int) -> None:
    entries = [entry_of("first", ["GPU-1::1"]), entry_of("second", ["GPU-1::2"])]
    data = {"PodDeviceEntries": entries, "RegisteredDevices": {"r/x": []}}
    content = json.dumps({"Data": data, "Checksum": 7}).encode()
    assert checkpoint.parse(content[: min(length, len(content) - 1)], frozenset({"GPU-1::1"})) is None


SECOND = 1_000_000_000


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("age_seconds", "written", "known"),
    [
        pytest.param(2, False, True, id="as it was: not read again"),
        pytest.param(2, True, False, id="written anew"),
        pytest.param(0, False, False, id="too young to tell it from the next"),
    ],
)
async def test_a_checkpoint_that_has_not_changed_is_not_read_again(
    tmp_path: Path, age_seconds: int, written: bool, known: bool
) -> None:
    path = tmp_path / checkpoint.FILE_NAME
    path.write_bytes(file(["a"]))
    now = path.stat().st_mtime_ns + age_seconds * SECOND
    kept = checkpoint.Kept(tmp_path, clock_ns=lambda: now)
    first = await kept.read()
    if written:
        path.write_bytes(file(["b"]))
        os.utime(path, ns=(now - SECOND, now - SECOND))
    second = await kept.read()
    assert first is not None
    assert second is not None
    assert [set(entry.ids) for entry in second] == [{"b"} if written else {"a"}]
    assert (second is first) is known


@pytest.mark.anyio
async def test_a_checkpoint_that_is_gone_is_not_remembered(tmp_path: Path) -> None:
    path = tmp_path / checkpoint.FILE_NAME
    path.write_bytes(file(["a"]))
    kept = checkpoint.Kept(tmp_path, clock_ns=lambda: path.stat().st_mtime_ns + 2 * SECOND if path.exists() else 0)
    assert await kept.read() is not None
    path.unlink()
    assert await kept.read() is None


@pytest.mark.parametrize("response", ["", "***", "Ā", base64.b64encode(b"\xff\xff\xff").decode()])
def test_a_damaged_answer_has_no_environment(response: str) -> None:
    entries = checkpoint.parse(file(["a"], response))
    assert entries is not None
    assert entries[0].env() == {}


def test_the_grant_is_named_by_the_recorded_answer() -> None:
    answer = pb.ContainerAllocateResponse(envs={"GPUSLICE_GRANT": "g1"}).SerializeToString()
    entries = checkpoint.parse(file(["a"], base64.b64encode(answer).decode()))
    assert entries is not None
    assert entries[0].env()["GPUSLICE_GRANT"] == "g1"


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(f"kubepods/burstable/pod{UID}", id="version 2, cgroupfs"),
        pytest.param(f"kubepods/pod{UID}", id="version 2, cgroupfs, guaranteed"),
        pytest.param(f"memory/kubepods/besteffort/pod{UID}", id="version 1, cgroupfs"),
        pytest.param(
            f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice",
            id="version 2, systemd",
        ),
        pytest.param(f"kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice", id="version 2, systemd, guaranteed"),
    ],
)
def test_a_pods_processes_are_found_under_every_driver(tmp_path: Path, path: str) -> None:
    directory = tmp_path / path / "crio-abc"
    directory.mkdir(parents=True)
    (directory / "cgroup.procs").write_text("12\n7\n")
    assert PodProcesses(tmp_path).of(UID) == (7, 12)
    (directory / "cgroup.procs").write_text("")
    assert PodProcesses(tmp_path).of(UID) == ()


def test_below_a_kubelet_root_of_its_own(tmp_path: Path) -> None:
    directory = tmp_path / "memory" / "gs-node-a" / "kubepods" / f"pod{UID}"
    directory.mkdir(parents=True)
    (directory / "cgroup.procs").write_text("3\n")
    assert PodProcesses(tmp_path, "/gs-node-a").of(UID) == (3,)
    assert PodProcesses(tmp_path).of(UID) == ()


@pytest.mark.parametrize("root", [None, Path("/nonexistent")])
def test_without_a_cgroup_file_system_nobody_lives(root: Path | None) -> None:
    assert PodProcesses(root).of(UID) == ()


def test_a_cdi_specification_says_everything_once(tmp_path: Path) -> None:
    edits = Edits(
        {"A": "1"}, (Mount("/h", "/c"), Mount("/s", "/t", read_only=False)), (DeviceNode("/dev/x", "/dev/y"),)
    )
    document = json.loads(cdi.write(tmp_path, "g1", edits).read_text())
    assert document == {
        "cdiVersion": "0.5.0",
        "kind": "gpuslice.io/grant",
        "devices": [
            {
                "name": "g1",
                "containerEdits": {
                    "env": ["A=1"],
                    "mounts": [
                        {"hostPath": "/h", "containerPath": "/c", "options": ["ro", "nosuid", "nodev", "bind"]},
                        {"hostPath": "/s", "containerPath": "/t", "options": ["rw", "nosuid", "nodev", "bind"]},
                    ],
                    "deviceNodes": [{"path": "/dev/y", "hostPath": "/dev/x", "permissions": "rw"}],
                },
            }
        ],
    }


def grant(*slices: tuple[int, int, int, int]) -> Grant:
    shares = tuple(SliceShare(slice_id(gpu(card), number), mib, cores) for card, number, mib, cores in slices)
    ids = frozenset(share.slice for share in shares)
    return Grant("g1", GPU_RESOURCE, ids, UID, "c", Identity.KNOWN, "ns/p", shares, confirmed=True)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param(grant((0, 0, 3000, 30)), [(gpu(0), 3000, 30, "HARD")], id="a share with a compute cap"),
        pytest.param(grant((0, 0, 3000, 0)), [(gpu(0), 3000, 0, "OFF")], id="no cap"),
        pytest.param(
            grant((0, 0, 3000, 30), (0, 1, 1000, 80)), [(gpu(0), 4000, 100, "HARD")], id="two slices of one card"
        ),
        pytest.param(
            grant((2, 0, 500, 0), (0, 0, 700, 0)),
            [(gpu(2), 500, 0, "OFF"), (gpu(0), 700, 0, "OFF")],
            id="order is kept",
        ),
    ],
)
def test_limits_of_a_grant(given: Grant, expected: list[tuple[str, int, int, str]]) -> None:
    found = limits_of(given, "hard")
    assert [(limit.uuid, limit.memory_mib, limit.core_percent, limit.core_policy.name) for limit in found] == expected


def delivery(tmp_path: Path) -> Delivery:
    made = Delivery(tmp_path / "s", tmp_path / "cdi", tmp_path / "lib")
    made.open()
    return made


def test_a_delivered_grant_is_found_again_by_the_next_process(tmp_path: Path) -> None:
    given = grant((0, 0, 3000, 30))
    delivery(tmp_path).deliver(given, Edits({"A": "1"}), limits_of(given, "hard"))
    assert list(delivery(tmp_path).load()) == [given]


def test_an_unreadable_record_costs_that_grant_only(tmp_path: Path) -> None:
    made, given = delivery(tmp_path), grant((0, 0, 3000, 30))
    made.deliver(given, None, ())
    (tmp_path / "s" / "records" / "x.json").write_text("{")
    (tmp_path / "s" / "records" / "y.json").symlink_to(tmp_path / "nowhere")
    assert list(made.load()) == [given]


def test_what_belongs_to_no_record_is_swept_and_what_an_unreadable_one_names_is_left_alone(tmp_path: Path) -> None:
    made = delivery(tmp_path)
    kept, unreadable, stray = (replace(grant((0, 0, 3000, 30)), id=name) for name in ("kept", "unreadable", "stray"))
    directories = {each.id: made.paths(each.id).directory for each in (kept, unreadable, stray)}
    for each in (kept, unreadable, stray):
        made.deliver(each, Edits(), limits_of(each, "hard"))
        os.utime(directories[each.id], (0, 0))
    (tmp_path / "s" / "records" / "unreadable.json").write_text("{")
    (tmp_path / "s" / "records" / "stray.json").unlink()
    assert made.sweep(frozenset({"kept"})) == 1
    assert {name for name, directory in directories.items() if directory.exists()} == {"kept", "unreadable"}


@pytest.mark.parametrize("damage", [b"", b"garbage" * 1000, None])
def test_a_damaged_limits_file_is_written_anew(tmp_path: Path, damage: bytes | None) -> None:
    made, given = delivery(tmp_path), grant((0, 0, 3000, 30))
    path = made.paths(given.id).directory / "limits"
    made.deliver(given, None, ())
    if damage is not None:
        path.write_bytes(damage)
    made.deliver(given, None, limits_of(given, "hard"))
    assert limits.read_limits(path) == limits_of(given, "hard")


def test_delivering_twice_changes_nothing(tmp_path: Path) -> None:
    made, given = delivery(tmp_path), grant((0, 0, 3000, 30))
    made.deliver(given, Edits(), limits_of(given, "hard"))
    path = made.paths(given.id).directory / "limits"
    before = path.read_bytes()
    made.deliver(given, Edits(), limits_of(given, "hard"))
    assert path.read_bytes() == before


def test_a_removed_grant_leaves_nothing(tmp_path: Path) -> None:
    made, given = delivery(tmp_path), grant((0, 0, 3000, 30))
    made.deliver(given, Edits(), limits_of(given, "hard"))
    made.remove(given.id)
    left = [path for path in tmp_path.rglob("*") if given.id in path.name]
    assert left == []
