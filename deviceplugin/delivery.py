"""Files of a grant on the host: its limits, its counters, its CDI specification, and our own record of it.

    <state>/grants/<id>/limits     mounted read-only, written before each start
    <state>/grants/<id>/state      the container's counters, the only thing it may write
    <state>/records/<id>.json      what we know of the grant; never visible to a container
    <state>/ld.so.preload          names the shim's path in the container

Grants outlive the daemon and reboots: the kubelet replays its first answer for the pod's life, so the files it names
are put back at every start.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec
import structlog

from deviceplugin import cdi
from deviceplugin.backend import Edits
from deviceplugin.book import Grant
from deviceplugin.sharing import CONTAINER_LIBRARY, HostPaths
from gpuslice.devices import limits
from gpuslice.devices.decoding import UNREADABLE
from gpuslice.devices.wholefile import write_whole

log = structlog.get_logger(__name__)

_STRAY_SECONDS = 60.0
_encoder = msgspec.json.Encoder(order="sorted")
_decoder = msgspec.json.Decoder(Grant)


class Delivery:
    """Writes and removes the files of grants."""

    def __init__(self, state: Path, cdi_directory: Path, library: Path) -> None:
        self._state = state
        self._cdi = cdi_directory
        self._library = library
        self._grants = state / "grants"
        self._records = state / "records"
        self._preload = state / "ld.so.preload"
        # Asked for several times for each start.
        self._paths = lru_cache(maxsize=16)(self._make_paths)

    def open(self) -> None:
        """Make the directories and the preload file."""
        for directory in (self._state, self._grants, self._records):
            directory.mkdir(parents=True, exist_ok=True)
        # Other users of the host have no business here; containers see single directories by mount.
        self._records.chmod(0o700)
        _replace(self._preload, f"{CONTAINER_LIBRARY}\n".encode())

    def paths(self, grant_id: str) -> HostPaths:
        """Return where a grant's files are."""
        return self._paths(grant_id)

    def _make_paths(self, grant_id: str) -> HostPaths:
        return HostPaths(self._grants / grant_id, self._library, self._preload)

    def deliver(self, grant: Grant, edits: Edits | None, device_limits: Sequence[limits.DeviceLimit]) -> None:
        """Write what the container about to start is to see, and what we must know of it. Idempotent.

        Args:
            grant: The grant, confirmed as far as possible.
            edits: Content of its CDI specification; None when the runtime is told in another way.
            device_limits: Records of the limits file; empty when the shim enforces nothing here.
        """
        directory = self.paths(grant.id).directory
        fresh = self._make(directory)
        record = self._records / f"{grant.id}.json"
        if fresh:
            write_whole(record, _encoder.encode(grant))
        else:
            _replace(record, _encoder.encode(grant))
        path = directory / "limits"
        if device_limits:
            if fresh or not _says(path, device_limits):
                limits.write_limits(path, device_limits)
        elif not fresh:
            path.unlink(missing_ok=True)
        if edits is not None:
            cdi.write(self._cdi, grant.id, edits)

    def _make(self, directory: Path) -> bool:
        """Make what the kubelet's answer points at; tell whether it is new, so that there is nothing in it."""
        fresh = True
        try:
            os.mkdir(directory)
        except FileExistsError:
            fresh = False
        with contextlib.suppress(FileExistsError):
            # Any user of the container may write it; the directory around it is read-only to them.
            limits.create_state(directory / "state")
        return fresh

    def remove(self, grant_id: str) -> None:
        """Remove everything of a grant whose container will not run again."""
        _unlink(cdi.path_of(self._cdi, grant_id))
        # By plain text: a path object for each of the files takes as long as their removal.
        directory = os.path.join(self._grants, grant_id)
        try:
            for name in ("limits", "state"):
                _unlink(f"{directory}/{name}")
            os.rmdir(directory)
        except OSError:
            # Something else is in it.
            shutil.rmtree(directory, ignore_errors=True)
        _unlink(os.path.join(self._records, f"{grant_id}.json"))

    def load(self) -> Iterator[Grant]:
        """Yield the grants of earlier processes; a record that cannot be read is reported and left alone."""
        for path in sorted(self._records.glob("*.json"), key=_changed_at):
            try:
                yield _decoder.decode(path.read_bytes())
            except (OSError, *UNREADABLE) as error:
                log.warning("grant_record_unreadable", file=str(path), error=str(error))

    def sweep(self, known: frozenset[str]) -> int:
        """Remove directories and specifications that belong to no record; return how many.

        Young ones stay: during a rolling replacement the old process may just be finishing a delivery.
        """
        found = {path.name for path in self._grants.iterdir()} | set(cdi.written(self._cdi))
        old = time.time() - _STRAY_SECONDS
        recorded = {path.stem for path in self._records.glob("*.json")}
        strays = [name for name in found - known - recorded if _changed_at(self._grants / name) < old]
        for grant_id in strays:
            self.remove(grant_id)
        return len(strays)


def _unlink(path: str) -> None:
    try:  # noqa: SIM105  three calls less, for each file of each grant
        os.unlink(path)
    except FileNotFoundError:
        pass


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _says(path: Path, wanted: Sequence[limits.DeviceLimit]) -> bool:
    """Tell whether the file already holds these limits; a damaged one is removed, so that it is written anew."""
    try:
        return limits.read_limits(path) == tuple(wanted)
    except FileNotFoundError:
        return False
    except (OSError, limits.BadLimitsFile):
        path.unlink(missing_ok=True)
        return False


def _replace(path: Path, content: bytes) -> None:
    """Write a file in one step; one with the same content is left alone."""
    with contextlib.suppress(OSError):
        if path.read_bytes() == content:
            return
    write_whole(path, content)
