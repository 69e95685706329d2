"""The five classic ways to a card in two hands, staged: prevented, or found within ten seconds with both pods named."""

import dataclasses
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deviceplugin import sharing
from deviceplugin.backend import Edits
from deviceplugin.book import Grant
from deviceplugin.nodeconfig import NodeSettings
from deviceplugin.offers import Offers
from deviceplugin.tenants import Tenant
from gpuslice.devices.allocation import SliceShare
from gpuslice.devices.inventory import slice_id
from simulator.kubelet.checkpointfile import FILE_NAME
from simulator.kubelet.kubelet import Behaviour
from simulator.kubelet.rig import FAST, Ask, Rig, gpu, node_rig, pod
from tests.deviceplugin.daemon_rig import Daemons, daemons

pytestmark = pytest.mark.anyio


class Noted:
    """Takes Events down."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def pod_event(self, tenant: Tenant, reason: str, message: str) -> None:
        self.events.append((tenant.name, message))

    def node_event(self, reason: str, message: str) -> None:
        self.events.append(("node", message))


@pytest.fixture
async def rig(short_path: Path) -> AsyncIterator[Rig]:
    behaviour = Behaviour(seed=2, pace=FAST, pretend=True, honour_preferences=False)
    async with node_rig(short_path, behaviour=behaviour) as started:
        yield started


def at(card: int, number: int) -> str:
    return slice_id(gpu(card), number)


async def restart_without_checkpoint(rig: Rig) -> None:
    before = rig.plugin.registrar.registrations
    await rig.kubelet.stop()
    (rig.kubelet.layout.plugins / FILE_NAME).unlink()
    await rig.kubelet.start()
    await rig.api.until(
        lambda: rig.plugin.registrar.registrations > before and rig.plugin.registrar.registered.is_set()
    )
    await rig.listed()


async def test_1_after_a_lost_checkpoint_no_running_pods_slice_goes_to_another(rig: Rig) -> None:
    noted = Noted()
    rig.plugin.node.reporter.sink = noted
    old = [rig.api.create(pod(f"old{n}", Ask("c", (at(n % 4, n),)))) for n in range(8)]
    await rig.running(*old)
    await restart_without_checkpoint(rig)
    new = [rig.api.create(pod(f"new{n}", Ask("c", (at(n % 4, 9 - n // 4),)))) for n in range(8)]
    await rig.running(*new)
    seen = [(rig.cards(uid, "c"), uid) for uid in (*old, *new)]
    slices = [s.slice for g in rig.plugin.backend.book.grants.values() for s in g.shares]
    assert [cards for cards, _ in seen] == [[gpu(n % 4)] for n in (*range(8), *range(8))]
    assert len(slices) == len(set(slices)) == 16
    found = await rig.plugin.auditor().look()
    assert {finding.uids[0] for finding in found if finding.kind == "forgotten"} == set(old)
    assert {name for name, _ in noted.events} >= {f"old{n}" for n in range(8)}


async def test_2_a_deleted_pods_slice_is_free_only_when_its_process_has_ended(short_path: Path) -> None:
    stubborn = ("sh", "-c", "trap '' TERM; echo deaf; sleep 1000 & wait; wait")
    async with node_rig(short_path, behaviour=Behaviour(pace=FAST)) as rig:
        first = rig.api.create(pod("first", Ask("c", (at(0, 0),), command=stubborn)))
        await rig.running(first)
        await rig.printed(first, "c", "deaf")
        rig.api.force_delete(first)
        second = rig.api.create(pod("second", Ask("c", (at(0, 0),))))
        await rig.running(second)
        ended, began = rig.kubelet.container(first, "c").finished_at, rig.kubelet.container(second, "c").started_at
        assert ended is not None
        assert began >= ended


async def test_2_a_process_that_never_ends_keeps_the_successor_waiting_and_both_are_named(short_path: Path) -> None:
    noted = Noted()
    async with node_rig(short_path, behaviour=Behaviour(pace=FAST, pretend=True), guard_seconds=0.2) as rig:
        rig.plugin.node.reporter.sink = noted
        first = rig.api.create(pod("first", Ask("c", (at(0, 0),))))
        await rig.running(first)
        procs = rig.kubelet.runtime.cgroup(first, "c") / "cgroup.procs"
        rig.api.force_delete(first)
        await rig.api.until(lambda: first not in rig.kubelet.workers and not procs.exists())
        procs.parent.mkdir(parents=True)
        procs.write_text("4242\n")
        second = rig.api.create(pod("second", Ask("c", (at(0, 0),))))
        await rig.api.until(lambda: "still runs processes 4242" in str(rig.api.status(second)))
        assert [(name, "default/first" in text) for name, text in noted.events] == [("second", True)]
        procs.write_text("")
        await rig.running(second)


async def test_2_two_successors_that_wait_for_one_slice_do_not_both_get_it(short_path: Path) -> None:
    async with node_rig(short_path, behaviour=Behaviour(pace=FAST, pretend=True), guard_seconds=3) as rig:
        first = rig.api.create(pod("first", Ask("c", (at(0, 0),))))
        await rig.running(first)
        procs = rig.kubelet.runtime.cgroup(first, "c") / "cgroup.procs"
        rig.api.force_delete(first)
        await rig.api.until(lambda: first not in rig.kubelet.workers and not procs.exists())
        procs.parent.mkdir(parents=True)
        procs.write_text("4242\n")
        rivals = [rig.api.create(pod(f"rival{n}", Ask("c", (at(0, 0),)))) for n in range(2)]
        await rig.api.until(lambda: rig.plugin.node.guard.waits == 2)
        procs.write_text("")
        await rig.api.until(lambda: any(rig.api.phase(uid) == "Running" for uid in rivals))
        await rig.api.until(lambda: any("which still lives" in str(rig.api.status(uid)) for uid in rivals))
        assert sorted(rig.api.phase(uid) for uid in rivals) == ["Pending", "Running"]


async def test_3_a_new_plugin_process_offers_the_same_ids_and_knows_who_holds_them(rig: Rig) -> None:
    uids = [rig.api.create(pod(f"p{n}", Ask("c", (at(n, 0),)))) for n in range(4)]
    await rig.running(*uids)
    before, owners = rig.plugin.backend.devices.ids, rig.plugin.backend.book.owners()
    await rig.replace_plugin()
    assert (rig.plugin.backend.devices.ids, rig.plugin.backend.book.owners()) == (before, owners)


async def test_4_a_plugin_that_answers_card_0_to_everybody_is_found(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = NodeSettings(device_list_strategy="envvar")
    describe = sharing.describe

    def wrong(grant: Grant, offers: Offers, settings: NodeSettings, paths: sharing.HostPaths) -> Edits:
        shares = tuple(SliceShare(at(0, 0), share.memory_mib) for share in grant.shares)
        return describe(dataclasses.replace(grant, shares=shares), offers, settings, paths)

    async with node_rig(short_path, behaviour=Behaviour(pace=FAST, pretend=True), settings=settings) as rig:
        noted = Noted()
        rig.plugin.node.reporter.sink = noted
        owner = rig.api.create(pod("owner", Ask("c", (at(0, 1),))))
        await rig.running(owner)
        monkeypatch.setattr(sharing, "describe", wrong)
        victim = rig.api.create(pod("victim", Ask("c", (at(1, 0),))))
        await rig.running(victim)
        (found,) = await rig.plugin.auditor().look()
        assert (found.kind, found.uids) == ("wrong-answer", (victim, owner))
        assert {name for name, _ in noted.events} == {"victim", "owner"}
        assert rig.plugin.count("double_allocations_total", kind="wrong-answer") == 1


async def test_5_a_process_on_a_card_that_is_another_pods_is_found(short_path: Path) -> None:
    async with daemons(short_path) as node:
        node.start()
        await node.until(lambda: node.healthy() == 40)
        uuids = [card.uuid for card in (await node.cards()).cards]
        owner = await node.create(pod("owner", Ask("c", (slice_id(uuids[0], 0),))))
        intruder = await node.create(pod("intruder", Ask("c", (slice_id(uuids[1], 0),))))
        await node.running(owner, intruder)
        pid = node.kubelet.container(intruder, "c").process.pid
        started = time.monotonic()
        node.control(f"process 0 {pid} 100 10")
        await found(node, {"owner", "intruder"})
        assert time.monotonic() - started < 10


async def found(node: Daemons, names: set[str]) -> None:
    """Wait for Events on these pods."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        events = [text for text in await node.events() if text.startswith("GpuDoubleAllocation")]
        if {text.split()[1].rstrip(":") for text in events} == names:
            assert all(all(f"default/{name}" in text for name in names) for text in events)
            return
    raise TimeoutError(str(await node.events()))
