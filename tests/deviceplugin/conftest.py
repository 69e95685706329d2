import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from simulator.kubelet.kubelet import Behaviour
from simulator.kubelet.rig import FAST, Rig, node_rig


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory with a short name: a socket's path has 107 bytes, of which pytest's own directories take most."""
    with tempfile.TemporaryDirectory(prefix="gs") as name:
        yield Path(name)


@pytest.fixture
async def rig(short_path: Path) -> AsyncIterator[Rig]:
    """A node whose containers only pretend to run."""
    async with node_rig(short_path, behaviour=Behaviour(pace=FAST, pretend=True)) as started:
        yield started
