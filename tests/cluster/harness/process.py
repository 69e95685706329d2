"""Child processes of the test cluster: started with a log file, awaited with a deadline, never left behind.

Each child is its own process group and carries a parent-death signal, so it dies with the test run however that ends.
Start children from the main thread only: the kernel sends the parent-death signal when the *thread* that forked ends.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

POLL_SECONDS = 0.05
TAIL_LINES = 20
LINE_CHARACTERS = 900

T = TypeVar("T")


class ClusterError(Exception):
    """A part of the test cluster did not do what the test needs; the text carries the tail of its log."""


class Supervised:
    """One child process with its log.

    Attributes:
        name: Role of the process in messages.
        log: File that receives stdout and stderr, appended over restarts.
    """

    def __init__(
        self, name: str, argv: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = log.stat().st_size if log.exists() else 0
        with log.open("ab") as sink:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *argv],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=None if environment is None else dict(environment),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id on the host."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Exit code, negative for a signal, None while it runs."""
        return self._process.poll()

    def tail(self, lines: int = TAIL_LINES) -> str:
        """Return the last lines of the log, for error messages."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(f"  {self.name}| {_shortened(line)}" for line in text.splitlines()[-lines:])

    def said(self, text: str) -> bool:
        """Whether this very process has written a text, not one before it with the same log."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return text.encode() in log.read()

    def signal(self, number: int) -> None:
        """Send a signal to the process alone; nothing if it has ended."""
        if self.alive:
            self._process.send_signal(number)

    def kill(self) -> None:
        """End the whole process group at once and reap it."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self, *, grace_seconds: float = 5.0) -> float:
        """Ask the process to end, kill its group after the grace; returns the seconds it took."""
        started = time.monotonic()
        self.signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_seconds)
        self.kill()
        return time.monotonic() - started


def _shortened(line: str) -> str:
    """Return the beginning and the end of a line: what happened, and what it says at last."""
    return (
        line
        if len(line) <= LINE_CHARACTERS
        else f"{line[: LINE_CHARACTERS // 3]} … {line[-2 * LINE_CHARACTERS // 3 :]}"
    )


def wait_until(
    probe: Callable[[], T],
    *,
    what: str,
    within_seconds: float,
    watched: Sequence[Supervised] = (),
    explain: Callable[[], str] | None = None,
) -> T:
    """Poll until the probe returns something truthy and return that.

    Args:
        probe: Asked every 50 ms; exceptions of the network kind count as "not yet".
        what: The condition in words, for the error.
        within_seconds: Deadline.
        watched: Processes whose end makes waiting pointless.
        explain: Gives the state of affairs for the error message.

    Raises:
        ClusterError: The deadline passed or a watched process ended.
    """
    deadline = time.monotonic() + within_seconds
    last_error = ""
    while True:
        try:
            if value := probe():
                return value
        except (OSError, TimeoutError) as error:
            last_error = f" (last error: {error})"
        ended = [process for process in watched if not process.alive]
        late = time.monotonic() > deadline
        if ended or late:
            reason = f"{ended[0].name} ended with {ended[0].exit_code}" if ended else f"not within {within_seconds} s"
            parts = [f"{what}: {reason}{last_error}"]
            if explain is not None:
                parts.append(explain())
            parts.extend(process.tail() for process in watched)
            raise ClusterError("\n".join(parts))
        time.sleep(POLL_SECONDS)


def hold(probe: Callable[[], bool], *, what: str, for_seconds: float) -> None:
    """Check again and again that something stays so.

    Raises:
        ClusterError: It was not so at some moment.
    """
    deadline = time.monotonic() + for_seconds
    while time.monotonic() < deadline:
        if not probe():
            raise ClusterError(f"{what}: no longer so")
        time.sleep(POLL_SECONDS)


def children_of(pid: int) -> list[int]:
    """Return the process ids of the direct children of a process; none if it is gone."""
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found.extend(int(child) for child in (task / "children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):
        return found
    return found


def run_checked(
    argv: Sequence[str], *, what: str, environment: Mapping[str, str] | None = None, text_in: str | None = None
) -> str:
    """Run a short command and return its stdout.

    Raises:
        ClusterError: It failed; the message carries its stderr.
    """
    result = subprocess.run(
        argv,
        check=False,
        capture_output=True,
        text=True,
        input=text_in,
        env=None if environment is None else dict(environment),
        timeout=120,
    )
    if result.returncode != 0:
        said = f"{result.stderr[-3000:]}{result.stdout[-1000:]}"
        raise ClusterError(f"{what}: {' '.join(argv[:6])} exited with {result.returncode}\n{said}")
    return result.stdout
