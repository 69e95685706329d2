"""The kubelet's record of allocated devices: what is in it, and what happens when it is lost or damaged."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.contract.kubelet.kubelets import BOTH, BOTH_SLOWLY
from tests.contract.kubelet.machines import Json
from tests.contract.kubelet.probe import IDS, Probe
from tests.contract.kubelet.rig import Rig, container, pod

pytestmark = pytest.mark.anyio

Damage = Callable[[Path], object]


async def one_running(rig: Rig, probe: Probe, count: int = 2, restart_policy: str = "Never") -> Json:
    made = await rig.create(pod("first", container("main", probe.resource, count), restart_policy=restart_policy))
    return (await rig.running(made))[0]


async def test_it_has_the_uid_the_ids_by_numa_node_and_the_plugins_answer(rig: Rig) -> None:
    probe = Probe(rig.places, numa=1)
    await probe.register()
    await rig.until_offered(probe.resource, 6)
    first = await one_running(rig, probe)
    document = json.loads(rig.places.checkpoint.read_text())
    (entry,) = [e for e in document["Data"]["PodDeviceEntries"] if e["ResourceName"] == probe.resource]
    assert (entry["PodUID"], entry["ContainerName"]) == (first["metadata"]["uid"], "main")
    assert {numa: len(ids) for numa, ids in entry["DeviceIDs"].items()} == {"1": 2}
    assert set(document["Data"]["RegisteredDevices"][probe.resource]) == set(IDS)
    assert rig.recorded(probe.resource) == {(first["metadata"]["uid"], "main"): frozenset(probe.allocated[0])}
    await probe.close()


async def test_it_survives_a_restart_and_brings_the_plugins_answer_back(rig: Rig, registered: Probe) -> None:
    first = await one_running(rig, registered, restart_policy="Always")
    recorded, pid = rig.recorded(registered.resource), rig.first_process(first)
    got = rig.environment(first)["GOT"]
    await rig.restart_kubelet()
    await registered.register()
    await rig.until_offered(registered.resource, 6)
    assert (rig.recorded(registered.resource), rig.first_process(first)) == (recorded, pid)
    again = await rig.crash(first)
    assert rig.environment(again)["GOT"] == got
    assert registered.calls.count("allocate") == 1


def _text(path: Path, text: str) -> None:
    path.write_text(text)


def _truncate(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def _rename_a_container(path: Path) -> None:
    document = json.loads(path.read_text())
    for entry in document["Data"]["PodDeviceEntries"]:
        entry["ContainerName"] = "other"
    path.write_text(json.dumps(document))


def _wrong_checksum(path: Path) -> None:
    document = json.loads(path.read_text())
    document["Checksum"] += 1
    path.write_text(json.dumps(document))


LOSSES: dict[str, Damage] = {
    "deleted": lambda path: path.unlink(),
    "garbage bytes": lambda path: path.write_bytes(b"\x00\xff\x17{]" * 50),
    "cut in the middle": _truncate,
    "wrong checksum": _wrong_checksum,
}
MORE_LOSSES: dict[str, Damage] = {
    "empty": lambda path: _text(path, ""),
    "changed by hand": _rename_a_container,
    "another shape": lambda path: _text(path, '{"Data": 7, "Checksum": 1}'),
    "no entries": lambda path: _text(path, '{"Data": {"PodDeviceEntries": null}, "Checksum": 1}'),
}


def rows(losses: dict[str, Damage], kubelets: list[Any]) -> list[Any]:
    """Return every loss on every kubelet; a row's id names both."""
    return [
        pytest.param(*kubelet.values, damage, id=f"{kubelet.values[0]}-{name}", marks=kubelet.marks)
        for kubelet in (item if isinstance(item, type(pytest.param())) else pytest.param(item) for item in kubelets)
        for name, damage in losses.items()
    ]


@pytest.mark.parametrize(("rig", "damage"), [*rows(LOSSES, BOTH), *rows(MORE_LOSSES, BOTH_SLOWLY)], indirect=["rig"])
async def test_without_it_the_ids_of_a_running_pod_are_given_again(rig: Rig, registered: Probe, damage: Damage) -> None:
    first = await one_running(rig, registered)
    pid = rig.first_process(first)
    await rig.machine.stop_kubelet()
    damage(rig.places.checkpoint)
    await rig.start_kubelet()
    await registered.register()
    await rig.until_offered(registered.resource, 6)
    await rig.until_devices(registered.resource, 6, 6)
    registered.prefer = registered.allocated[0]
    second = await rig.create(pod("second", container("main", registered.resource, 2)))
    (second,) = await rig.running(second)
    assert rig.recorded(registered.resource) == {(second["metadata"]["uid"], "main"): frozenset(registered.prefer)}
    assert rig.first_process(first) == pid


async def test_without_it_a_running_container_that_ends_cannot_start_again(rig: Rig, registered: Probe) -> None:
    first = await one_running(rig, registered, restart_policy="Always")
    await rig.machine.stop_kubelet()
    rig.places.checkpoint.unlink()
    await rig.start_kubelet()
    await registered.register()
    await rig.until_offered(registered.resource, 6)
    os.kill(rig.first_process(first), signal.SIGKILL)
    await rig.waits(first, "CreateContainerConfigError", "no devices found allocated in local cache")
    assert registered.calls.count("allocate") == 1


async def test_without_it_a_pod_that_comes_before_the_plugin_gets_no_device(rig: Rig, registered: Probe) -> None:
    await rig.machine.stop_kubelet()
    rig.places.checkpoint.unlink()
    await rig.start_kubelet()
    early = await rig.create(pod("early", container("main", registered.resource, 1)))
    (early,) = await rig.running(early)
    assert "GOT" not in rig.environment(early)
    assert registered.calls.count("allocate") == 0


@pytest.mark.parametrize("rig", BOTH_SLOWLY, indirect=True)
async def test_with_it_a_pod_that_comes_before_the_plugin_fails(rig: Rig, registered: Probe) -> None:
    await rig.restart_kubelet()
    early = await rig.create(pod("early", container("main", registered.resource, 1)))
    assert "no healthy devices present" in await rig.failed(early)
