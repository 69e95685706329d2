import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuslice.devices.limits import DeviceLimit
from tests.native.shim_rig import DRIVERS, SHIM, Container, Node, build


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The library, its test programs and the fake drivers, built once whatever number of test processes there is."""
    with (tmp_path_factory.getbasetemp().parent / "native-build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        build(DRIVERS)
        build(SHIM, "all", "test-programs")


@pytest.fixture
def node(built: None, tmp_path: Path) -> Node:
    return Node(tmp_path / "node")


@pytest.fixture
def container(node: Node) -> Callable[..., Container]:
    """Make a container with so much memory (MiB) and so many cores (percent) of the node's first card."""
    made: list[Container] = []

    def make(memory_mib: int = 1000, core_percent: int = 0, cards: int = 1, **fields: object) -> Container:
        limits = [DeviceLimit(uuid, memory_mib, core_percent, **fields) for uuid in node.uuids()[:cards]]  # type: ignore[arg-type]
        made.append(Container(node, f"container-{len(made)}", limits))
        return made[-1]

    return make
