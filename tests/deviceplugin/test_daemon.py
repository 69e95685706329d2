"""The daemon as a process: start, health, configuration, cordon, kill -9, rolling replacement."""

import asyncio
import signal
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from gpuslice.cluster.resources import NODES
from gpuslice.devices import annotations, limits, pods
from gpuslice.devices import limits_layout as layout
from gpuslice.devices.inventory import slice_id
from simulator.kubelet.rig import Ask, pod
from tests.deviceplugin.daemon_rig import DRIVERS, ROOT, Daemons, daemons

pytestmark = [pytest.mark.anyio, pytest.mark.xdist_group("daemon")]


@pytest.fixture(scope="session", autouse=True)
def drivers() -> None:
    subprocess.run(["make", "-s", "-C", str(DRIVERS.parent)], check=True, stdout=subprocess.DEVNULL)


@pytest.fixture
async def node(short_path: Path) -> AsyncIterator[Daemons]:
    async with daemons(short_path) as made:
        yield made


async def test_cards_are_registered_and_published_in_both_formats(node: Daemons) -> None:
    node.start()
    await node.until(lambda: node.healthy() == 40)
    cards = await node.cards()
    assert [(card.model, card.slots, card.healthy, card.index) for card in cards.cards] == [
        ("NVIDIA A100-SXM4-80GB", 10, True, index) for index in range(4)
    ]
    register = (await node.client.get(NODES, "n1", pods.Node)).metadata.annotations[annotations.HAMI_NODE_REGISTER]
    assert [item["id"] for item in msgspec.json.decode(register)] == [card.uuid for card in cards.cards]


async def test_an_application_xid_is_ignored_a_critical_one_takes_all_slices_of_its_card_until_it_is_quiet(
    node: Daemons,
) -> None:
    node.start()
    await node.until(lambda: node.healthy() == 40)
    node.control("xid 1 31")
    node.control("xid 2 79")
    await node.until(lambda: node.healthy() == 30)
    cards = await node.cards(want=lambda found: not all(card.healthy for card in found.cards))
    assert [card.healthy for card in cards.cards] == [True, True, False, True]
    await node.until(lambda: node.healthy() == 40)
    await node.cards(want=lambda found: all(card.healthy for card in found.cards))


async def test_a_lost_card_comes_back_only_when_its_handle_does(node: Daemons) -> None:
    node.start()
    await node.until(lambda: node.healthy() == 40)
    node.control("lose 3")
    await node.until(lambda: node.healthy() == 30)
    # A card that fell ill later and is well by now shows that the lost one has had its quiet time and its probes.
    node.control("xid 2 79")
    await node.until(lambda: node.healthy() == 20)
    await node.until(lambda: node.healthy() == 30)
    cards = await node.cards(want=lambda found: found.cards[2].healthy)
    assert [card.healthy for card in cards.cards] == [True, True, True, False]
    node.control("restore 3")
    await node.until(lambda: node.healthy() == 40)


async def test_an_unhealthy_card_stays_so_over_a_restart_of_the_daemon(node: Daemons) -> None:
    first = node.start("--quiet-seconds", "600")
    await node.until(lambda: node.healthy() == 40)
    node.control("xid 0 79")
    await node.until(lambda: node.healthy() == 30)
    first.send_signal(signal.SIGKILL)
    await node.until(lambda: node.healthy() == 0)
    node.start("--quiet-seconds", "600")
    await node.until(lambda: node.healthy() == 30)


async def test_a_cordon_takes_one_card_out_for_new_pods(node: Daemons) -> None:
    node.start()
    await node.until(lambda: node.healthy() == 40)
    await node.client.patch(NODES, "n1", {"metadata": {"annotations": {"gpuslice.io/cordon": "2"}}})
    cards = await node.cards(want=lambda found: any(card.cordoned for card in found.cards))
    assert [card.cordoned for card in cards.cards] == [False, False, True, False]
    await node.until(lambda: node.healthy() == 30)


async def test_a_changed_configuration_is_applied_and_a_bad_one_is_not(node: Daemons) -> None:
    config = node.root / "nodes.yaml"
    config.write_text("defaults: {slotsPerCard: 4}\n")
    node.start("--node-config", str(config))
    await node.until(lambda: node.healthy() == 16)
    config.write_text("defaults: {slotsPerCard: 0}\n")
    await node.until(lambda: "config_refused" in (node.root / "daemon0.log").read_text())
    assert node.healthy() == 16
    config.write_text("rules:\n- match: {node: 'n*'}\n  set: {slotsPerCard: 6, memoryScaling: 0.5}\n")
    await node.until(lambda: node.healthy() == 24)
    cards = await node.cards(want=lambda found: found.cards[0].slots == 6)
    assert cards.cards[0].memory_mib == 40960


async def test_in_a_rolling_replacement_the_standby_takes_over_within_a_moment(node: Daemons) -> None:
    old = node.start()
    await node.until(lambda: node.healthy() == 40)
    node.start()
    ports = node.root / "ports1.json"
    await node.until(ports.exists)
    port = msgspec.json.decode(ports.read_bytes())["metrics"]
    assert await asyncio.to_thread(_status, f"http://127.0.0.1:{port}/readyz") == 200
    registrations = node.kubelet.manager.registrations
    old.send_signal(signal.SIGTERM)
    # The gap between the two may be shorter than it takes to look.
    await node.until(lambda: node.kubelet.manager.registrations > registrations and node.healthy() == 40)
    # The standby need not wait until the old process is gone, only for its streams.
    assert old.wait(20) == 0


def _status(url: str) -> int:
    with urllib.request.urlopen(url) as answer:
        return int(answer.status)


async def test_without_a_driver_the_daemon_waits_and_serves_when_it_comes(node: Daemons) -> None:
    (node.root / "f" / "control").write_text("driver unload\n")
    node.start()
    await node.until(lambda: "nvml_unavailable" in (node.root / "daemon0.log").read_text())
    node.control("driver load")
    await node.until(lambda: node.healthy() == 40)


async def test_without_a_driver_the_daemon_ends_when_told_so(node: Daemons) -> None:
    (node.root / "f" / "control").write_text("driver unload\n")
    process = node.start("--missing-driver", "fail")
    assert await asyncio.to_thread(process.wait, 15) != 0
    assert "NVML is not usable" in (node.root / "daemon0.log").read_text()


async def test_mig_instances_are_offered_by_profile(node: Daemons) -> None:
    (node.root / "f" / "control").write_text("mig 0 on\nmig 0 create 1g.10gb\nmig 0 create 1g.10gb\n")
    config = node.root / "nodes.yaml"
    config.write_text("defaults: {migStrategy: mixed}\n")
    node.start("--node-config", str(config))
    await node.until(lambda: node.healthy() == 30)
    await node.until(lambda: len(_healthy(node, "nvidia.com/mig-1g.10gb")) == 2)


def _healthy(node: Daemons, resource: str) -> set[str]:
    endpoint = node.kubelet.manager.endpoints.get(resource)
    return endpoint.healthy if endpoint is not None else set()


async def test_a_generic_device_is_served_without_gpus_and_without_an_api_server(node: Daemons) -> None:
    node.start("--no-gpus", "--device-files", str(ROOT / "examples" / "foo-device" / "foo.yaml"))
    await node.until(lambda: len(_healthy(node, "example.com/foo")) == 4)


async def test_a_card_that_fails_from_the_start_costs_that_card_only(node: Daemons) -> None:
    (node.root / "f" / "control").write_text("lose 3\n")
    node.start()
    await node.until(lambda: node.healthy() == 30)
    assert [card.index for card in (await node.cards()).cards] == [0, 1, 2]


async def test_slow_cards_delay_nobody(node: Daemons) -> None:
    node.start()
    await node.until(lambda: node.healthy() == 40)
    node.control("slow nvmlDeviceGetMemoryInfo 400000 card 1")
    uuid = (await node.cards()).cards[0].uuid
    started = time.monotonic()
    uids = [await node.create(pod(f"p{n}", Ask("c", (slice_id(uuid, n),)))) for n in range(4)]
    await node.running(*uids)
    assert time.monotonic() - started < 10
    assert node.healthy() == 40
    assert max(node.kubelet.manager.timing.allocate) < 0.3


async def test_a_soft_limit_is_told_that_nobody_else_wants_the_card(node: Daemons) -> None:
    config = node.root / "nodes.yaml"
    config.write_text("defaults: {corePolicy: soft}\n")
    node.start("--node-config", str(config))
    await node.until(lambda: node.healthy() == 40)
    uuid = (await node.cards()).cards[0].uuid
    await node.running(await node.create(pod("p", Ask("c", (slice_id(uuid, 0),), cores=30))))
    (directory,) = (node.root / "s" / "grants").iterdir()
    with (directory / "state").open("r+b") as file:
        for member, value in (
            (layout.STATE_DEVICE_UUID, limits.uuid_to_bytes(uuid)),
            (layout.STATE_DEVICE_LAST_LAUNCH_NS, time.monotonic_ns()),
        ):
            file.seek(layout.STATE_DEVICES_AT + member.offset)
            file.write(struct.pack(member.format, value))
    stamp = layout.LIMITS_HINTS_AT + layout.LIMITS_HINT_STAMP_NS.offset
    await node.until(lambda: any((directory / "limits").read_bytes()[stamp : stamp + 8]))


async def test_cards_in_mode_mps_let_nobody_but_their_server_compute(node: Daemons) -> None:
    config = node.root / "nodes.yaml"
    config.write_text("defaults: {mode: mps}\n")
    stand_in = f"{sys.executable} {Path(__file__).with_name('mps_standin.py')}"
    first = node.start("--node-config", str(config), "--mps-daemon", stand_in)
    await node.until(lambda: node.healthy() == 40)
    exclusive_process, default = "3", "0"
    assert await asyncio.to_thread(_compute_modes, node) == [exclusive_process] * 4
    first.send_signal(signal.SIGTERM)
    await asyncio.to_thread(first.wait, 20)
    assert await asyncio.to_thread(_compute_modes, node) == [default] * 4


def _compute_modes(node: Daemons) -> list[str]:
    source = "import pynvml as n;n.nvmlInit();h=n.nvmlDeviceGetHandleByIndex;m=n.nvmlDeviceGetComputeMode;"
    source += "print(*[m(h(i)) for i in range(4)])"
    return subprocess.run(
        [sys.executable, "-c", source], env=node.environment(), capture_output=True, text=True, check=True
    ).stdout.split()
