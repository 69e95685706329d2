"""The state file may be overwritten by anything in its container: nobody hangs, nobody gets more than the quota.

A damaged container may refuse allocations until its living processes have put their figures right, not longer.
"""

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuslice.devices import limits_layout as layout
from gpuslice.devices.limits import MIB, BadLimitsFile, read_state
from tests.native.shim_rig import CONTEXT_MIB, OUT_OF_MEMORY, Client, Container
from tests.native.virtual_rig import box_on, virtual_node

Maker = Callable[..., Container]
QUOTA_MIB = 2000
PROCESSES = 2
# Header, the first two rows and the slots of the processes under test.
HOT = [
    (0, layout.STATE_HEADER_SIZE),
    (layout.STATE_DEVICES_AT, 2 * layout.STATE_DEVICE_SIZE),
    (layout.STATE_SLOTS_AT, (PROCESSES + 1) * layout.SLOT_SIZE),
]


def junk(source: random.Random) -> Iterator[tuple[int, bytes]]:
    """Where to write what: single bytes up to whole parts, noise, zeros or ones."""
    for _ in range(source.choice([1, 5, 50])):
        at, size = source.choice(HOT)
        count = source.choice([1, 4, 8, 64, size])
        start = at + source.randrange(0, size - count + 1)
        yield start, source.choice([source.randbytes(count), bytes(count), b"\xff" * count])


def overwrite(path: Path, pieces: Iterator[tuple[int, bytes]]) -> None:
    with path.open("r+b", buffering=0) as file:
        for at, data in pieces:
            os.pwrite(file.fileno(), data, at)


def whole(byte: bytes) -> Iterator[tuple[int, bytes]]:
    yield 0, byte * layout.STATE_FILE_SIZE


def granted_mib(box: Container) -> int:
    return int(box.node.ledger()["cards"][0]["peak_bytes"]) // MIB


def books(box: Container) -> tuple[int, int]:
    """What the row and what the processes' slots say is in use, in MiB."""
    return box.state().devices[0].used_bytes // MIB, box.held_mib()


def truth(box: Container) -> tuple[int, int]:
    """What the driver says, twice."""
    return (int(box.node.ledger()["cards"][0]["used_bytes"]) // MIB,) * 2


def damage(number: int) -> Iterator[tuple[int, bytes]]:
    if number < 2:
        return whole(b"\0\xff"[number : number + 1])
    return junk(random.Random(number))


@pytest.mark.parametrize("number", range(16))
def test_damage_while_a_process_rests_gives_nobody_more_and_heals(container: Maker, number: int) -> None:
    box = container(QUOTA_MIB, 50)
    with box.start() as resting:
        assert resting.code("device 0") == 0
        assert resting.alloc(900) == 0
        overwrite(box.directory / "state", damage(number))
        with box.start() as fresh:
            fresh.code("device 0")
            fresh.ask(f"fill {50 * MIB}")
            assert granted_mib(box) <= QUOTA_MIB
            # One call of the process that was written over, and all is as it should be.
            assert resting.alloc(4) in {0, OUT_OF_MEMORY}
            fresh.code("device 0")
            fresh.ask(f"fill {2 * MIB}")
            assert QUOTA_MIB - CONTEXT_MIB <= granted_mib(box) <= QUOTA_MIB
            assert fresh.code("freeall") == 0
            assert books(box) == truth(box)
            assert fresh.code("kernel k_1ms") == 0
            assert fresh.code("launch 5 sync") == 0


@pytest.mark.parametrize("number", range(2))
def test_damage_while_processes_race_hangs_none_of_them(container: Maker, number: int) -> None:
    box = container(QUOTA_MIB, 50)
    racers = [box.start() for _ in range(PROCESSES)]
    done = threading.Event()

    def keep_overwriting() -> None:
        source = random.Random(number)
        while not done.is_set():
            overwrite(box.directory / "state", junk(source))
            time.sleep(0.002)

    writer = threading.Thread(target=keep_overwriting)
    try:
        for racer in racers:
            assert racer.code("device 0") == 0
            assert racer.code("kernel k_20us") == 0
        writer.start()
        for racer in racers:
            racer.send(f"race {4 * MIB} 100000\nlaunch 200 sync")
        for racer in racers:
            assert racer.answer()[0] == "0"
            assert racer.answer()[0] == "0"
        assert granted_mib(box) <= QUOTA_MIB
    finally:
        done.set()
        writer.join()
        for racer in [*racers, *racers]:
            racer.code(f"race {MIB} 1")
            assert racer.alloc(2 * QUOTA_MIB) == OUT_OF_MEMORY
        assert books(box) == truth(box)
        for racer in racers:
            racer.close()


@pytest.mark.parametrize("number", range(6))
def test_damage_to_the_compute_figures_delays_no_kernel_for_ever(built: None, tmp_path: Path, number: int) -> None:
    """On the virtual clock: a made-up debt is paid within two minutes, a made-up hoard is one burst."""
    box = box_on(virtual_node(tmp_path, 1), "box", 30)
    compute = (layout.STATE_DEVICES_AT + layout.STATE_DEVICE_TOKENS_NS.offset, layout.STATE_DEVICE_SIZE - 192)
    source = random.Random(number)
    with box.start() as client:
        client.code("device 0")
        client.code("kernel k_5ms")
        client.ask("run 500")
        for _ in range(3):
            data = source.choice([source.randbytes(compute[1]), bytes(compute[1]), b"\xff" * compute[1]])
            overwrite(box.directory / "state", iter([(compute[0], data)]))
            code, launches, took, _ = client.ask("run 2000")
            assert code == "0"
            assert int(launches) * 5e6 / int(took) <= 0.30 + 0.02
            assert int(took) < 130e9
        client.ask("run 125000")
        _, launches, took, _ = client.ask("run 2000")
        assert int(launches) * 5e6 / int(took) == pytest.approx(0.30, abs=0.02)


def test_a_truncated_file_is_whole_again_for_the_next_process(container: Maker) -> None:
    box = container(QUOTA_MIB)
    with box.start() as client:
        assert client.code("device 0") == 0
    os.truncate(box.directory / "state", 100)
    with box.start() as client:
        assert client.code("device 0") == 0
        assert client.alloc(QUOTA_MIB - CONTEXT_MIB) == 0
        assert books(box) == truth(box)


def test_the_damage_is_told_in_one_line(container: Maker) -> None:
    box = container(QUOTA_MIB)
    with box.start() as client:
        assert client.code("device 0") == 0
        at = layout.STATE_DEVICES_AT + layout.STATE_DEVICE_USED_BYTES.offset
        for _ in range(3):
            overwrite(box.directory / "state", iter([(at, bytes(8))]))
            assert client.alloc(4) == 0
        assert books(box) == truth(box)
        assert [line for line in client.close().splitlines() if "overwritten" in line] != []


@settings(deadline=None, max_examples=40)
@given(data=st.binary(max_size=layout.STATE_HEADER_SIZE + 3 * layout.STATE_DEVICE_SIZE), good_head=st.booleans())
def test_the_nodes_reader_takes_any_file(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, good_head: bool
) -> None:
    path = tmp_path_factory.mktemp("state") / "state"
    head = b""
    if good_head:
        head = layout.STATE_MAGIC.to_bytes(8, "little") + layout.STATE_VERSION.to_bytes(4, "little")
    path.write_bytes((head + data).ljust(layout.STATE_FILE_SIZE, b"\xa5"))
    with contextlib.suppress(BadLimitsFile):
        state = read_state(path)
        assert len(state.devices) <= layout.MAX_DEVICES
        assert len(state.processes) <= layout.MAX_SLOTS


@pytest.mark.timeout(5)
@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path), os.mkdir], ids=["a pipe", "a link", "a directory"]
)
def test_the_nodes_reader_follows_nothing_and_waits_for_nothing(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "state")
    with pytest.raises(BadLimitsFile):
        read_state(tmp_path / "state")


def silent(client: Client) -> bool:
    return client.close() == ""


def test_a_sound_file_is_never_taken_for_damaged(container: Maker) -> None:
    box = container(QUOTA_MIB)
    clients = [box.start() for _ in range(PROCESSES)]
    for client in clients:
        assert client.code("device 0") == 0
        assert client.code(f"race {4 * MIB} 2000") == 0
    clients[0].kill()
    with box.start() as late:
        assert late.code("device 0") == 0
        late.ask("info")
        assert silent(late)
    assert silent(clients[1])
    assert read_state(box.directory / "state").repairs == 0
