"""Notice changes in a directory, or of some files in it, at once: inotify through libc, behind an asyncio event.

inotify alone is not enough (the directory itself may be replaced, events may be lost), so users also look again every
few seconds; see deviceplugin.registration.
"""

import asyncio
import ctypes
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

_IN_CREATE = 0x100
_IN_DELETE = 0x200
_IN_MOVED_TO = 0x80
_IN_DELETE_SELF = 0x400
_IN_MOVE_SELF = 0x800
_IN_ATTRIB = 0x4
_IN_IGNORED = 0x8000
_IN_ONLYDIR = 0x01000000
# struct inotify_event: watch descriptor, mask, cookie, length of the name that follows (padded with zero bytes).
_EVENT = struct.Struct("iIII")
_MASK = _IN_CREATE | _IN_DELETE | _IN_MOVED_TO | _IN_DELETE_SELF | _IN_ONLYDIR
# A file that is removed, or has another put in its place, loses a link at once and its inode later.
_FILE_MASK = _IN_ATTRIB | _IN_MOVE_SELF | _IN_DELETE_SELF

# The mark of the event that says that the kernel's queue was full.
_LOST_EVENTS = -1

_Watched = tuple[tuple[Path, int, int], ...]
"""Each path with the device and inode that it led to."""


class DirectoryWatch:
    """Calls `changed` on the event loop when something happens in the directory, or to files in it. Close it when done.

    While the directory is watched, only files whose names end in `suffix` count: the kubelet rewrites its checkpoint in
    the same directory at each allocation. What happens to the directory itself, or to a file that is watched, always
    counts, whatever it is called.
    """

    def __init__(self, directory: Path, changed: Callable[[], None], *, suffix: str = "") -> None:
        self._directory = directory
        self._suffix = os.fsencode(suffix)
        self._changed = changed
        self._descriptor = -1
        self._watched: _Watched = ()
        self._marks: list[int] = []
        """What the kernel calls the watches of these paths."""

    def ensure(self, *files: Path) -> bool:
        """Start watching, or start anew when a path leads elsewhere now; tell whether anything is watched now.

        Args:
            files: While all of these are there, they are watched and not the directory: only their end counts, or a
                change of their modes or owners.
        """
        masks = dict.fromkeys(files, _FILE_MASK) if files else {self._directory: _MASK}
        wanted = _identities(masks) or _identities(masks := {self._directory: _MASK})
        if not wanted:
            self.close()
            return False
        if self._descriptor >= 0 and self._watched == wanted:
            return True
        libc = ctypes.CDLL(None, use_errno=True)
        if self._descriptor < 0:
            self._descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if self._descriptor < 0:
                return False
            asyncio.get_running_loop().add_reader(self._descriptor, self._drain)
        # Not by a new descriptor: to close one takes the kernel up to 20 ms.
        for mark in self._marks:
            libc.inotify_rm_watch(self._descriptor, mark)
        self._marks = [libc.inotify_add_watch(self._descriptor, os.fsencode(p), mask) for p, mask in masks.items()]
        if min(self._marks) < 0:
            self.close()
            return self.ensure() if files else False
        self._watched = wanted
        return True

    def close(self) -> None:
        """Stop watching."""
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor, self._watched, self._marks = -1, (), []

    def _drain(self) -> None:
        # Once: what is left, if anything is, makes the event loop call again.
        try:
            events = os.read(self._descriptor, 65536)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            self._changed()
            return
        # All of them are looked at, see there.
        if [event for event in _split(events) if self._counts(*event)]:
            self._changed()

    def _counts(self, mark: int, mask: int, name: bytes) -> bool:
        """Tell whether an event matters; where it ended a watch, see to it that the next `ensure` makes another."""
        if mark not in (*self._marks, _LOST_EVENTS):
            # Of a watch that `ensure` has removed since.
            return False
        if mask & _IN_IGNORED or mark == _LOST_EVENTS:
            # The inode is gone, and a new file may have the same number.
            self._watched = ()
        return not name or name.endswith(self._suffix)


def _identities(paths: Iterable[Path]) -> _Watched:
    """Identify what is to be watched; empty when a part of it is not there."""
    found = []
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            return ()
        found.append((path, status.st_dev, status.st_ino))
    return tuple(found)


def _split(events: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield mark, mask and name of each event; a name only for what happens to a file in a watched directory."""
    at = 0
    while at < len(events):
        mark, mask, _, length = _EVENT.unpack_from(events, at)
        at += _EVENT.size
        yield mark, mask, events[at : at + length].rstrip(b"\0")
        at += length
