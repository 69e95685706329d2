"""One active plugin process per node, by a file lock that the kernel releases with the process.

During a rolling update the new process starts, reads everything and stands ready; it registers the moment the old one,
which has ended its streams first, lets go. The other order would break both (see deviceplugin.registration).
"""

import asyncio
import fcntl
import os
from pathlib import Path

_LOOK_AGAIN_SECONDS = 0.01


class NodeLock:
    """The lock of one state directory."""

    def __init__(self, state: Path) -> None:
        self._path = state / "plugin.lock"
        self._descriptor = -1

    def try_acquire(self) -> bool:
        """Take the lock if it is free."""
        if self._descriptor < 0:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    async def acquire(self) -> None:
        """Wait for the lock."""
        while not self.try_acquire():  # noqa: ASYNC110  another process holds it: there is no event to wait for
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    def release(self) -> None:
        """Let go; the file stays."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
