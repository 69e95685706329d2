import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session", autouse=True)
def drivers() -> None:
    subprocess.run(["make", "-s", "-C", str(ROOT / "simulator" / "drivers")], check=True, stdout=subprocess.DEVNULL)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
