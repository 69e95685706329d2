"""Containers on one fake card with a virtual clock, where a second takes no time and figures are exact."""

import re
from pathlib import Path

from gpuslice.devices.limits import DeviceLimit
from tests.native.shim_rig import LIBRARY, SHIM, Container, Node

CLOCK = SHIM / "build" / "tests" / "libvclock.so"
SETTLE_MS = 300
UUID = "GPU-00000000-0000-0000-0000-000000000001"


def kernel_ns(name: str) -> int:
    found = re.fullmatch(r"k_(\d+)(us|ms)", name)
    assert found is not None
    return int(found[1]) * {"us": 1_000, "ms": 1_000_000}[found[2]]


def virtual_node(tmp_path: Path, processes: int, card: str = "A100-SXM4-80GB", *, card_fields: str = "") -> Node:
    environment = {"GPUSLICE_FAKE_CLOCK": "virtual", "GPUSLICE_FAKE_PARTICIPANTS": str(processes)}
    node = Node(tmp_path / "node", cards=f"[{{model: {card}, uuid: {UUID}{card_fields}}}]")
    node.environment.update(environment)
    return node


def box_on(node: Node, name: str, percent: int, **fields: object) -> Container:
    box = Container(node, name, [DeviceLimit(UUID, 20_000, percent, **fields)])  # type: ignore[arg-type]
    box.environment["LD_PRELOAD"] = f"{LIBRARY}:{CLOCK}"
    return box
