"""Run daemons as Kubernetes would: restart what dies, stop everything at the end, leave nothing behind.

Children get a parent-death signal (through util-linux's setpriv), so that even a killed demo leaves no process.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec
import structlog

from gpuslice.devices.errors import GpusliceError
from simulator.processes import die_with_parent

STOP_SECONDS = 3.0
READY_SECONDS = 30.0
POLL_SECONDS = 0.02
RESTART_SECONDS = 0.3
"""Pause before a daemon that died is started again, as a container runtime would."""

Ports = Mapping[str, int]
log = structlog.get_logger(__name__)


class DaemonNotReady(GpusliceError):
    """A daemon did not come up in time; the end of its log says why."""

    def __init__(self, name: str, seconds: float, log_tail: str) -> None:
        super().__init__(f"{name} was not ready after {seconds:g} s; its log ends with:\n{log_tail}")
        self.name = name


@dataclass(frozen=True, slots=True)
class DaemonSpec:
    """How to start one daemon."""

    name: str
    module: str
    """Python module with a ``__main__``."""
    arguments: Callable[[Ports], Sequence[str]]
    """Given the ports of the first start (empty then), so that a restarted daemon listens where it was known."""
    environment: Mapping[str, str] = field(default_factory=dict)


class Supervisor:
    """Keeps daemons running until stopped.

    Logs go to ``folder/<name>.log``; each daemon writes its ports to ``folder/<name>.ports``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._stop_asked = asyncio.Event()
        self.restarts = 0

    def start(self, spec: DaemonSpec) -> None:
        """Start a daemon and keep it alive."""
        self.ports_file(spec.name).unlink(missing_ok=True)
        self._keepers.append(asyncio.create_task(self._keep(spec), name=f"keep {spec.name}"))

    def pid(self, name: str) -> int | None:
        """Return the process id of a daemon that runs at this moment."""
        process = self._running.get(name)
        return process.pid if process is not None else None

    def log_file(self, name: str) -> Path:
        """Return where the daemon's output goes."""
        return self._folder / f"{name}.log"

    def ports_file(self, name: str) -> Path:
        """Return where the daemon writes its ports."""
        return self._folder / f"{name}.ports"

    def ports(self, name: str) -> dict[str, int]:
        """Return the daemon's ports; empty until it listens."""
        path = self.ports_file(name)
        return msgspec.json.decode(path.read_bytes(), type=dict[str, int]) if path.exists() else {}

    async def wait_ready(self, name: str, *, seconds: float = READY_SECONDS) -> dict[str, int]:
        """Wait until the daemon's /readyz says so, and return its ports.

        Raises:
            DaemonNotReady: It does not in time.
        """
        try:
            async with asyncio.timeout(seconds), aiohttp.ClientSession() as session:
                while True:
                    ports = self.ports(name)
                    if ports and await _is_ready(session, ports["metrics"]):
                        return ports
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError as error:
            raise DaemonNotReady(name, seconds, self.log_tail(name)) from error

    def log_tail(self, name: str, *, lines: int = 15) -> str:
        """Return the end of a daemon's log."""
        path = self.log_file(name)
        text = path.read_text(errors="replace") if path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    async def stop(self) -> None:
        """Stop every daemon: SIGTERM, then SIGKILL after a grace period."""
        self._stop_asked.set()
        for process in self._running.values():
            _signal_group(process, signal.SIGTERM)
        await asyncio.gather(*(self._reap(process) for process in list(self._running.values())))
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)

    async def _keep(self, spec: DaemonSpec) -> None:
        while not self._stop_asked.is_set():
            with self.log_file(spec.name).open("ab") as output:
                process = await asyncio.create_subprocess_exec(
                    *die_with_parent([sys.executable, "-m", spec.module, *spec.arguments(self.ports(spec.name))]),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={**os.environ, **spec.environment},
                    start_new_session=True,
                )
            self._running[spec.name] = process
            try:
                code = await process.wait()
            finally:
                del self._running[spec.name]
                _signal_group(process, signal.SIGKILL)
            if self._stop_asked.is_set():
                return
            self.restarts += 1
            log.info("daemon_ended", daemon=spec.name, code=code)
            await asyncio.sleep(RESTART_SECONDS)

    @staticmethod
    async def _reap(process: asyncio.subprocess.Process) -> None:
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            _signal_group(process, signal.SIGKILL)
            await process.wait()


def _signal_group(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


async def _is_ready(session: aiohttp.ClientSession, port: int) -> bool:
    try:
        async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False
