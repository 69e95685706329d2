"""Wiring that other projects read wrongly, by real pynvml on the fake driver."""

from pathlib import Path
from typing import Any

import pytest

from gpuslice.devices.inventory import Link
from tests.nvml.test_on_fake_driver import tell

NV = int(Link.NVLINK)
EIGHT_H100 = "cards:\n- {model: H100-SXM5-80GB, count: 8}\nlinks: nvswitch"
TWO_STATES_FAIL = "fail nvmlDeviceGetNvLinkState 999 card 3 times 2"
CUBE_MESH = """\
cards:
- {model: V100-SXM2-16GB, count: 4}
links:
- [X, NV1, NV2, NV1]
- [NV1, X, NV1, NV2]
- [NV2, NV1, X, SYS]
- [NV1, NV2, SYS, X]"""
LINKS_OFF = "cards:\n- {model: H100-SXM5-80GB, count: 2}\nlinks:\n- [X, PIX]\n- [PIX, X]"


def links(tmp_path: Path, inventory: str) -> list[list[int]]:
    machine: dict[str, Any] = tell(tmp_path, "inventory", inventory)
    found: list[list[int]] = machine["links"]
    return found


def test_behind_nvswitch_all_28_pairs_have_all_18_lanes(tmp_path: Path) -> None:
    """HAMi#2103: the remote end of each lane is the switch, so no pair seemed linked."""
    matrix = links(tmp_path, EIGHT_H100)
    pairs = [matrix[a][b] for a in range(8) for b in range(a + 1, 8)]
    assert pairs == [18 * NV] * 28
    assert matrix == [list(row) for row in zip(*matrix, strict=True)]


def test_a_pair_has_as_many_lanes_as_the_poorer_of_the_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HAMi#2103: two of the lanes of card 3 cannot be read."""
    monkeypatch.setenv("GPUSLICE_FAKE_FAULTS", TWO_STATES_FAIL)
    matrix = links(tmp_path, EIGHT_H100)
    pairs = {(a, b): matrix[a][b] for a in range(8) for b in range(a + 1, 8)}
    assert {value for pair, value in pairs.items() if 3 in pair} == {16 * NV}
    assert {value for pair, value in pairs.items() if 3 not in pair} == {18 * NV}


def test_direct_lanes_are_counted_by_the_address_of_their_peer(tmp_path: Path) -> None:
    matrix = links(tmp_path, CUBE_MESH)
    cross = int(Link.CROSS_SOCKET)
    assert matrix == [
        [0, NV, 2 * NV, NV],
        [NV, 0, NV, 2 * NV],
        [2 * NV, NV, 0, cross],
        [NV, 2 * NV, cross, 0],
    ]


def test_lanes_that_are_off_are_no_link(tmp_path: Path) -> None:
    near = int(Link.SINGLE_SWITCH)
    assert links(tmp_path, LINKS_OFF) == [[0, near], [near, 0]]
    assert near < NV
