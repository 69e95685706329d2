"""The product's daemons as processes of the host, each with the rights that the chart gives its service account."""

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cluster.build import cache_root
from tests.cluster.harness.process import ClusterError, Supervised, wait_until

ROOT = Path(__file__).resolve().parents[3]
READY_SECONDS = 30.0


class Daemon:
    """One daemon: started, killed, started again, with the ports that it chose.

    Args:
        module: `python -m MODULE`.
        flags: Its command line without the ports file.
        folder: For its log and its ports file.
        name: Name in messages; the module's by default.
        environment: Added to the test's own.
    """

    def __init__(
        self,
        module: str,
        flags: Sequence[str],
        *,
        folder: Path,
        name: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name or module
        self._module, self._flags, self._folder = module, list(flags), folder
        self._environment = {**_python_environment(), **(environment or {})}
        self._process: Supervised | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def process(self) -> Supervised:
        """The process that runs now, or ran last.

        Raises:
            ClusterError: It was never started.
        """
        if self._process is None:
            raise ClusterError(f"{self.name} was never started")
        return self._process

    @property
    def ports(self) -> dict[str, int]:
        """The ports that it listens on, by purpose; empty until it has written them."""
        try:
            ports: dict[str, int] = json.loads(self._ports_file.read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return ports

    @property
    def _ports_file(self) -> Path:
        return self._folder / f"{self.name}-ports.json"

    def start(self) -> None:
        """Start the process and return at once."""
        self._ports_file.unlink(missing_ok=True)
        argv = [sys.executable, "-m", self._module, *self._flags, f"--ports-file={self._ports_file}"]
        log = self._folder / f"{self.name}.log"
        self._process = Supervised(self.name, argv, log=log, environment=self._environment)

    def wait_ready(self, *, within_seconds: float = READY_SECONDS) -> None:
        """Wait until /readyz answers 200."""
        wait_until(
            lambda: self.fetch("readyz")[0] == 200,
            what=f"{self.name} ready",
            within_seconds=within_seconds,
            watched=[self.process],
            explain=lambda: f"/readyz: {self._last_word()}",
        )

    def _last_word(self) -> str:
        try:
            return str(self.fetch("readyz"))
        except OSError as error:
            return str(error)

    def fetch(self, path: str, *, port: str = "metrics") -> tuple[int, str]:
        """Read a page of the daemon by plain HTTP.

        Raises:
            OSError: It does not listen.
        """
        number = self.ports.get(port)
        if number is None:
            raise ConnectionError(f"{self.name} has not told its ports")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{number}/{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metric(self, name: str, match: Callable[[str], bool] = lambda labels: True) -> float:
        """Return the sum of a metric's samples whose label text matches; 0 if there is none."""
        total = 0.0
        for line in self.fetch("metrics")[1].splitlines():
            sample, _, value = line.rpartition(" ")
            bare, _, labels = sample.partition("{")
            if bare == name and match(labels):
                total += float(value)
        return total

    def decision(self, namespace: str, pod: str) -> dict[str, Any]:
        """Return what the extender remembers of its last decision on a pod."""
        status, text = self.fetch(f"decisions/{namespace}/{pod}", port="listen")
        return json.loads(text) if status == 200 else {}

    def kill(self) -> None:
        """End the process at once, as a crash would."""
        if self._process is not None:
            self._process.kill()

    def stop(self) -> float:
        """Ask the process to end; returns the seconds it took."""
        return self.process.stop()

    def restart(self) -> None:
        """Kill and start it, and wait until it is ready."""
        self.kill()
        self.start()
        self.wait_ready()


def _python_environment() -> dict[str, str]:
    """Return the environment of a daemon: compiled modules are kept outside the tree, so that starts are quick."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(cache_root() / "pycache")}
