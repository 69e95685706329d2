"""Files are written whole or not at all."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuslice.devices.wholefile import write_whole


@pytest.fixture
def strict_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("strict_umask")
@pytest.mark.parametrize(("asked", "given"), [(0o644, 0o644), (None, 0o600)])
def test_a_mode_that_is_asked_for_is_given_whatever_the_umask(tmp_path: Path, asked: int | None, given: int) -> None:
    write_whole(tmp_path / "file", b"content", asked)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == given


def test_shorter_content_takes_the_place_of_longer(tmp_path: Path) -> None:
    write_whole(tmp_path / "file", b"a long content")
    write_whole(tmp_path / "file", b"short")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"short")]


def test_a_disk_that_takes_a_part_only_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_whole(tmp_path / "file", b"before")
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: write(descriptor, content[:3]))
    with pytest.raises(OSError, match="make room"):
        write_whole(tmp_path / "file", b"after")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"before")]


def test_without_its_directory_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "none" / "file", b"content")
