"""Writing a file as a whole: whoever reads it, also after this process was killed, finds the old content or the new."""

import os
from pathlib import Path


def write_whole(path: Path, content: bytes, mode: int | None = None) -> None:
    """Put `content` in place of whatever the file holds, by a rename. Not synced: a power failure may undo it.

    Args:
        path: In a directory that exists. The new content stands beside it first, as ``.<name>.<process id>``.
        content: All of it.
        mode: Permissions, whatever the umask; None: as the umask has it.

    Raises:
        OSError: The file is as it was.
    """
    directory, name = os.path.split(path)
    partial = os.path.join(directory, f".{name}.{os.getpid()}")
    # Not through Python's file objects: those take three system calls more.
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        try:
            if mode is not None:
                os.fchmod(descriptor, mode)
            if os.write(descriptor, content) != len(content):
                raise OSError(f"{partial}: the disk took a part of {len(content)} bytes only; make room on it")
        finally:
            os.close(descriptor)
        os.rename(partial, path)
    except OSError:
        os.unlink(partial)
        raise
