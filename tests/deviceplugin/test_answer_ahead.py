"""What the node prepares, remembers or holds back for the Allocate that is about to come, and when that is void."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deviceplugin import node as node_module
from deviceplugin import sharing
from deviceplugin.backend import DeviceNode, Edits, Refused
from deviceplugin.devicelist import Device
from deviceplugin.node import Turns
from deviceplugin.nodeconfig import CardSettings, NodeSettings
from deviceplugin.offers import make_offers
from deviceplugin.podresources import PodResources
from gpuslice.devices.pods import Pod
from gpuslice.nvml.inventory import MigInstance
from simulator.kubelet.kubelet import Behaviour
from simulator.kubelet.rig import FAST, Ask, Plugin, at, gpu, machine, node_rig, pod

pytestmark = pytest.mark.anyio


@pytest.fixture
async def plugin(short_path: Path) -> AsyncIterator[Plugin]:
    """A plugin that is asked by the test, not by its kubelet."""
    async with node_rig(short_path, behaviour=Behaviour(pace=FAST, pretend=True)) as rig:
        rig.plugin.node.pod_resources = PodResources(None)
        yield rig.plugin


def seen(**changes: Any) -> Pod:
    body = pod("p", Ask("c", (at(0, 0),)), **changes)
    body["metadata"] |= {"uid": "u"}
    return msgspec.convert(body, Pod)


async def nothing(_plugin: Plugin) -> None:
    """Leave all as it is."""


async def name_cards_early(plugin: Plugin) -> None:
    plugin.node.settings = replace(plugin.node.settings, device_list_strategy="envvar")


async def share_by_time(plugin: Plugin) -> None:
    settings = replace(plugin.node.settings, cards=CardSettings(mode="time-slicing"))
    plugin.node.offers = make_offers(plugin.machine, settings)


async def list_without_it(plugin: Plugin) -> None:
    await plugin.backend.devices.publish([Device(at(1, 1))])


async def list_one_more(plugin: Plugin) -> None:
    await plugin.backend.devices.publish([*plugin.backend.devices.devices, Device(at(9, 9))])


async def answer(plugin: Plugin, between: Callable[[Plugin], Awaitable[None]]) -> tuple[bool, str, str]:
    """Play a preference and an Allocate; return whether the answer was the prepared one, what names the card, how."""
    backend = plugin.backend
    plugin.node.see_pod(seen())
    assert list(await backend.prefer([at(0, 0), at(0, 1)], [], 1)) == [at(0, 0)]
    expected = backend.expected
    assert expected is not None
    await between(plugin)
    try:
        edits = backend.allocate([at(0, 0)])
    except Refused as error:
        return False, str(error).partition("; ")[0], ""
    (grant,) = backend.book.grants.values()
    named = edits.env.get("NVIDIA_VISIBLE_DEVICES") or edits.cdi_devices[0].replace(grant.id, "<grant>")
    return edits is expected, named, grant.modes[gpu(0)]


BY_NAME = "gpuslice.io/grant=<grant>"


@pytest.mark.parametrize(
    ("between", "expected"),
    [
        pytest.param(nothing, (True, BY_NAME, "hami-core"), id="nothing"),
        pytest.param(name_cards_early, (False, gpu(0), "hami-core"), id="the settings: cards are named at once"),
        pytest.param(share_by_time, (False, BY_NAME, "time-slicing"), id="the offers: the card has another mode"),
        pytest.param(
            list_without_it, (False, f"nvidia.com/gpu: unknown devices {at(0, 0)}", ""), id="the list: it is gone"
        ),
        pytest.param(list_one_more, (False, BY_NAME, "hami-core"), id="the list: another has come"),
    ],
)
async def test_a_prepared_answer_is_void_after_a_change(
    plugin: Plugin, between: Callable[[Plugin], Awaitable[None]], expected: tuple[bool, str, str]
) -> None:
    assert await answer(plugin, between) == expected


async def test_a_pod_is_read_anew_when_the_node_offers_something_else(plugin: Plugin) -> None:
    node, body = plugin.node, pod("p", Ask("c", (at(0, 0),)), Ask("m", ("MIG-1::0",), resource="nvidia.com/mig-1g.5gb"))
    body["metadata"] |= {"uid": "u"}
    wanted = []
    split = machine(2)
    instance = MigInstance("MIG-1", "1g.5gb", 5000, 1, 0, 14)
    split = replace(split, cards=(split.cards[0], replace(split.cards[1], mig_enabled=True, mig_instances=(instance,))))
    for offered in (machine(2), split, machine(2)):
        node.offers = make_offers(offered, replace(node.settings, mig_strategy="mixed"))
        node.see_pod(msgspec.convert(body, Pod))
        wanted.append([need.resource for need in node.tenants["u"].needs])
    assert wanted == [["nvidia.com/gpu"], ["nvidia.com/gpu", "nvidia.com/mig-1g.5gb"], ["nvidia.com/gpu"]]


async def test_who_waits_for_its_turn_waits_for_the_last_allocate_that_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, loop = Turns(), asyncio.get_running_loop()
    monkeypatch.setattr(node_module, "_EXPECT_SECONDS", 0.1)
    turns.expect()
    first_is_over = asyncio.Event()
    loop.call_at(loop.time() + 0.1, first_is_over.set)
    waiting = asyncio.ensure_future(turns.wait())
    await asyncio.sleep(0)
    monkeypatch.setattr(node_module, "_EXPECT_SECONDS", 60.0)
    turns.expect()
    await first_is_over.wait()
    late = asyncio.ensure_future(turns.wait())
    for _ in range(5):
        await asyncio.sleep(0)
    held_back = (waiting.done(), late.done())
    turns.arrived()
    await asyncio.gather(waiting, late)
    assert held_back == (False, False)


async def test_nobody_waits_for_an_allocate_that_does_not_come() -> None:
    turns = Turns()
    turns.expect()
    async with asyncio.timeout(5):
        await asyncio.gather(turns.wait(), turns.wait())


async def test_whatever_a_mode_gives_reaches_the_container(plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> None:
    given = Edits({"A": "1"}, (), (DeviceNode("/dev/x", "/dev/x"),), ("vendor/class=x",), {"note": "x"})
    monkeypatch.setattr(sharing, "MODES", {"hami-core": lambda _shares, _paths: given})
    plugin.node.see_pod(seen())
    grant = plugin.backend.book.allocate([at(0, 0)], "g1")
    found = sharing.describe(grant, plugin.node.offers, NodeSettings(), plugin.node.delivery.paths("g1"))
    assert (found.env["A"], found.devices, found.cdi_devices, found.annotations) == (
        "1", given.devices, given.cdi_devices, given.annotations,
    )  # fmt: skip
