"""Pods on a whole node: stub kubelet and plugin over real sockets, containers as real processes."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from deviceplugin.nodeconfig import NodeSettings
from gpuslice.devices import limits
from gpuslice.devices.pods import Pod
from simulator.kubelet.kubelet import Behaviour
from simulator.kubelet.rig import FAST, Ask, Rig, at, gpu, node_rig, pod

pytestmark = pytest.mark.anyio


@pytest.fixture
async def rig(short_path: Path) -> AsyncIterator[Rig]:
    async with node_rig(short_path) as started:
        yield started


async def test_two_containers_get_their_own_cards_in_the_schedulers_order(rig: Rig) -> None:
    uid = rig.api.create(pod("p", Ask("a", (at(2, 7), at(0, 1)), 3000, 30), Ask("b", (at(1, 0),), 500)))
    await rig.running(uid)
    assert (rig.cards(uid, "a"), rig.cards(uid, "b")) == ([gpu(2), gpu(0)], [gpu(1)])
    assert rig.env(uid, "a")["CUDA_DEVICE_MEMORY_LIMIT_1"] == "3000m"
    assert rig.env(uid, "a")["CUDA_DEVICE_SM_LIMIT"] == "30"
    assert "CUDA_DEVICE_SM_LIMIT" not in rig.env(uid, "b")
    held = {container: assignment.ids for (_, container, _), assignment in rig.kubelet.manager.assignments.items()}
    assert held == {"a": {at(2, 7), at(0, 1)}, "b": {at(1, 0)}}
    assert rig.plugin.count("identity_total", resource="nvidia.com/gpu", layer="known") == 2


async def test_equal_pods_that_arrive_together_are_told_apart(rig: Rig) -> None:
    uids = [rig.api.create(pod(f"p{n}", Ask("c", (at(n % 4, n // 4),), 1000 + n))) for n in range(20)]
    await rig.running(*uids)
    assert [rig.cards(uid, "c") for uid in uids] == [[gpu(n % 4)] for n in range(20)]
    assert [rig.env(uid, "c")["CUDA_DEVICE_MEMORY_LIMIT_0"] for uid in uids] == [f"{1000 + n}m" for n in range(20)]
    assert rig.plugin.count("identity_total", resource="nvidia.com/gpu", layer="known") == 20


@pytest.mark.parametrize("strategy", ["cdi-cri", "cdi-annotations", "envvar", "volume-mounts"])
async def test_every_list_strategy_names_the_right_card(short_path: Path, strategy: str) -> None:
    settings = NodeSettings(device_list_strategy=strategy)  # type: ignore[arg-type]  # rows are text
    async with node_rig(short_path, settings=settings) as rig:
        uid = rig.api.create(pod("p", Ask("c", (at(3, 2),))))
        await rig.running(uid)
        if strategy == "volume-mounts":
            mounts = [mount.inside for mount in rig.kubelet.container(uid, "c").creation.mounts]
            assert f"/var/run/nvidia-container-devices/{gpu(3)}" in mounts
        else:
            assert rig.cards(uid, "c") == [gpu(3)]


async def test_with_cdi_a_kubelet_that_ignores_preferences_still_gets_every_container_its_card(
    short_path: Path,
) -> None:
    behaviour = Behaviour(seed=5, honour_preferences=False, pace=FAST)
    async with node_rig(short_path, behaviour=behaviour) as rig:
        uids = [rig.api.create(pod(f"p{n}", Ask("c", (at(n % 4, n // 4),)))) for n in range(12)]
        await rig.running(*uids)
        assert [rig.cards(uid, "c") for uid in uids] == [[gpu(n % 4)] for n in range(12)]
        assert rig.plugin.count("steered_total", resource="nvidia.com/gpu", outcome="other") > 0


async def test_a_pod_that_our_view_lacks_for_a_while_starts_when_it_is_seen(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server is out of reach of the plugin, not of the kubelet: an error in Allocate would fail the pod."""
    monkeypatch.setattr("deviceplugin.slices._WATCH_SECONDS", 0.1)
    show, rig.api.plugin_sees = rig.api.plugin_sees, lambda _pod: None
    uid = rig.api.create(pod("p", Ask("c", (at(1, 1),), 7000)))
    await rig.api.until(lambda: "CreateContainerConfigError" in str(rig.api.status(uid)))
    assert rig.api.phase(uid) == "Pending"
    rig.api.plugin_sees = show
    show(msgspec.convert(rig.api.bodies[uid], Pod))
    await rig.running(uid)
    assert rig.cards(uid, "c") == [gpu(1)]
    assert rig.env(uid, "c")["CUDA_DEVICE_MEMORY_LIMIT_0"] == "7000m"


async def test_a_pod_reserved_on_another_node_is_refused(rig: Rig) -> None:
    uid = rig.api.create(pod("p", Ask("c", (at(1, 1),)), node="n2"))
    await rig.api.until(lambda: rig.api.phase(uid) == "Failed")
    assert "has a reservation on node n2, not on n1" in rig.api.status(uid)["message"]


async def test_unmanaged_pods_are_allowed_a_plain_share_but_never_anothers(short_path: Path) -> None:
    async with node_rig(short_path, settings=NodeSettings(unmanaged="allow")) as rig:
        ours = rig.api.create(pod("ours", Ask("c", (at(1, 1),), 7000)))
        theirs = rig.api.create(pod("theirs", Ask("c", (at(0, 0),)), reserved=False))
        await rig.running(ours, theirs)
        assert rig.env(ours, "c")["CUDA_DEVICE_MEMORY_LIMIT_0"] == "7000m"
        assert rig.env(theirs, "c")["CUDA_DEVICE_MEMORY_LIMIT_0"] == "4000m"


async def test_a_deleted_pods_files_go_when_its_processes_have_gone(rig: Rig) -> None:
    uid = rig.api.create(pod("p", Ask("c", (at(1, 1),))))
    await rig.running(uid)
    grant = rig.env(uid, "c")["GPUSLICE_GRANT"]
    rig.api.delete(uid, 0)
    await rig.api.until(lambda: not (rig.plugin.state / "grants" / grant).exists())
    assert not list(rig.kubelet.layout.cdi.glob("*.json"))


async def test_the_limits_directory_is_read_only_but_for_the_state_file(rig: Rig) -> None:
    uid = rig.api.create(pod("p", Ask("c", (at(1, 1),))))
    await rig.running(uid)
    mounts = {m.inside: m for m in rig.kubelet.container(uid, "c").creation.mounts}
    assert {inside for inside, mount in mounts.items() if not mount.read_only} == {"/var/run/gpuslice/state"}
    assert os.stat(mounts["/var/run/gpuslice"].host).st_mode & 0o022 == 0


@pytest.mark.parametrize("first", ["ours", "theirs"])
async def test_without_podresources_every_pod_of_ours_starts_and_an_unplaced_one_never(
    short_path: Path, first: str
) -> None:
    async with node_rig(short_path, behaviour=Behaviour(pace=FAST, pod_resources=False, pretend=True)) as rig:
        bodies = [pod(f"p{n}", Ask("c", (at(n, 0),), 1000 + n)) for n in range(4)]
        stranger = pod("stranger", Ask("c", (at(0, 5),)), reserved=False)
        order = [*bodies, stranger] if first == "ours" else [stranger, *bodies]
        uids = {body["metadata"]["name"]: rig.api.create(body) for body in order}
        ours = [uids[f"p{n}"] for n in range(4)]
        await rig.running(*ours)
        assert [rig.env(uid, "c")["CUDA_DEVICE_MEMORY_LIMIT_0"] for uid in ours] == [f"{1000 + n}m" for n in range(4)]
        await rig.api.until(lambda: "schedulerName" in str(rig.api.status(uids["stranger"])))
        worker = rig.kubelet.workers.get(uids["stranger"])
        assert worker is None or not worker.running()


async def test_the_priority_of_a_container_reaches_its_limits(rig: Rig) -> None:
    body = pod("p", Ask("high", (at(1, 1),)), Ask("low", (at(2, 1),)))
    body["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/priority"] = 0
    uid = rig.api.create(body)
    await rig.running(uid)
    found = {}
    for name in ("high", "low"):
        mounts = rig.kubelet.container(uid, name).creation.mounts
        directory = next(Path(mount.host) for mount in mounts if mount.inside == "/var/run/gpuslice")
        found[name] = limits.read_limits(directory / "limits")[0].priority
    assert found == {"high": 0, "low": 1}
