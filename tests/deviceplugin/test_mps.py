"""MPS: a daemon per card, and containers that are its clients."""

import asyncio
import shlex
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from deviceplugin.book import Grant, Identity
from deviceplugin.mps import MpsDaemons
from deviceplugin.nodeconfig import CardSettings, NodeSettings
from deviceplugin.offers import GPU_RESOURCE, make_offers
from deviceplugin.sharing import HostPaths, describe
from gpuslice.devices.allocation import SliceShare
from gpuslice.devices.inventory import slice_id
from gpuslice.nvml.library import NvmlError
from simulator.kubelet.rig import gpu, machine

pytestmark = pytest.mark.anyio
STAND_IN = f"{shlex.quote(sys.executable)} {shlex.quote(str(Path(__file__).with_name('mps_standin.py')))}"


class Modes:
    """The compute modes of the cards."""

    def __init__(self) -> None:
        self.alone: dict[str, bool] = {}
        self.problem: Exception | None = None

    async def __call__(self, uuid: str, *, alone: bool) -> None:
        if self.problem is not None:
            raise self.problem
        self.alone[uuid] = alone


@pytest.fixture
def modes() -> Modes:
    return Modes()


@pytest.fixture
async def mps(short_path: Path, modes: Modes) -> AsyncIterator[MpsDaemons]:
    daemons = MpsDaemons(short_path, STAND_IN, lambda: None, modes)
    yield daemons
    await daemons.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(15):
        while not condition():  # noqa: ASYNC110  another process makes it true
            await asyncio.sleep(0.02)


async def test_each_card_has_a_daemon_of_its_own_and_is_ready_when_its_socket_is_there(mps: MpsDaemons) -> None:
    mps.want(frozenset({gpu(0), gpu(1)}))
    assert mps.not_ready() == {gpu(0), gpu(1)}
    await until(lambda: not mps.not_ready())
    assert {(d.directory / "log" / "control.log").read_text().split()[-1] for d in mps.daemons.values()} == {
        gpu(0),
        gpu(1),
    }


async def test_a_daemon_that_dies_makes_its_card_unready_and_is_started_again(mps: MpsDaemons) -> None:
    mps.want(frozenset({gpu(0)}))
    await until(lambda: not mps.not_ready())
    daemon = mps.daemons[gpu(0)]
    (daemon.directory / "pipe" / "die").touch()
    await until(lambda: bool(mps.not_ready()))
    await until(lambda: not mps.not_ready())
    assert daemon.starts == 2


async def test_what_containers_leave_in_the_pipe_directory_does_not_keep_the_daemon_from_its_start(
    mps: MpsDaemons, short_path: Path
) -> None:
    mps.want(frozenset({gpu(0)}))
    await until(lambda: not mps.not_ready())
    pipe = mps.daemons[gpu(0)].directory / "pipe"
    (short_path / "kept").mkdir()
    (pipe / "folder" / "deeper").mkdir(parents=True)
    (pipe / "link").symlink_to(short_path / "kept")
    (pipe / "die").touch()
    await until(lambda: bool(mps.not_ready()))
    await until(lambda: not mps.not_ready())
    assert not {"folder", "link"} & {path.name for path in pipe.iterdir()}
    assert (short_path / "kept").is_dir()


async def test_a_card_that_leaves_the_mode_loses_its_daemon(mps: MpsDaemons) -> None:
    mps.want(frozenset({gpu(0)}))
    await until(lambda: not mps.not_ready())
    mps.want(frozenset())
    assert not mps.daemons


async def test_nobody_gets_past_the_server_while_the_card_is_in_the_mode(mps: MpsDaemons, modes: Modes) -> None:
    mps.want(frozenset({gpu(0)}))
    await until(lambda: not mps.not_ready())
    assert modes.alone == {gpu(0): True}
    mps.want(frozenset())
    await until(lambda: modes.alone == {gpu(0): False})


async def test_a_card_that_others_may_use_past_the_server_is_not_ready(mps: MpsDaemons, modes: Modes) -> None:
    modes.problem = NvmlError(4)  # no permission
    mps.want(frozenset({gpu(0)}))
    await until(lambda: mps.daemons[gpu(0)].starts > 1)
    assert mps.not_ready() == {gpu(0)}
    assert not (mps.daemons[gpu(0)].directory / "pipe").exists()


async def test_a_command_that_does_not_exist_leaves_the_card_unready(short_path: Path) -> None:
    daemons = MpsDaemons(short_path, "/nonexistent/mps", lambda: None, Modes())
    daemons.want(frozenset({gpu(0)}))
    await until(lambda: daemons.daemons[gpu(0)].starts > 0)
    assert daemons.not_ready() == {gpu(0)}
    await daemons.close()


def test_a_client_gets_its_percentage_its_memory_and_the_pipe_of_its_card(tmp_path: Path) -> None:
    settings = NodeSettings(cards=CardSettings(mode="mps"), pass_device_specs=False)
    share = SliceShare(slice_id(gpu(1), 3), 3000, 25)
    grant = Grant("g", GPU_RESOURCE, frozenset({share.slice}), "u", "c", Identity.KNOWN, shares=(share,))
    paths = HostPaths(tmp_path / "grants" / "g", tmp_path / "lib", tmp_path / "preload")
    edits = describe(grant, make_offers(machine(), settings), settings, paths)
    assert edits.env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert edits.env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=3000M"
    assert {(m.host_path, m.container_path) for m in edits.mounts} == {
        (str(tmp_path / "mps" / gpu(1) / "pipe"), "/tmp/nvidia-mps"),
        (str(tmp_path / "mps" / gpu(1) / "shm"), "/dev/shm"),
    }
