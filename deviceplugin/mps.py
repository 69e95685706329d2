"""One MPS control daemon per card in mode `mps`, supervised.

    <state>/mps/<uuid>/pipe    CUDA_MPS_PIPE_DIRECTORY, mounted into the card's containers
    <state>/mps/<uuid>/log     CUDA_MPS_LOG_DIRECTORY
    <state>/mps/<uuid>/shm     /dev/shm of daemon and clients

A card whose daemon is not ready is unhealthy: clients that start without it would run beside MPS, unlimited. The daemon
is ready when it has made `control` in its pipe directory; `nvidia-cuda-mps-control -f` keeps it in the foreground.

While a card is in this mode only one process may compute on it (compute mode EXCLUSIVE_PROCESS): the MPS server. A
container that leaves CUDA_MPS_PIPE_DIRECTORY aside gets no context, instead of one without limits.
"""

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import structlog

from gpuslice.nvml.library import NvmlError

log = structlog.get_logger(__name__)

_BACKOFF_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_STOP_SECONDS = 1.0
_LOOK_SECONDS = 0.1


class LetOneProcess(Protocol):
    """Sets a card's compute mode: one process alone, or anybody."""

    async def __call__(self, uuid: str, *, alone: bool) -> None:
        """Set it; raises NvmlError where that fails."""


class ControlDaemon:
    """Keeps one card's daemon running. Run `run` as a task; cancelling it stops the daemon."""

    def __init__(
        self, uuid: str, directory: Path, command: str, changed: Callable[[], None], let_one_process: LetOneProcess
    ) -> None:
        self.uuid = uuid
        self.directory = directory
        self._command = shlex.split(command)
        self._changed = changed
        self._let_one_process = let_one_process
        self.ready = False
        self.starts = 0

    async def run(self) -> None:
        """Start the daemon again whenever it ends."""
        try:
            await self._keep()
        finally:
            try:
                await self._let_one_process(self.uuid, alone=False)
            except NvmlError as error:
                log.warning("compute_mode_not_restored", uuid=self.uuid, error=str(error))

    async def _keep(self) -> None:
        while True:
            began = asyncio.get_running_loop().time()
            try:
                await self._once()
            except OSError as error:
                log.error("mps_not_started", uuid=self.uuid, command=self._command, error=str(error))
            except NvmlError as error:
                log.error("mps_not_started", uuid=self.uuid, error=f"the compute mode cannot be set: {error}")
            lived = asyncio.get_running_loop().time() - began
            failures = 0 if lived > 60 else min(self.starts, len(_BACKOFF_SECONDS)) - 1
            await asyncio.sleep(_BACKOFF_SECONDS[max(failures, 0)])

    async def _once(self) -> None:
        self.starts += 1
        await self._let_one_process(self.uuid, alone=True)
        self._make_directories()
        process = await asyncio.create_subprocess_exec(
            *self._command, "-f", env=self._environment(), stdin=asyncio.subprocess.DEVNULL, start_new_session=True
        )
        log.info("mps_started", uuid=self.uuid, pid=process.pid)
        waiter = asyncio.create_task(process.wait())
        try:
            while not waiter.done():
                self._set_ready(ready=(self.directory / "pipe" / "control").exists())
                await asyncio.wait({waiter}, timeout=_LOOK_SECONDS if not self.ready else None)
            log.warning("mps_ended", uuid=self.uuid, exit_code=process.returncode)
        finally:
            self._set_ready(ready=False)
            await _stop(process, waiter)

    def _make_directories(self) -> None:
        for name in ("pipe", "log", "shm"):
            directory = self.directory / name
            directory.mkdir(parents=True, exist_ok=True)
            # Clients may run as any user and must create sockets and segments here; only this card's containers see it.
            directory.chmod(0o1777)
        # What a killed daemon left would look like a ready one.
        for stale in (self.directory / "pipe").iterdir():
            # Containers write here; even a directory that one leaves must not keep the daemon from its start.
            if stale.is_dir() and not stale.is_symlink():
                shutil.rmtree(stale, ignore_errors=True)
            else:
                stale.unlink(missing_ok=True)

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": self.uuid,
            "CUDA_MPS_PIPE_DIRECTORY": str(self.directory / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(self.directory / "log"),
        }

    def _set_ready(self, *, ready: bool) -> None:
        if ready != self.ready:
            self.ready = ready
            self._changed()


async def _stop(process: asyncio.subprocess.Process, waiter: "asyncio.Task[int]") -> None:
    """Stop the daemon and the server it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is not None:
            break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        await asyncio.wait({waiter}, timeout=_STOP_SECONDS)


class MpsDaemons:
    """The daemons of a node: one for each card that is in mode `mps` now."""

    def __init__(self, state: Path, command: str, changed: Callable[[], None], let_one_process: LetOneProcess) -> None:
        self._state = state / "mps"
        self._command = command
        self._changed = changed
        self._let_one_process = let_one_process
        self._daemons: dict[str, ControlDaemon] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def daemons(self) -> Mapping[str, ControlDaemon]:
        """By card."""
        return self._daemons

    def not_ready(self) -> frozenset[str]:
        """Return the cards whose daemon does not serve yet."""
        return frozenset(uuid for uuid, daemon in self._daemons.items() if not daemon.ready)

    def want(self, uuids: frozenset[str]) -> None:
        """Start and stop daemons so that exactly these cards have one."""
        for uuid in set(self._daemons) - uuids:
            task = self._tasks.pop(uuid)
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            del self._daemons[uuid]
        for uuid in uuids - set(self._daemons):
            daemon = ControlDaemon(uuid, self._state / uuid, self._command, self._changed, self._let_one_process)
            self._daemons[uuid] = daemon
            self._tasks[uuid] = asyncio.create_task(daemon.run())

    async def close(self) -> None:
        """Stop all daemons."""
        self.want(frozenset())
        await asyncio.gather(*self._ending, return_exceptions=True)
