from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.native.drivers.rig import HERE, Node, Program, build_drivers, compile_c


@pytest.fixture(scope="session", autouse=True)
def drivers() -> None:
    build_drivers()


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The obedient CUDA program."""
    binary = tmp_path_factory.mktemp("client") / "client"
    compile_c(HERE / "client.c", binary, "-ldl")
    return binary


@pytest.fixture
def programs(client: Path) -> Iterator[Callable[..., Program]]:
    """Start programs on a node; all of them end with the test."""
    started: list[Program] = []

    def start(node: Node, **environment: str) -> Program:
        started.append(Program(client, node.environment | environment))
        return started[-1]

    yield start
    for program in started:
        program.kill()
