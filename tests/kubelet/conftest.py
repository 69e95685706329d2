import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory with a short name: a socket's path has 107 bytes, of which pytest's own directories take most."""
    with tempfile.TemporaryDirectory(prefix="gs") as name:
        yield Path(name)
