"""Fake nodes for these tests: an inventory, a state directory, and programs that run on the fake drivers."""

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DRIVERS = HERE.parents[2] / "simulator" / "drivers"
BUILD = DRIVERS / "build"
MIB = 1024 * 1024


def build_drivers() -> None:
    """Build them; the Makefile lets one process at a time do it."""
    _run(["make", "-s", "-C", str(DRIVERS)])


def compile_c(source: Path, out: Path, *options: str) -> None:
    """Compile one C file with all warnings as errors."""
    _run(["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-O1", *options, str(source), "-o", str(out)])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


@dataclass
class Node:
    """One fake node in a directory of its own."""

    directory: Path
    inventory: str
    extra: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "inventory.yaml").write_text(self.inventory)

    @property
    def state(self) -> Path:
        """Directory of the node's shared state and control file."""
        return self.directory / "state"

    @property
    def environment(self) -> dict[str, str]:
        """Everything a process on this node needs."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.directory),
            "TERM": "xterm",
            "LANG": "C.UTF-8",
            "LD_LIBRARY_PATH": str(BUILD),
            "GPUSLICE_FAKE_INVENTORY": str(self.directory / "inventory.yaml"),
            "GPUSLICE_FAKE_STATE": str(self.state),
            **self.extra,
        }

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        return subprocess.run(
            command, env=self.environment | environment, capture_output=True, text=True, check=False, timeout=50
        )

    def control(self, line: str) -> None:
        """Append one directive to the control file."""
        self.state.mkdir(exist_ok=True)
        with (self.state / "control").open("a") as file:
            file.write(line + "\n")

    def ledger(self) -> list[dict[str, Any]]:
        """The cards' entries in the drivers' own books."""
        done = self.run(str(BUILD / "fakestat"))
        assert done.returncode == 0, done.stderr
        cards: list[dict[str, Any]] = json.loads(done.stdout)["cards"]
        return cards

    def probe(self, *options: str, **environment: str) -> list[dict[str, Any]]:
        """Events that gpuprobe prints."""
        done = self.run(str(BUILD / "gpuprobe"), *options, **environment)
        return [json.loads(line) for line in done.stdout.splitlines()]


class Program:
    """tests/native/drivers/client.c, told what to do line by line."""

    def __init__(self, binary: Path, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [str(binary)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, command: str) -> list[str]:
        """Give a command, return the words of the answer: result code, then values."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().split()

    def ok(self, command: str) -> list[str]:
        """Give a command that must succeed, return its values."""
        code, *values = self.ask(command)
        assert code == "0", f"{command}: {code}"
        return values

    def start(self, device: int = 0) -> "Program":
        """Initialise CUDA and make a context current."""
        self.ok("init")
        self.ok(f"context {device}")
        return self

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self._close()

    def end(self) -> None:
        """Let it return from main."""
        self._close()

    def _close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self.process.wait(10)
