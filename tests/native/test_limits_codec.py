"""The Python side of the limits and state files: round trips, checks, and agreement with the library's C layout."""

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.devices import limits_layout as layout
from gpuslice.devices.limits import (
    BadLimitsFile,
    CorePolicy,
    DeviceHint,
    DeviceLimit,
    create_state,
    read_limits,
    read_state,
    uuid_to_bytes,
    write_hints,
    write_limits,
)
from tests.native.shim_rig import SHIM


def uuid(number: int, prefix: str = "GPU") -> str:
    digits = f"{number:032x}"
    return f"{prefix}-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


memory = st.one_of(st.none(), st.integers(1, 1 << 20))
limit = st.builds(
    DeviceLimit,
    uuid=st.builds(uuid, st.integers(0, 2**128 - 1), st.sampled_from(["GPU", "MIG"])),
    memory_mib=memory,
    core_percent=st.integers(0, 100),
    core_policy=st.sampled_from(CorePolicy),
    priority=st.integers(0, 3),
)
some_limits = st.lists(limit, max_size=layout.MAX_DEVICES, unique_by=lambda each: each.uuid)


@given(first=some_limits, second=some_limits)
def test_what_is_written_is_read_created_or_changed_in_place(
    tmp_path_factory: pytest.TempPathFactory, first: list[DeviceLimit], second: list[DeviceLimit]
) -> None:
    path = tmp_path_factory.mktemp("limits") / "limits"
    write_limits(path, first)
    inode = path.stat().st_ino
    assert list(read_limits(path)) == first
    write_limits(path, second)
    assert list(read_limits(path)) == second
    assert path.stat().st_ino == inode, "containers have the file mapped, so it must stay the same file"


@pytest.mark.parametrize(
    ("device", "problem"),
    [
        pytest.param(DeviceLimit("GPU-1", 100), "device UUID 'GPU-1'", id="not a UUID"),
        pytest.param(DeviceLimit(uuid(1), 0), "memory_mib 0", id="no memory is not a limit"),
        pytest.param(DeviceLimit(uuid(1), -5), "memory_mib -5", id="negative memory"),
        pytest.param(DeviceLimit(uuid(1), 100, 101), "core_percent 101", id="more than a card"),
        pytest.param(DeviceLimit(uuid(1), 100, spill_mib=200), "spill_mib 200", id="more spill than memory"),
    ],
)
def test_bad_limits_are_refused_before_anything_is_written(tmp_path: Path, device: DeviceLimit, problem: str) -> None:
    with pytest.raises(BadLimitsFile, match=re.escape(problem)):
        write_limits(tmp_path / "limits", [device])
    assert list(tmp_path.iterdir()) == []


def test_a_device_named_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadLimitsFile, match="twice"):
        write_limits(tmp_path / "limits", [DeviceLimit(uuid(1), 1), DeviceLimit(uuid(1), 2)])


@given(at=st.integers(0, layout.LIMITS_HINTS_AT - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_is_noticed(tmp_path_factory: pytest.TempPathFactory, at: int, bit: int) -> None:
    path = tmp_path_factory.mktemp("limits") / "limits"
    write_limits(path, [DeviceLimit(uuid(1), 1000, 50)])
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)
    harmless = range(layout.LIMITS_HEADER_SEQUENCE.offset, layout.LIMITS_HEADER_SEQUENCE.offset + 4)
    if at in harmless:
        return
    with pytest.raises(BadLimitsFile):
        read_limits(path)


def test_hints_do_not_disturb_the_limits(tmp_path: Path) -> None:
    path = tmp_path / "limits"
    write_limits(path, [DeviceLimit(uuid(1), 1000), DeviceLimit(uuid(2), 2000)])
    write_hints(path, [DeviceHint(uuid(2), 5, others_active_percent=40), DeviceHint(uuid(9), 5)])
    assert [device.memory_mib for device in read_limits(path)] == [1000, 2000]


def test_a_fresh_state_file_is_empty_and_writable_for_every_user(tmp_path: Path) -> None:
    path = tmp_path / "state"
    create_state(path)
    assert path.stat().st_mode & 0o777 == 0o666
    assert path.stat().st_size == layout.STATE_FILE_SIZE
    assert read_state(path).devices == ()


def test_uuids_of_instances_and_cards_are_told_apart_by_their_digits() -> None:
    assert uuid_to_bytes(uuid(7)) == uuid_to_bytes(uuid(7, "MIG")) == (7).to_bytes(16, "big")


def test_python_and_c_agree_on_every_offset(tmp_path: Path) -> None:
    """Both come from layout.spec; this asks the compiler."""
    fields = [name for name in vars(layout) if isinstance(getattr(layout, name), layout.Field)]
    structures = (
        "limits_header",
        "limits_record",
        "limits_hint",
        "state_header",
        "state_device",
        "slot_device",
        "slot",
        "span",
    )
    lines = ["#include <stdio.h>", '#include "layout.h"', "int main(void) {"]
    expected = []
    for name in fields:
        structure = next(s for s in sorted(structures, key=len, reverse=True) if name.startswith(s.upper() + "_"))
        member = name[len(structure) + 1 :].lower()
        lines.append(f'printf("%zu\\n", offsetof(struct {structure}, {member}));')
        expected.append(getattr(layout, name).offset)
    lines += [f'printf("%zu\\n", sizeof(struct {name}_file));' for name in ("limits", "state")] + ["return 0;}"]
    expected += [layout.LIMITS_FILE_SIZE, layout.STATE_FILE_SIZE]
    (tmp_path / "offsets.c").write_text("\n".join(lines))
    program = tmp_path / "offsets"
    subprocess.run(["gcc", "-I", str(SHIM / "include"), str(tmp_path / "offsets.c"), "-o", str(program)], check=True)
    printed = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    assert [int(line) for line in printed.split()] == expected
