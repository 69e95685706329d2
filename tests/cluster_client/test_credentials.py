"""A token in a file that somebody else writes, at any moment."""

from pathlib import Path

import pytest

from gpuslice.cluster.credentials import TOKEN_REREAD_SECONDS, TokenFile
from gpuslice.devices.errors import BadConfiguration

pytestmark = pytest.mark.anyio
BAD = [
    pytest.param(None, id="no file"),
    pytest.param(b"", id="an empty file"),
    pytest.param(b" \n", id="white space"),
    pytest.param(b"one\ntwo\n", id="two lines, the second of which would be a header"),
    pytest.param(b"\xff\xfet\x00", id="another encoding"),
    pytest.param("schl\u00fcssel".encode(), id="letters that no header has"),
]


def write(path: Path, content: bytes | None) -> None:
    if content is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(content)


async def test_a_token_is_read_again_after_a_minute_and_when_it_is_refused(tmp_path: Path) -> None:
    path, now = tmp_path / "token", 0.0
    credentials = TokenFile(path, clock=lambda: now)
    write(path, b"first\n")
    assert await credentials.headers() == {"Authorization": "Bearer first"}
    write(path, b"second")
    now = TOKEN_REREAD_SECONDS - 1
    assert await credentials.headers() == {"Authorization": "Bearer first"}
    now = TOKEN_REREAD_SECONDS
    assert await credentials.headers() == {"Authorization": "Bearer second"}
    write(path, b"third")
    credentials.forget()
    assert await credentials.headers() == {"Authorization": "Bearer third"}


@pytest.mark.parametrize("content", BAD)
async def test_what_is_no_token_leaves_the_last_one_in_use(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "token"
    credentials = TokenFile(path)
    write(path, b"first")
    await credentials.headers()
    write(path, content)
    credentials.forget()
    assert await credentials.headers() == {"Authorization": "Bearer first"}
    write(path, b"second")
    assert await credentials.headers() == {"Authorization": "Bearer second"}


@pytest.mark.parametrize("content", BAD)
async def test_without_any_token_nothing_begins(content: bytes | None, tmp_path: Path) -> None:
    write(tmp_path / "token", content)
    with pytest.raises(BadConfiguration, match="mount a service account token"):
        await TokenFile(tmp_path / "token").headers()
