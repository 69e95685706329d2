"""Pods that try to get more than they were given."""

import asyncio
import os
from pathlib import Path

import pytest

from deviceplugin.backend import Refused
from deviceplugin.nodeconfig import NodeSettings
from gpuslice.devices import limits
from gpuslice.devices.inventory import slice_id
from simulator.kubelet.rig import Ask, Rig, at, gpu, node_rig, pod

pytestmark = pytest.mark.anyio


FORGED = {
    "NVIDIA_VISIBLE_DEVICES": "all",
    "CUDA_DEVICE_MEMORY_LIMIT_0": "0",
    "CUDA_DEVICE_SM_LIMIT": "100",
    "GPUSLICE_GRANT": "another",
}


async def test_variables_in_the_pod_do_not_override_what_was_delivered(rig: Rig) -> None:
    uid = rig.api.create(pod("p", Ask("c", (at(1, 0),), 2000, 20, env=FORGED)))
    await rig.running(uid)
    env = rig.env(uid, "c")
    assert (env["NVIDIA_VISIBLE_DEVICES"], env["CUDA_DEVICE_MEMORY_LIMIT_0"], env["CUDA_DEVICE_SM_LIMIT"]) == (
        gpu(1), "2000m", "20",
    )  # fmt: skip


async def test_by_variables_alone_the_limits_file_still_holds(short_path: Path) -> None:
    async with node_rig(short_path, settings=NodeSettings(device_list_strategy="envvar")) as rig:
        uid = rig.api.create(pod("p", Ask("c", (at(1, 0),), 2000, 20, env=FORGED)))
        await rig.running(uid)
        directory = next(
            m.host for m in rig.kubelet.container(uid, "c").creation.mounts if m.inside.endswith("gpuslice")
        )
        found = limits.read_limits(Path(directory) / "limits")
        assert [(limit.uuid, limit.memory_mib, limit.core_percent) for limit in found] == [(gpu(1), 2000, 20)]


async def test_a_reservation_written_by_the_pods_author_is_worth_nothing(rig: Rig) -> None:
    uid = rig.api.create(pod("p", Ask("c", (at(1, 0),), 40_000), scheduler="default-scheduler"))
    await rig.api.until(lambda: rig.api.phase(uid) == "Failed")
    assert "was not placed by the gpuslice scheduler" in rig.api.status(uid)["message"]


@pytest.mark.parametrize(
    "annotation",
    [
        "",
        "{",
        "null",
        '{"v": 99, "node": "n1", "containers": {}}',
        '{"v": 1, "node": "n1", "containers": {"c": [{"slice": "GPU-x", "memoryMiB": 1}]}}',
        '{"v": 1, "node": "n1", "containers": {"c": [{"slice": "GPU-x::0", "memoryMiB": -1}]}}',
        '{"v": 1, "node": "n1", "containers": {}}',
        '{"v": 1, "node": "n1", "containers": {"c": []}}',
        "[" * 5000,
    ],
)
async def test_a_reservation_that_cannot_be_read_fails_its_pod_and_nothing_else(rig: Rig, annotation: str) -> None:
    body = pod("bad", Ask("c", (at(1, 0),)))
    body["metadata"]["annotations"] = {"gpuslice.io/allocation": annotation}
    bad = rig.api.create(body)
    good = rig.api.create(pod("good", Ask("c", (at(2, 0),))))
    await rig.running(good)
    await rig.api.until(lambda: rig.api.phase(bad) == "Failed")
    assert rig.cards(good, "c") == [gpu(2)]


async def test_a_reservation_of_a_card_that_the_node_has_not_never_starts(rig: Rig) -> None:
    uid = rig.api.create(pod("p", Ask("c", (slice_id(gpu(77), 0),))))
    await rig.api.until(lambda: "has no card" in str(rig.api.status(uid)))
    assert not rig.kubelet.workers[uid].running()


async def test_a_pod_that_waits_for_ever_does_not_hold_up_the_others(rig: Rig) -> None:
    rig.api.create(pod("stuck", Ask("c", (slice_id(gpu(77), 0),))))
    others = [rig.api.create(pod(f"p{n}", Ask("c", (at(n % 4, n // 4),)))) for n in range(8)]
    await rig.running(*others)
    assert [rig.cards(uid, "c") for uid in others] == [[gpu(n % 4)] for n in range(8)]


async def test_one_pods_directory_says_nothing_of_anothers(rig: Rig) -> None:
    one = rig.api.create(pod("one", Ask("c", (at(0, 0),))))
    two = rig.api.create(pod("two", Ask("c", (at(0, 1),))))
    await rig.running(one, two)
    hosts = [{m.host for m in rig.kubelet.container(uid, "c").creation.mounts} for uid in (one, two)]
    shared = hosts[0] & hosts[1]
    assert {Path(path).name for path in shared} == {"libvgpu.so", "ld.so.preload"}
    directory = next(Path(m) for m in hosts[0] - shared if Path(m).name == rig.env(one, "c")["GPUSLICE_GRANT"])
    assert sorted(path.name for path in directory.iterdir()) == ["limits", "state"]
    assert os.stat(rig.plugin.state / "records").st_mode & 0o077 == 0


async def test_a_ruined_state_file_harms_its_owner_only(rig: Rig) -> None:
    uid = rig.api.create(pod("p", Ask("c", (at(0, 0),)), restart_policy="Always"))
    await rig.running(uid)
    running = rig.kubelet.container(uid, "c")
    state = next(Path(m.host) for m in running.creation.mounts if m.inside.endswith("/state"))
    state.write_bytes(os.urandom(100))
    await rig.kubelet.runtime.stop(running, 0)
    await rig.api.until(lambda: rig.kubelet.container(uid, "c") is not running)
    other = rig.api.create(pod("other", Ask("c", (at(0, 1),))))
    await rig.running(other)


async def test_a_burst_of_pods_that_fail_does_not_wear_the_plugin_down(rig: Rig) -> None:
    bad = [rig.api.create(pod(f"bad{n}", Ask("c", (at(0, 0),)), reserved=False)) for n in range(30)]
    await rig.api.until(lambda: all(rig.api.phase(uid) == "Failed" for uid in bad))
    assert len(rig.plugin.backend.book.grants) == 0
    good = rig.api.create(pod("good", Ask("c", (at(0, 0),))))
    await rig.running(good)
    assert len(list((rig.plugin.state / "grants").iterdir())) == 1


async def test_calls_with_strange_ids_are_refused_and_the_plugin_lives_on(rig: Rig) -> None:
    for ids in ([], ["x"], [at(0, 0), at(0, 0)], ["GPU-x::0"] * 3, ["::", "\x00"]):
        with pytest.raises(Refused):
            rig.plugin.backend.allocate(ids)
        assert set(await rig.plugin.backend.prefer(ids, [], 1)) <= set(ids)
        with pytest.raises(Refused):
            async with asyncio.timeout(5):
                await rig.plugin.backend.pre_start(ids)
