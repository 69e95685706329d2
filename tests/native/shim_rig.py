"""A node of fake cards, containers with limits on it, and CUDA programs under the preloaded library.

Everything lies in one temporary directory. The fake driver keeps its own ledger, which is the judge of what the
device really handed out.
"""

import contextlib
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gpuslice.devices.limits import MIB, DeviceLimit, State, read_state, write_limits

ROOT = Path(__file__).resolve().parents[2]
SHIM = ROOT / "hami_core"
LIBRARY = Path(os.environ.get("GPUSLICE_TEST_LIBRARY", SHIM / "build" / "libvgpu.so"))
FAULTY_LIBRARY = SHIM / "build" / "tests" / "libvgpu-faults.so"
CLIENT = SHIM / "build" / "tests" / "client"
DRIVERS = Path(os.environ.get("GPUSLICE_TEST_DRIVERS", ROOT / "simulator" / "drivers"))
OUT_OF_MEMORY = 2
CONTEXT_MIB = 300


def build(folder: Path, *targets: str) -> None:
    """Run make there; its output becomes the failure message."""
    done = subprocess.run(["make", "-s", "-C", str(folder), *targets], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"make -C {folder} {' '.join(targets)}:\n{done.stdout}{done.stderr}")


@dataclass
class Node:
    """One fake node: `cards` lines of its inventory, and the environment that selects it."""

    directory: Path
    cards: str = "[{model: A100-SXM4-80GB, count: 2}]"
    extra: str = ""
    cuda: str = "13.0"
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        inventory = self.directory / "inventory.yaml"
        inventory.write_text(
            f'driver: "580.65.06"\ncuda: "{self.cuda}"\ncontextMiB: {CONTEXT_MIB}\ncards: {self.cards}\n{self.extra}'
        )
        (self.directory / "fake").mkdir(exist_ok=True)
        self.environment = {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": str(DRIVERS / "build"),
            "GPUSLICE_FAKE_INVENTORY": str(inventory),
            "GPUSLICE_FAKE_STATE": str(self.directory / "fake"),
            **self.environment,
        }

    def ledger(self) -> Any:
        """The fake driver's own books, as JSON."""
        done = subprocess.run(
            [str(DRIVERS / "build" / "fakestat")], env=self.environment, capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)

    def uuids(self) -> list[str]:
        """UUIDs of the cards in NVML's order."""
        probe = subprocess.run(
            [str(DRIVERS / "build" / "gpuprobe"), "--list"],
            env=self.environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return [card["uuid"] for card in json.loads(probe.stdout.splitlines()[0])["nvml"]]


class Client:
    """One running CUDA program (hami_core/tests/client.c); commands in, answers out."""

    def __init__(self, environment: Mapping[str, str], program: Sequence[str] = (str(CLIENT),)) -> None:
        self.process = subprocess.Popen(
            program,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started = self._line()

    def _line(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().split()

    def send(self, command: str) -> None:
        """Give a command without waiting for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def answer(self) -> list[str]:
        """The next answer: result code, then values."""
        words = self._line()
        assert words, (
            f"the program ended: {self.process.wait(5)} {self.process.stderr.read() if self.process.stderr else ''}"
        )
        return words

    def ask(self, command: str) -> list[str]:
        """Give a command and wait for its answer."""
        self.send(command)
        return self.answer()

    def code(self, command: str) -> int:
        """Result code of a command."""
        return int(self.ask(command)[0])

    def free_mib(self) -> int:
        """What cuMemGetInfo says is free, in MiB."""
        return int(self.ask("info")[1]) // MIB

    def total_mib(self) -> int:
        """What cuMemGetInfo says there is, in MiB."""
        return int(self.ask("info")[2]) // MIB

    def alloc(self, mib: float, kind: str = "plain") -> int:
        """Allocate; returns the driver's code."""
        return self.code(f"alloc {kind} {int(mib * MIB)}")

    def close(self) -> str:
        """End the program; returns what it wrote to stderr."""
        if self.process.poll() is None:
            with contextlib.suppress(BrokenPipeError):
                self.send("quit")
        _, errors = self.process.communicate(timeout=10)
        return errors

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.communicate(timeout=10)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.process.kill()
        self.close()


class Container:
    """A directory with limits, and programs started under them."""

    def __init__(self, node: Node, name: str, limits: Sequence[DeviceLimit] = (), library: Path = LIBRARY) -> None:
        self.node = node
        self.directory = node.directory / name
        self.directory.mkdir()
        self.environment = {**node.environment, "LD_PRELOAD": str(library), "GPUSLICE_DIR": str(self.directory)}
        if limits:
            self.set_limits(*limits)

    def set_limits(self, *limits: DeviceLimit) -> None:
        """Create or change the limits file."""
        write_limits(self.directory / "limits", limits)

    def start(self, **environment: str) -> Client:
        """A program in this container."""
        return Client({**self.environment, **environment})

    def state(self) -> State:
        """The shared state file."""
        return read_state(self.directory / "state")

    def held_mib(self, row: int = 0) -> int:
        """Sum over the processes of what they hold, in MiB: what used_bytes must equal."""
        return sum(process.total_bytes(row) for process in self.state().processes) // MIB
