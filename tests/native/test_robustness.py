"""Processes die, fork and race: the others go on and the books stay true."""

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuslice.devices.limits import MIB, DeviceLimit
from tests.native.shim_rig import CLIENT, CONTEXT_MIB, FAULTY_LIBRARY, OUT_OF_MEMORY, Client, Container, Node

Maker = Callable[..., Container]
BLOCK_MIB = 4
QUOTA_MIB = 20_000
WAITERS = 16
POINTS = [
    "init", "registry", "row", "claim", "locked", "before-held", "between", "unlock", "unlocked", "locked:37",
    "before-held:20", "between:21", "unlock:22", "unlocked:23",
]  # fmt: skip


def agree(box: Container) -> bool:
    """Shared total, sum over processes and the driver's own ledger say the same."""
    state = box.state()
    used = state.devices[0].used_bytes
    return bool(used == box.held_mib() * MIB == box.node.ledger()["cards"][0]["used_bytes"])


def die_at(box: Container, point: str) -> None:
    """Run a process into a fault point, where it kills itself."""
    environment = {**box.environment, "LD_PRELOAD": str(FAULTY_LIBRARY), "GPUSLICE_FAULT": point}
    commands = f"device 0\nrace {BLOCK_MIB * MIB} 200\ninfo\n"
    done = subprocess.run(
        [str(CLIENT)], input=commands, env=environment, capture_output=True, text=True, check=False, timeout=20
    )
    assert done.returncode == -9, f"the point {point} was never reached: {done.stdout}"


@pytest.mark.parametrize("point", POINTS)
def test_a_process_killed_at_any_point_holds_nobody_up(container: Maker, point: str) -> None:
    box = container(2000)
    die_at(box, point)
    with box.start() as client:
        assert client.code("device 0") == 0
        assert client.code(f"race {BLOCK_MIB * MIB} 50") == 0
        assert client.free_mib() == 2000 - CONTEXT_MIB
        assert agree(box)


@pytest.mark.parametrize("point", ["between", "locked:37", "registry:2"])
def test_sixteen_waiters_go_on_within_a_second(container: Maker, point: str) -> None:
    box = container(QUOTA_MIB)
    waiters = [box.start() for _ in range(WAITERS)]
    try:
        for waiter in waiters:
            assert waiter.code("device 0") == 0
        for waiter in waiters:
            waiter.send(f"race {BLOCK_MIB * MIB} 3000")
        die_at(box, point)
        for waiter in waiters:
            assert waiter.answer()[0] == "0"
        began = time.monotonic()
        for waiter in waiters:
            waiter.send(f"race {BLOCK_MIB * MIB} 20")
        for waiter in waiters:
            assert waiter.answer()[0] == "0"
        assert time.monotonic() - began < 1
        assert waiters[0].free_mib() == QUOTA_MIB - WAITERS * CONTEXT_MIB
        assert agree(box)
    finally:
        for waiter in waiters:
            waiter.close()


@pytest.mark.parametrize("point", ["reap", "recover"])
def test_a_process_killed_while_it_repairs_leaves_the_rest_to_the_next(container: Maker, point: str) -> None:
    box = container(2000)
    die_at(box, "between")
    environment = {**box.environment, "LD_PRELOAD": str(FAULTY_LIBRARY), "GPUSLICE_FAULT": point}
    commands = f"device 0\nalloc plain {1650 * MIB}\nalloc plain {100 * MIB}\ninfo\n"
    done = subprocess.run(
        [str(CLIENT)], input=commands, env=environment, capture_output=True, text=True, check=False, timeout=20
    )
    assert done.returncode == -9
    with box.start() as client:
        assert client.code("device 0") == 0
        assert client.alloc(2000 - CONTEXT_MIB) == 0
        assert agree(box)


def test_memory_of_a_killed_process_is_there_for_the_next_request(container: Maker) -> None:
    box = container(1500)
    with box.start() as survivor:
        assert survivor.code("device 0") == 0
        victim = box.start()
        victim.code("device 0")
        assert victim.alloc(800) == 0
        assert survivor.alloc(800) == OUT_OF_MEMORY
        victim.kill()
        assert survivor.alloc(800) == 0
        assert len(box.state().processes) == 1


def test_the_slot_of_a_living_process_is_left_alone_when_others_come_and_go(container: Maker) -> None:
    box = container(4000)
    victims = [box.start(), box.start()]
    for victim in victims:
        victim.code("device 0")
        victim.alloc(100)
    with box.start() as survivor:
        survivor.code("device 0")
        assert survivor.alloc(500) == 0
        for victim in victims:
            victim.kill()
        with box.start() as late:
            late.code("device 0")
            assert late.alloc(100) == 0
            assert survivor.alloc(3000) == OUT_OF_MEMORY
            assert survivor.code("free") == 0
            assert survivor.free_mib() == 4000 - 2 * CONTEXT_MIB - 100
            assert agree(box)


@pytest.mark.parametrize("name", ["a Z", "x) R 1 1", "with\nline", "é" * 7])
def test_a_process_may_be_called_anything(container: Maker, tmp_path: Path, name: str) -> None:
    program = tmp_path / name
    shutil.copy(CLIENT, program)
    box = container(1000)
    with Client(box.environment, [str(program)]) as strange, box.start() as other:
        assert strange.code("device 0") == 0
        assert other.code("device 0") == 0
        assert strange.alloc(300) == 0
        assert other.alloc(300) == OUT_OF_MEMORY
        assert len(box.state().processes) == 2


@pytest.mark.parametrize("rounds", [4000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_four_racing_processes_never_get_more_than_the_quota(container: Maker, rounds: int) -> None:
    quota = 4 * CONTEXT_MIB + 200
    box = container(quota)
    racers = [box.start() for _ in range(4)]
    try:
        for racer in racers:
            assert racer.code("device 0") == 0
        for racer in racers:
            racer.send(f"race {BLOCK_MIB * MIB} {rounds}")
        refused = 0
        for racer in racers:
            _, _, times, other = racer.answer()
            refused += int(times)
            assert other == "0"
        card = box.node.ledger()["cards"][0]
        assert refused > 0, "the race must reach the edge"
        assert card["peak_bytes"] <= quota * MIB
        assert card["peak_bytes"] >= 0.999 * (quota - 3 * BLOCK_MIB) * MIB
        assert agree(box)
    finally:
        for racer in racers:
            racer.close()


def test_slots_of_killed_processes_are_taken_again(node: Node) -> None:
    """Slots of the dead are taken again; the file never grows."""
    box = Container(node, "box", [DeviceLimit(node.uuids()[0], QUOTA_MIB)])
    for _ in range(12):
        client = box.start()
        assert client.code("device 0") == 0
        client.kill()
    with box.start() as client:
        assert client.code("device 0") == 0
        client.ask("info")
        assert client.free_mib() == QUOTA_MIB - CONTEXT_MIB


def test_threads_of_one_process_keep_the_books_true(container: Maker) -> None:
    box = container(800)
    with box.start() as client:
        assert client.code("device 0") == 0
        assert client.code(f"threads 8 {BLOCK_MIB * MIB} 3000") == 0
        client.code("wait")
        assert client.free_mib() >= 800 - CONTEXT_MIB - 2
        card = box.node.ledger()["cards"][0]
        assert card["peak_bytes"] <= 800 * MIB
        assert 0 <= box.held_mib() * MIB - card["used_bytes"] <= 2 * MIB


def test_a_process_killed_while_it_settles_gpu_time_holds_nobody_up(container: Maker) -> None:
    box = container(2000, 50)
    faulty = {**box.environment, "LD_PRELOAD": str(FAULTY_LIBRARY), "GPUSLICE_FAULT": "limiter:2"}
    commands = "device 0\nkernel k_1ms\nlaunch 200 sync\ninfo\n"
    done = subprocess.run(
        [str(CLIENT)], input=commands, env=faulty, capture_output=True, text=True, check=False, timeout=20
    )
    assert done.returncode == -9
    with box.start() as client:
        assert client.code("device 0") == 0
        assert client.code("kernel k_1ms") == 0
        began = time.monotonic()
        assert client.code("launch 100 sync") == 0
        assert time.monotonic() - began < 2
