"""Compute shares on the fake driver's virtual clock: exact figures, the same on every machine.

The judge is the fake driver's ledger: how long the device really worked for each container.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuslice.devices.limits import CorePolicy, DeviceHint, DeviceLimit, write_hints
from tests.native.shim_rig import Client, Container
from tests.native.virtual_rig import SETTLE_MS, UUID, box_on, kernel_ns, virtual_node


def run_together(
    clients: Sequence[Client], kernel: str, milliseconds: int, sync: str = "", settle_ms: int = SETTLE_MS
) -> list[float]:
    """Share of device time that each got, in percent, after the time to settle."""
    for client in clients:
        client.send(f"device 0\nkernel {kernel}\nrun {settle_ms} {sync}\nrun {milliseconds} {sync}")
    shares = []
    for client in clients:
        for _ in range(3):
            assert client.answer()[0] == "0"
        code, launches, took, _ = client.answer()
        assert code == "0"
        shares.append(100 * int(launches) * kernel_ns(kernel) / int(took))
    return shares


@pytest.mark.parametrize("percent", [10, 30, 50, 90])
@pytest.mark.parametrize("kernel", ["k_20us", "k_500us", "k_5ms", "k_50ms"])
def test_one_process_gets_its_share(built: None, tmp_path: Path, percent: int, kernel: str) -> None:
    with box_on(virtual_node(tmp_path, 1), "box", percent).start() as client:
        (share,) = run_together([client], kernel, 1000)
    assert percent * 0.97 <= share <= percent + 2


@pytest.mark.parametrize("card", ["T4", "A100-SXM4-80GB", "H100-SXM5-80GB"])
def test_the_size_of_the_card_does_not_matter(built: None, tmp_path: Path, card: str) -> None:
    with box_on(virtual_node(tmp_path, 1, card), "box", 50).start() as client:
        (share,) = run_together([client], "k_500us", 1000)
    assert 48.5 <= share <= 52


def test_a_program_that_waits_for_each_kernel_gets_its_share_too(built: None, tmp_path: Path) -> None:
    with box_on(virtual_node(tmp_path, 1), "box", 30).start() as client:
        (share,) = run_together([client], "k_500us", 1000, "sync")
    assert 29.1 <= share <= 32


@pytest.mark.parametrize(("percent", "kernel", "processes"), [(30, "k_5ms", 2), (50, "k_500us", 2), (90, "k_20us", 3)])
def test_processes_of_one_container_share_one_bucket(
    built: None, tmp_path: Path, percent: int, kernel: str, processes: int
) -> None:
    box = box_on(virtual_node(tmp_path, processes), "box", percent)
    clients = [box.start(GPUSLICE_FAKE_RANK=str(rank)) for rank in range(processes)]
    work, first, last = 0, float("inf"), 0
    for client in clients:
        client.send(f"device 0\nkernel {kernel}\nrun {SETTLE_MS}\nrun 1000")
    for client in clients:
        _, _, _, (_, launches, took, began) = [client.answer() for _ in range(4)]
        work += int(launches) * kernel_ns(kernel)
        first, last = min(first, int(began)), max(last, int(began) + int(took))
    for client in clients:
        client.close()
    assert percent * 0.96 <= 100 * work / (last - first) <= percent + 2


def test_a_graph_is_charged_for_its_kernels(built: None, tmp_path: Path) -> None:
    box = box_on(virtual_node(tmp_path, 1), "box", 20)
    with box.start() as client:
        client.code("device 0")
        assert client.code("kernel k_1ms") == 0
        for _ in range(20):
            assert client.code("graph 10") == 0
    assert box.state().devices[0].throttled_ns > 500_000_000
    assert box.state().devices[0].busy_ns == pytest.approx(200_000_000, rel=0.05)


def test_an_enormous_grid_costs_what_it_takes_not_what_it_counts(built: None, tmp_path: Path) -> None:
    """65536 x 65536 blocks overflow 32 bits; a limiter that counts blocks would hand tokens out for it."""
    box = box_on(virtual_node(tmp_path, 1), "box", 10)
    with box.start() as client:
        client.code("device 0")
        client.code("kernel k_5ms")
        code, took, _ = client.ask("biglaunch 40")
        assert code == "0"
        assert int(took) >= 0.9 * 39 * 5_000_000 / 0.10


@pytest.mark.parametrize(("kernel", "settle_ms"), [("k_500us", 300), ("k_5ms", 3000), ("k_50ms", 6000)])
def test_two_tenants_get_what_each_was_given(built: None, tmp_path: Path, kernel: str, settle_ms: int) -> None:
    """Time slices stretch long kernels; what NVML measured corrects for it within a few seconds."""
    node = virtual_node(tmp_path, 2)
    boxes = [box_on(node, "thirty", 30), box_on(node, "seventy", 70)]
    clients = [box.start(GPUSLICE_FAKE_RANK=str(rank)) for rank, box in enumerate(boxes)]
    try:
        shares = run_together(clients, kernel, 6000, settle_ms=settle_ms)
    finally:
        for client in clients:
            client.close()
    assert shares == [pytest.approx(30, abs=3), pytest.approx(70, abs=3)]


@pytest.mark.parametrize("percent", [0, 100])
def test_no_limit_means_no_wait(built: None, tmp_path: Path, percent: int) -> None:
    box = box_on(virtual_node(tmp_path, 1), "box", percent)
    with box.start() as client:
        (share,) = run_together([client], "k_500us", 500)
    assert share > 97
    assert box.state().devices[0].throttled_ns == 0


def test_the_policy_off_does_not_limit(built: None, tmp_path: Path) -> None:
    with box_on(virtual_node(tmp_path, 1), "box", 20, core_policy=CorePolicy.OFF).start() as client:
        (share,) = run_together([client], "k_500us", 500)
    assert share > 97


def hint(box: Container, **fields: object) -> None:
    write_hints(box.directory / "limits", [DeviceHint(UUID, **fields)])  # type: ignore[arg-type]


FAR = 10**18  # a stamp that stays fresh on a virtual clock


def test_a_soft_limit_lets_an_idle_neighbours_share_be_used_and_gives_it_back(built: None, tmp_path: Path) -> None:
    box = box_on(virtual_node(tmp_path, 1), "box", 30, core_policy=CorePolicy.SOFT)
    hint(box, stamp_ns=FAR)
    with box.start() as client:
        (share,) = run_together([client], "k_500us", 500)
        assert share >= 95
        hint(box, stamp_ns=FAR, others_active_percent=70)
        client.ask("run 100")
        _, launches, took, _ = client.ask("run 1000")
        assert 100 * int(launches) * 0.0005 / (int(took) / 1e9) == pytest.approx(30, abs=2)


def test_a_soft_limit_is_hard_while_nobody_watches(built: None, tmp_path: Path) -> None:
    with box_on(virtual_node(tmp_path, 1), "box", 30, core_policy=CorePolicy.SOFT).start() as client:
        (share,) = run_together([client], "k_500us", 500)
    assert share == pytest.approx(30, abs=2)


def test_the_lower_priority_waits_but_does_not_starve(built: None, tmp_path: Path) -> None:
    box = box_on(virtual_node(tmp_path, 1), "box", 50, priority=2)
    hint(box, stamp_ns=FAR, higher_priority_active=True)
    with box.start() as client:
        (share,) = run_together([client], "k_500us", 1000)
        assert share == pytest.approx(5, abs=2)
        hint(box, stamp_ns=FAR)
        client.ask("run 100")
        _, launches, took, _ = client.ask("run 1000")
        assert 100 * int(launches) * 0.0005 / (int(took) / 1e9) == pytest.approx(50, abs=2)


@pytest.mark.parametrize("priority", [1, 2])
def test_hints_hold_a_container_without_a_core_limit_back_from_the_first_one_on(
    built: None, tmp_path: Path, priority: int
) -> None:
    box = box_on(virtual_node(tmp_path, 1), "box", 0, priority=priority)
    with box.start() as client:
        (share,) = run_together([client], "k_500us", 300)
        assert share > 97
        assert box.state().devices[0].last_launch_ns == 0
        hint(box, stamp_ns=FAR, higher_priority_active=True)
        client.ask("run 100")
        _, launches, took, _ = client.ask("run 1000")
        assert 100 * int(launches) * 0.0005 / (int(took) / 1e9) == pytest.approx(5, abs=2)
        hint(box, stamp_ns=FAR)
        client.ask("run 100")
        _, launches, took, _ = client.ask("run 300")
        assert 100 * int(launches) * 0.0005 / (int(took) / 1e9) > 97
    assert box.state().devices[0].last_launch_ns > 0


def test_a_changed_share_is_in_force_without_a_restart(built: None, tmp_path: Path) -> None:
    box = box_on(virtual_node(tmp_path, 1), "box", 0)
    with box.start() as client:
        (share,) = run_together([client], "k_500us", 300)
        assert share > 97
        for percent in (20, 60, 10):
            box.set_limits(DeviceLimit(UUID, 20_000, percent))
            client.ask("run 100")
            _, launches, took, _ = client.ask("run 1000")
            assert 100 * int(launches) * 0.0005 / (int(took) / 1e9) == pytest.approx(percent, abs=2)
        box.set_limits(DeviceLimit(UUID, 20_000, 0))
        client.ask("run 100")
        _, launches, took, _ = client.ask("run 300")
        assert 100 * int(launches) * 0.0005 / (int(took) / 1e9) > 97
