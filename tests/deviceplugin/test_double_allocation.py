"""A slice whose last owner leaves a process behind. The five classic scenarios are in tests/contract/kubelet."""

from pathlib import Path

import pytest

from deviceplugin.tenants import Tenant
from simulator.kubelet.kubelet import Behaviour
from simulator.kubelet.rig import FAST, Ask, Rig, at, node_rig, pod

pytestmark = pytest.mark.anyio


class Noted:
    """Takes Events down."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def pod_event(self, tenant: Tenant, reason: str, message: str) -> None:
        self.events.append((tenant.name, message))

    def node_event(self, reason: str, message: str) -> None:
        self.events.append(("node", message))


async def left_behind(rig: Rig, process: str) -> Path:
    """Force-delete a pod whose process does not end; return the file that lists it."""
    first = rig.api.create(pod("first", Ask("c", (at(0, 0),))))
    await rig.running(first)
    procs = rig.kubelet.runtime.cgroup(first, "c") / "cgroup.procs"
    rig.api.force_delete(first)
    await rig.api.until(lambda: first not in rig.kubelet.workers and not procs.exists())
    procs.parent.mkdir(parents=True)
    procs.write_text(f"{process}\n")
    return procs


async def test_a_process_that_never_ends_keeps_the_successor_waiting_and_both_are_named(short_path: Path) -> None:
    noted = Noted()
    async with node_rig(short_path, behaviour=Behaviour(pace=FAST, pretend=True), guard_seconds=0.2) as rig:
        rig.plugin.node.reporter.sink = noted
        procs = await left_behind(rig, "4242")
        second = rig.api.create(pod("second", Ask("c", (at(0, 0),))))
        await rig.api.until(lambda: "still runs processes 4242" in str(rig.api.status(second)))
        assert [(name, "default/first" in text) for name, text in noted.events] == [("second", True)]
        procs.write_text("")
        await rig.running(second)


async def test_two_successors_that_wait_for_one_slice_do_not_both_get_it(short_path: Path) -> None:
    async with node_rig(short_path, behaviour=Behaviour(pace=FAST, pretend=True), guard_seconds=3) as rig:
        procs = await left_behind(rig, "4242")
        rivals = [rig.api.create(pod(f"rival{n}", Ask("c", (at(0, 0),)))) for n in range(2)]
        await rig.api.until(lambda: rig.plugin.node.guard.waits == 2)
        procs.write_text("")
        await rig.api.until(lambda: any(rig.api.phase(uid) == "Running" for uid in rivals))
        await rig.api.until(lambda: any("which still lives" in str(rig.api.status(uid)) for uid in rivals))
        assert sorted(rig.api.phase(uid) for uid in rivals) == ["Pending", "Running"]
