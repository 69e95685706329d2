"""Limits that cannot be read close the quota; those that can mean exactly what they say."""

import os
from pathlib import Path

import pytest

from gpuslice.devices import limits_layout as layout
from gpuslice.devices.limits import MIB, DeviceLimit
from tests.native.shim_rig import CONTEXT_MIB, OUT_OF_MEMORY, Client, Container, Node

GOOD = {
    "4G": 4096, "4096M": 4096, "3000m": 3000, "4Gi": 4096, "4GiB": 4096, "4GB": 4096, " 4G ": 4096, "4G\n": 4096,
    "1.5G": 1536, "08G": 8192, "2097152k": 2048, "1073741824": 1024,
}  # fmt: skip
BAD = ["0", "0m", "-1", "", "abc", "50%", "99999999999G", "10GBx", "1.0000001G", "4 G G", "0x10G", "+4G", "4e3"]


def start(node: Node, tmp_path: Path, **variables: str) -> Client:
    library = Container(node, "unused").environment["LD_PRELOAD"]
    shared = str(tmp_path / "state")
    return Client({**node.environment, "LD_PRELOAD": library, "CUDA_DEVICE_MEMORY_SHARED_CACHE": shared, **variables})


@pytest.mark.parametrize(("text", "mib"), GOOD.items())
def test_good_amounts_are_exact(node: Node, tmp_path: Path, text: str, mib: int) -> None:
    with start(node, tmp_path, CUDA_DEVICE_MEMORY_LIMIT=text) as client:
        assert client.code("device 0") == 0
        assert client.ask("info")[2] == str(mib * MIB)
        assert client.close() == ""


@pytest.mark.parametrize("text", BAD)
def test_bad_amounts_close_the_quota_with_one_line(node: Node, tmp_path: Path, text: str) -> None:
    with start(node, tmp_path, CUDA_DEVICE_MEMORY_LIMIT=text) as client:
        assert client.code("device 0") == OUT_OF_MEMORY
        lines = client.close().splitlines()
        assert len(lines) == 1
        assert "CUDA_DEVICE_MEMORY_LIMIT" in lines[0]
        assert "every allocation is denied" in lines[0]


@pytest.mark.parametrize("percent", ["101", "-5", "x", "", "10%"])
def test_bad_core_shares_close_the_quota_too(node: Node, tmp_path: Path, percent: str) -> None:
    with start(node, tmp_path, CUDA_DEVICE_MEMORY_LIMIT="1G", CUDA_DEVICE_SM_LIMIT=percent) as client:
        assert client.code("device 0") == OUT_OF_MEMORY


@pytest.mark.parametrize("visible", ["0,1", "1,0", "1"])
def test_indexed_limits_belong_to_the_card_not_to_the_visible_order(node: Node, tmp_path: Path, visible: str) -> None:
    limits = {"CUDA_DEVICE_MEMORY_LIMIT_0": "1000m", "CUDA_DEVICE_MEMORY_LIMIT_1": "2000m"}
    with start(node, tmp_path, CUDA_VISIBLE_DEVICES=visible, **limits) as client:
        for ordinal, card in enumerate(visible.split(",")):
            client.code(f"device {ordinal}")
            assert client.total_mib() == {"0": 1000, "1": 2000}[card]


@pytest.mark.parametrize("first", [True, False], ids=["with the variables first", "without them first"])
@pytest.mark.parametrize("second", [True, False], ids=["with them second", "without them second"])
@pytest.mark.parametrize("existing", [True, False], ids=["state exists", "fresh state"])
def test_who_starts_first_and_with_what_environment_does_not_matter(
    node: Node, first: bool, second: bool, existing: bool
) -> None:
    """The limits file is the same for a shell that lost its environment (ssh, su, cron)."""
    box = Container(node, "box", [DeviceLimit(node.uuids()[0], 1024)])
    if existing:
        with box.start() as client:
            client.code("device 0")
    for with_variables in (first, second):
        with box.start(**({"CUDA_DEVICE_MEMORY_LIMIT": "50G"} if with_variables else {})) as client:
            client.code("device 0")
            assert client.total_mib() == 1024
            assert client.alloc(1024 - CONTEXT_MIB) == 0
            assert client.alloc(2) == OUT_OF_MEMORY


def spoil(data: bytearray, how: str) -> bytes:
    if how == "empty":
        return b""
    if how == "truncated":
        return bytes(data[:1000])
    at = {"magic": 0, "version": 8, "record": 150, "odd sequence": 16}[how]
    data[at] ^= 1
    return bytes(data)


@pytest.mark.parametrize("how", ["empty", "truncated", "magic", "version", "record", "odd sequence"])
def test_a_garbled_limits_file_closes_the_quota(node: Node, how: str) -> None:
    box = Container(node, "box", [DeviceLimit(node.uuids()[0], 1024)])
    path = box.directory / "limits"
    path.write_bytes(spoil(bytearray(path.read_bytes()), how))
    with box.start() as client:
        assert client.code("device 0") == OUT_OF_MEMORY
        assert len(client.close().splitlines()) == 1


@pytest.mark.timeout(20)
def test_a_pipe_in_place_of_the_limits_holds_nobody_up(node: Node) -> None:
    box = Container(node, "box")
    os.mkfifo(box.directory / "limits")
    with box.start() as client:
        assert client.code("device 0") == OUT_OF_MEMORY


def test_a_directory_without_limits_closes_the_quota(node: Node) -> None:
    with Container(node, "box").start() as client:
        assert client.code("device 0") == OUT_OF_MEMORY
        assert "every allocation is denied" in client.close()


def test_a_state_file_of_another_version_is_left_alone_and_closes_the_quota(node: Node) -> None:
    box = Container(node, "box", [DeviceLimit(node.uuids()[0], 1024)])
    other = layout.STATE_MAGIC.to_bytes(8, "little") + (layout.STATE_VERSION + 1).to_bytes(4, "little")
    (box.directory / "state").write_bytes(other)
    with box.start() as client:
        assert client.code("device 0") == OUT_OF_MEMORY
        assert "another version" in client.close()
    assert (box.directory / "state").read_bytes()[:12] == other


def test_a_foreign_file_that_the_environment_names_is_left_alone(node: Node, tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"somebody's notes")
    with start(node, tmp_path, CUDA_DEVICE_MEMORY_LIMIT="4G") as client:
        assert client.code("device 0") == OUT_OF_MEMORY
    assert (tmp_path / "state").read_bytes().rstrip(b"\0") == b"somebody's notes"
