"""What wakes the daemon that watches the kubelet's directory, on a real file system."""

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from deviceplugin import watchdir
from deviceplugin.watchdir import DirectoryWatch


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def put_in_place(path: Path) -> None:
    bind(path.with_name("new"))
    os.rename(path.with_name("new"), path)


Change = Callable[[Path], None]
CHANGES = [
    pytest.param(lambda d: bind(d / "other.sock"), True, False, id="a socket comes"),
    pytest.param(lambda d: (d / "kubelet.sock").unlink(), True, True, id="the kubelet's socket goes"),
    pytest.param(lambda d: (d / "own.sock").unlink(), True, True, id="our socket goes"),
    pytest.param(lambda d: put_in_place(d / "kubelet.sock"), True, True, id="another is put in its place"),
    pytest.param(lambda d: (d / "checkpoint").write_text("x"), False, False, id="the checkpoint is written"),
]


async def taken() -> None:
    """What the kernel has for us is there before a change returns: two rounds of the event loop take it."""
    for _ in range(2):
        await asyncio.sleep(0)


async def wakes(directory: Path, change: Change, *files: Path) -> bool:
    woken: list[bool] = []
    watch = DirectoryWatch(directory, lambda: woken.append(True), suffix=".sock")
    assert watch.ensure(*files)
    change(directory)
    await taken()
    watch.close()
    return bool(woken)


@pytest.mark.anyio
@pytest.mark.parametrize(("change", "of_directory", "of_sockets"), CHANGES)
async def test_what_wakes(tmp_path: Path, change: Change, of_directory: bool, of_sockets: bool) -> None:
    sockets = [tmp_path / "d" / name for name in ("kubelet.sock", "own.sock")]
    found = []
    for files in ([], sockets):
        directory = tmp_path / "d"
        directory.mkdir(exist_ok=True)
        for path in sockets:
            path.unlink(missing_ok=True)
            bind(path)
        (directory / "other.sock").unlink(missing_ok=True)
        found.append(await wakes(directory, change, *files))
    assert found == [of_directory, of_sockets]


@pytest.mark.anyio
async def test_while_a_socket_is_missing_the_directory_is_watched_for_it(tmp_path: Path) -> None:
    bind(tmp_path / "own.sock")
    files = [tmp_path / "kubelet.sock", tmp_path / "own.sock"]
    assert await wakes(tmp_path, lambda d: bind(d / "kubelet.sock"), *files)


@pytest.mark.anyio
async def test_a_new_socket_with_the_number_of_the_old_one_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File systems use an inode's number again at once; the watch of the old inode went with it."""
    identities = watchdir._identities
    monkeypatch.setattr(watchdir, "_identities", lambda paths: tuple((path, 0, 0) for path, *_ in identities(paths)))
    path, woken = tmp_path / "kubelet.sock", list[bool]()
    watch = DirectoryWatch(tmp_path, lambda: woken.append(True), suffix=".sock")
    for _ in range(3):
        bind(path)
        assert watch.ensure(path)
        path.unlink()
        await taken()
    watch.close()
    assert len(woken) == 3


@pytest.mark.anyio
async def test_the_end_of_a_watch_by_ourselves_wakes_nobody(tmp_path: Path) -> None:
    path, woken = tmp_path / "kubelet.sock", list[bool]()
    bind(path)
    watch = DirectoryWatch(tmp_path, lambda: woken.append(True), suffix=".sock")
    for files in ((), (path,), ()):
        assert watch.ensure(*files)
        await taken()
    watch.close()
    assert woken == []
