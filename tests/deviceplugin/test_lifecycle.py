"""What the plugin survives: kubelet restarts, lost streams and sockets, a lost checkpoint, replacement, reboots."""

import asyncio
import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from deviceplugin.backend import Edits, Refused
from deviceplugin.lock import NodeLock
from deviceplugin.nodeconfig import CardSettings, NodeSettings
from deviceplugin.offers import GPU_RESOURCE
from gpuslice.proto.deviceplugin.v1beta1 import api_pb2 as pb
from gpuslice.proto.deviceplugin.v1beta1 import api_pb2_grpc as rpc
from simulator.kubelet.rig import FAST, Ask, Rig, at, gpu, pod

pytestmark = pytest.mark.anyio


async def registered_again(rig: Rig, before: int) -> None:
    await rig.api.until(
        lambda: rig.plugin.registrar.registrations > before and rig.plugin.registrar.registered.is_set()
    )
    await rig.listed()


async def test_a_kubelet_restart_is_followed_by_one_registration_and_running_pods_stay(rig: Rig) -> None:
    uid = rig.api.create(pod("p", Ask("c", (at(1, 1),))))
    await rig.running(uid)
    for restart in range(1, 4):
        await rig.kubelet.restart()
        await registered_again(rig, restart)
    assert rig.plugin.registrar.registrations == 4
    assert rig.api.phase(uid) == "Running"
    assert rig.kubelet.container(uid, "c").exit_code is None


async def test_a_start_that_is_cut_off_by_a_kubelet_restart_is_tried_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The pod is admitted anew; before the plugin is back that would fail it.
    rig.kubelet.behaviour = replace(rig.kubelet.behaviour, pace=replace(FAST, first_admission=1.0))
    backend, asked, answer = rig.plugin.backend, asyncio.Event(), asyncio.Event()
    at_once = backend.pre_start

    async def when_told(ids: Sequence[str]) -> None:
        asked.set()
        await answer.wait()
        await at_once(ids)

    monkeypatch.setattr(backend, "pre_start", when_told)
    uid = rig.api.create(pod("p", Ask("c", (at(1, 1),))))
    await asked.wait()
    await rig.kubelet.restart()
    answer.set()
    await rig.running(uid)
    assert rig.cards(uid, "c") == [gpu(1)]


async def in_admission(rig: Rig, monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    """Create pods; return when the kubelet is in the middle of admitting the first, with the others behind it."""
    asked = asyncio.Event()

    async def never(*_: object) -> Sequence[str]:
        asked.set()
        await asyncio.Event().wait()
        return ()

    with monkeypatch.context() as patch:
        patch.setattr(rig.plugin.backend, "prefer", never)
        uids = [rig.api.create(pod(name, Ask("c", (at(1, n),)))) for n, name in enumerate(names)]
        await asked.wait()
        await rig.api.until(lambda: len(rig.kubelet._arrivals) == len(names) - 1)
    return uids


async def test_a_pod_whose_admission_a_kubelet_restart_cuts_off_is_admitted_by_the_next(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.kubelet.behaviour = replace(rig.kubelet.behaviour, pace=replace(FAST, first_admission=1.0))
    (uid,) = await in_admission(rig, monkeypatch, "p")
    await rig.kubelet.restart()
    await rig.running(uid)
    assert rig.cards(uid, "c") == [gpu(1)]


async def test_a_plugin_that_dies_in_the_middle_of_an_admission_fails_that_pod_and_not_the_next(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = await in_admission(rig, monkeypatch, "p")
    await rig.kubelet.manager.endpoints[GPU_RESOURCE].channel.close()  # type: ignore[union-attr]
    await rig.api.until(lambda: rig.api.phase(first) == "Failed")
    await registered_again(rig, 1)
    second = rig.api.create(pod("q", Ask("c", (at(1, 1),))))
    await rig.running(second)


async def test_pods_that_wait_for_admission_in_a_power_cut_are_admitted_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.kubelet.behaviour = replace(rig.kubelet.behaviour, pace=replace(FAST, first_admission=1.0))
    waiting = await in_admission(rig, monkeypatch, "p", "q", "r")
    allocate = rig.plugin.backend.allocate
    refused: list[Sequence[str]] = []

    def first_refuse_each(ids: Sequence[str]) -> Edits:
        if len(refused) < len(waiting):
            refused.append(ids)
            raise Refused("not today")
        return allocate(ids)

    monkeypatch.setattr(rig.plugin.backend, "allocate", first_refuse_each)
    await rig.kubelet.reboot()
    await registered_again(rig, 1)
    last = rig.api.create(pod("last", Ask("c", (at(2, 0),))))
    await rig.running(last)
    assert [rig.api.phase(uid) for uid in waiting] == ["Failed"] * 3
    assert set(rig.kubelet.workers) == {last}


async def test_a_new_kubelet_that_does_not_listen_yet_is_asked_again_soon(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between bind and listen it refuses; with the pauses of a long absence three attempts would take five seconds."""
    monkeypatch.setattr("deviceplugin.registration._BACKOFF_START_SECONDS", 0.05)

    def failures() -> float:
        return rig.plugin.count("registration_failures_total", resource=GPU_RESOURCE)

    await rig.kubelet.stop()
    kubelet = rig.kubelet.layout.plugins / "kubelet.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(kubelet))
        await rig.api.until(lambda: failures() >= 6)
    kubelet.unlink()
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(kubelet))
        refused = failures()
        await rig.api.until(lambda: failures() >= refused + 3, seconds=4.0)
    await rig.kubelet.start()
    await registered_again(rig, 1)


async def test_a_stream_that_ends_without_a_restart_is_registered_again(rig: Rig) -> None:
    endpoint = rig.kubelet.manager.endpoints[GPU_RESOURCE]
    assert endpoint.stream is not None
    endpoint.stream.cancel()
    await registered_again(rig, 1)


async def test_every_registration_uses_a_socket_of_its_own(rig: Rig) -> None:
    names = {rig.kubelet.manager.endpoints[GPU_RESOURCE].socket}
    for restart in range(1, 3):
        await rig.kubelet.restart()
        await registered_again(rig, restart)
        names.add(rig.kubelet.manager.endpoints[GPU_RESOURCE].socket)
    assert len(names) == 3


async def test_an_unchanged_list_is_not_sent_again(rig: Rig) -> None:
    for _ in range(5):
        await rig.plugin.backend.refresh()
    await rig.plugin.offer(unhealthy=[gpu(0)])
    await rig.listed()
    await rig.api.until(lambda: rig.api.devices.get(GPU_RESOURCE) == (40, 30))
    assert rig.kubelet.manager.lists == 2


async def test_a_replaced_plugin_keeps_grants_and_registers_at_once(rig: Rig) -> None:
    uid = rig.api.create(pod("p", Ask("c", (at(1, 1),))))
    await rig.running(uid)
    grant = rig.env(uid, "c")["GPUSLICE_GRANT"]
    await rig.replace_plugin()
    await rig.listed()
    assert set(rig.plugin.backend.book.grants) == {grant}
    assert (rig.kubelet.layout.cdi / f"gpuslice.io-grant-{grant}.json").exists()


async def test_a_container_that_restarts_after_the_plugin_was_replaced_is_delivered_again(rig: Rig) -> None:
    uid = rig.api.create(pod("p", Ask("c", (at(1, 1),)), restart_policy="Always"))
    await rig.running(uid)
    await rig.replace_plugin()
    await rig.listed()
    running = rig.kubelet.container(uid, "c")
    await rig.kubelet.runtime.stop(running, 0)
    await rig.api.until(lambda: rig.kubelet.container(uid, "c") is not running)
    assert rig.cards(uid, "c") == [gpu(1)]


async def test_ids_in_use_stay_listed_when_the_card_offers_fewer_slots(rig: Rig) -> None:
    uid = rig.api.create(pod("p", Ask("c", (at(1, 9),))))
    await rig.running(uid)
    await rig.replace_plugin(settings=NodeSettings(cards=CardSettings(slots_per_card=4)))
    await rig.listed()
    endpoint = rig.kubelet.manager.endpoints[GPU_RESOURCE]
    assert (len(endpoint.healthy), endpoint.unhealthy) == (16, {at(1, 9)})


async def test_the_plugin_started_first_saves_pods_over_a_reboot(rig: Rig) -> None:
    uid = rig.api.create(pod("p", Ask("c", (at(1, 1),))))
    await rig.running(uid)
    first_grant = rig.env(uid, "c")["GPUSLICE_GRANT"]
    await rig.kubelet.shut_down()
    for path in rig.kubelet.layout.cdi.glob("*"):
        path.unlink()
    await rig.replace_plugin_while_down()
    assert (rig.kubelet.layout.cdi / f"gpuslice.io-grant-{first_grant}.json").exists()


async def test_the_lock_lets_one_process_in_at_a_time(tmp_path: Path) -> None:
    first, second = NodeLock(tmp_path), NodeLock(tmp_path)
    assert (first.try_acquire(), second.try_acquire()) == (True, False)
    waiting = asyncio.create_task(second.acquire())
    first.release()
    await asyncio.wait_for(waiting, 2)
    second.release()


async def test_a_ready_standby_registers_when_the_old_stream_has_ended(rig: Rig) -> None:
    uid = rig.api.create(pod("p", Ask("c", (at(1, 1),))))
    await rig.running(uid)
    standby = rig.new_plugin()
    await rig.plugin.stop()
    rig.plugin = standby
    await rig.plugin.start()
    await rig.api.until(lambda: len(rig.kubelet.manager.endpoints[GPU_RESOURCE].healthy) == 40)
    assert rig.api.phase(uid) == "Running"


async def test_a_socket_is_for_root_alone(rig: Rig) -> None:
    path = rig.kubelet.layout.plugins / rig.kubelet.manager.endpoints[GPU_RESOURCE].socket
    assert os.stat(path).st_mode & 0o777 == 0o600


async def test_the_server_answers_every_call_with_the_wire_names_of_the_kubelet(rig: Rig) -> None:
    path = rig.kubelet.layout.plugins / rig.kubelet.manager.endpoints[GPU_RESOURCE].socket
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        options = await rpc.DevicePluginStub(channel).GetDevicePluginOptions(pb.Empty())
    assert (options.pre_start_required, options.get_preferred_allocation_available) == (True, True)


async def test_a_grant_keeps_mode_and_strategy_when_the_nodes_change(rig: Rig) -> None:
    uid = rig.api.create(pod("p", Ask("c", (at(1, 1),), 2000), restart_policy="Always"))
    await rig.running(uid)
    changed = NodeSettings(cards=CardSettings(mode="time-slicing"), device_list_strategy="envvar")
    await rig.replace_plugin(settings=changed)
    for path in rig.kubelet.layout.cdi.glob("*.json"):
        path.unlink()
    await rig.listed()
    running = rig.kubelet.container(uid, "c")
    await rig.kubelet.runtime.stop(running, 0)
    await rig.api.until(lambda: rig.kubelet.container(uid, "c") is not running)
    assert rig.env(uid, "c")["CUDA_DEVICE_MEMORY_LIMIT_0"] == "2000m"
    new = rig.api.create(pod("q", Ask("c", (at(2, 1),), 2000)))
    await rig.running(new)
    assert "CUDA_DEVICE_MEMORY_LIMIT_0" not in rig.env(new, "c")


async def test_a_list_too_long_for_the_kubelet_leaves_the_last_one_in_force(rig: Rig) -> None:
    rig.plugin.node.settings = NodeSettings(cards=CardSettings(slots_per_card=20_000))
    await rig.plugin.offer()
    assert len(rig.plugin.backend.devices.ids) == 40


async def test_numa_nodes_reach_the_kubelet(rig: Rig) -> None:
    assert {rig.kubelet.manager.numa[at(card, 0)] for card in (0, 2)} == {0}
    assert {rig.kubelet.manager.numa[at(card, 0)] for card in (1, 3)} == {1}
