"""A day in fast time: 500 health flaps, 50 kubelet restarts, 20 reconfigurations, with pods coming and going."""

import gc
import os
import random
import threading
from pathlib import Path

import pytest

from deviceplugin.nodeconfig import CardSettings, NodeSettings
from deviceplugin.offers import GPU_RESOURCE, make_offers
from gpuslice.devices.inventory import slice_id
from simulator.kubelet.kubelet import Behaviour
from simulator.kubelet.rig import FAST, Ask, Rig, gpu, machine, node_rig, pod

pytestmark = pytest.mark.anyio

FLAPS, RESTARTS, RECONFIGURATIONS = 500, 50, 20
CARDS = 4


class Day:
    """The events of a day, in random order, and the accounts that must hold after each."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self.rig = rig
        self.chance = random.Random(seed)
        self.sick: set[str] = set()
        self.pods: dict[str, str] = {}
        self.number = 0
        self.slots = 10

    async def flap(self) -> None:
        """One card falls ill or recovers; the list is sent."""
        self.sick ^= {gpu(self.chance.randrange(CARDS))}
        await self._offer()

    async def reconfigure(self) -> None:
        """The number of slices per card changes."""
        self.slots = self.chance.choice((6, 8, 10, 12))
        self.rig.plugin.node.settings = NodeSettings(cards=CardSettings(slots_per_card=self.slots))
        await self._offer()

    async def restart(self) -> None:
        """The kubelet restarts."""
        before = self.rig.plugin.registrar.registrations
        await self.rig.kubelet.restart()
        await self.rig.api.until(
            lambda: self.rig.plugin.registrar.registrations > before and self.rig.plugin.registrar.registered.is_set()
        )
        await self._told()

    async def churn(self) -> None:
        """A pod comes, or goes."""
        if len(self.pods) > 8:
            uid, _ = self.pods.popitem()
            self.rig.api.delete(uid, 0)
            await self.rig.api.until(lambda: uid not in self.rig.api.bodies)
            return
        free = [
            name
            for card in range(CARDS)
            if gpu(card) not in self.sick
            for number in range(min(self.slots, 6))
            if (name := slice_id(gpu(card), number)) not in self.pods.values()
        ]
        if not free:
            return
        name = self.chance.choice(free)
        self.number += 1
        uid = self.rig.api.create(pod(f"p{self.number}", Ask("c", (name,))))
        self.pods[uid] = name
        await self.rig.running(uid)
        assert self.rig.cards(uid, "c") == [name.partition("::")[0]]

    async def _offer(self) -> None:
        node = self.rig.plugin.node
        node.offers = make_offers(self.rig.plugin.machine, node.settings, unhealthy=self.sick)
        await self.rig.plugin.backend.refresh()
        await self._told()

    async def _told(self) -> None:
        """Wait until the kubelet has the present list, so that no older one is under way."""
        listed = self.rig.plugin.backend.devices.devices
        healthy = {device.id for device in listed if device.healthy}
        await self.rig.api.until(lambda: self.rig.kubelet.manager.endpoints[GPU_RESOURCE].healthy == healthy)

    async def check(self) -> None:
        """Every slice is accounted for: on offer, or held by a living pod."""
        self.rig.plugin.housekeeper.look()
        await self.rig.plugin.backend.refresh()
        on_offer = {slice_id(gpu(card), number) for card in range(CARDS) for number in range(self.slots)}
        owners = self.rig.plugin.backend.book.owners()
        assert self.rig.plugin.backend.devices.ids == on_offer | set(owners)
        assert {name: uid for uid, name in self.pods.items()} == owners


def footprint() -> tuple[int, int, int]:
    """Open files, threads, objects of ours that live."""
    gc.collect()
    ours = sum(
        str(type(thing).__module__).startswith(("deviceplugin", "simulator.kubelet")) for thing in gc.get_objects()
    )
    return len(os.listdir("/proc/self/fd")), threading.active_count(), ours


async def test_a_day_leaks_nothing_and_loses_no_slice(short_path: Path) -> None:
    story = ["flap"] * FLAPS + ["restart"] * RESTARTS + ["reconfigure"] * RECONFIGURATIONS + ["churn"] * 120
    async with node_rig(short_path, behaviour=Behaviour(pace=FAST, pretend=True), cards=machine(CARDS)) as rig:
        day = Day(rig, seed=7)
        for _ in range(10):
            await day.churn()
        await day.restart()
        before = footprint()
        day.chance.shuffle(story)
        for event in story:
            await getattr(day, event)()
            await day.check()
        while len(day.pods) > 8:
            await day.churn()
        await day.restart()
        after = footprint()
        await day.check()
        grants = len(rig.plugin.backend.book.grants)
        # The files of what has ended are removed by a thread.
        await rig.api.until(lambda: len(list((rig.plugin.state / "grants").iterdir())) <= grants)
        directories = len(list((rig.plugin.state / "grants").iterdir()))
        assert rig.plugin.count("registrations_total", resource=GPU_RESOURCE) == RESTARTS + 3
    files, threads, objects = (now - then for now, then in zip(after, before, strict=True))
    assert (max(files, 3), max(threads, 1), max(objects, 200)) == (3, 1, 200), (before, after)
    assert (grants, directories) == (len(day.pods), len(day.pods))
