"""The product's node daemon on either kubelet: the right share for every container, whatever restarts."""

import asyncio

import pytest

from tests.contract.kubelet.machines import Json
from tests.contract.kubelet.node_daemon import GPU, SLICES, Ask, NodeDaemon
from tests.contract.kubelet.rig import Rig, is_running, restarts

pytestmark = pytest.mark.anyio


async def books(rig: Rig, pod: Json, container: str = "main") -> tuple[frozenset[str], frozenset[str]]:
    """Return a container's slices in the checkpoint and in pod resources."""
    uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
    return rig.recorded(GPU)[uid, container], (await rig.listed(GPU))[name, container]


async def test_each_container_gets_the_schedulers_slices_and_every_book_says_so(rig: Rig, daemon: NodeDaemon) -> None:
    chosen = (daemon.at(1, 7), daemon.at(0, 3))
    pod = await daemon.run("p", Ask("main", chosen, 3000), Ask("side", (daemon.at(1, 2),), 500))
    assert daemon.share(pod) == {daemon.card(1): 3000, daemon.card(0): 3000}
    assert list(daemon.share(pod)) == [daemon.card(1), daemon.card(0)], "in the scheduler's order"
    assert daemon.share(pod, "side") == {daemon.card(1): 500}
    assert await books(rig, pod) == (frozenset(chosen),) * 2
    assert await books(rig, pod, "side") == (frozenset({daemon.at(1, 2)}),) * 2


async def test_init_and_sidecar_containers_reuse_ids_and_each_has_a_share_of_its_own(
    rig: Rig, daemon: NodeDaemon
) -> None:
    zero, one, two = daemon.at(0, 0), daemon.at(1, 0), daemon.at(0, 5)

    def sees(cards: str, memory_mib: int) -> str:
        return f'test "$NVIDIA_VISIBLE_DEVICES $CUDA_DEVICE_MEMORY_LIMIT_0" = "{cards} {memory_mib}m"'

    asks = (
        Ask("i1", (zero, one), 8000, sees(f"{daemon.card(0)},{daemon.card(1)}", 8000), init=True),
        Ask("s", (zero,), 1000, sidecar=True),
        Ask("i2", (one,), 4000, sees(daemon.card(1), 4000), init=True),
        Ask("main", (one,), 2000),
        Ask("other", (two,), 3000),
    )
    pod = await daemon.run("p", *asks)
    shares = {name: daemon.share(pod, name) for name in ("s", "main", "other")}
    assert shares == {"s": {daemon.card(0): 1000}, "main": {daemon.card(1): 2000}, "other": {daemon.card(0): 3000}}
    assert await daemon.metric("identity_total", f'layer="reused",resource="{GPU}"') == 3


async def test_a_pod_that_was_not_placed_is_refused_with_the_remedy(rig: Rig, daemon: NodeDaemon) -> None:
    pod = await daemon.create("unplaced", Ask("main", (daemon.at(0, 0),)), reserved=False)
    assert "set spec.schedulerName to gpuslice-scheduler" in await rig.failed(pod)


async def test_a_card_that_fails_is_not_allocatable_and_comes_back(rig: Rig, daemon: NodeDaemon) -> None:
    await rig.until_devices(GPU, SLICES, SLICES)
    daemon.control("xid 1 79")
    await rig.until_devices(GPU, SLICES, SLICES // 2)
    await rig.until_devices(GPU, SLICES, SLICES)


async def test_a_container_that_restarts_keeps_its_share(rig: Rig, daemon: NodeDaemon) -> None:
    pod = await daemon.run("p", Ask("main", (daemon.at(1, 4),), 2000), restart_policy="Always")
    grant = rig.environment(pod)["GPUSLICE_GRANT"]
    again = await rig.crash(pod)
    assert rig.environment(again)["GPUSLICE_GRANT"] == grant
    assert daemon.share(again) == {daemon.card(1): 2000}
    assert len(daemon.said("allocated")) == 1


async def test_a_kubelet_restart_costs_no_pod_and_a_new_one_gets_its_slice(rig: Rig, daemon: NodeDaemon) -> None:
    old = await daemon.run("old", Ask("main", (daemon.at(0, 0),), 2000))
    pid, socket = rig.first_process(old), daemon.said("registered")[-1]["socket"]
    await rig.restart_kubelet()
    await rig.until_offered(GPU, SLICES)
    new = await daemon.run("new", Ask("main", (daemon.at(0, 1),), 3000))
    assert (rig.first_process(old), is_running(await rig.read(old))) == (pid, True)
    assert daemon.share(new) == {daemon.card(0): 3000}
    assert daemon.said("registered")[-1]["socket"] != socket
    assert await daemon.metric("registrations_total", f'resource="{GPU}"') == 2


async def test_a_socket_that_somebody_deleted_is_replaced(rig: Rig, daemon: NodeDaemon) -> None:
    for socket in rig.places.plugins.glob("gs-*.sock"):
        socket.unlink()
    await rig.until(lambda: len(daemon.said("registered")) == 2, "the plugin registers anew")
    await rig.until_offered(GPU, SLICES)
    pod = await daemon.run("p", Ask("main", (daemon.at(1, 1),), 2000))
    assert daemon.share(pod) == {daemon.card(1): 2000}


async def test_the_daemon_killed_and_started_again_knows_every_grant(rig: Rig, daemon: NodeDaemon) -> None:
    old = await daemon.run("old", Ask("main", (daemon.at(0, 0),), 2000), restart_policy="Always")
    await daemon.kill()
    await daemon.start()
    new = await daemon.run("new", Ask("main", (daemon.at(0, 1),), 3000))
    again = await rig.crash(old)
    assert (daemon.share(again), daemon.share(new)) == ({daemon.card(0): 2000}, {daemon.card(0): 3000})
    assert [await books(rig, pod) for pod in (again, new)] == [(frozenset({daemon.at(0, n)}),) * 2 for n in (0, 1)]


async def test_after_a_reboot_a_pod_has_the_share_it_had(rig: Rig, daemon: NodeDaemon) -> None:
    pod = await daemon.run("p", Ask("main", (daemon.at(1, 4),), 2000), restart_policy="Always")
    # A daemon that knows the pod from its records alone, and is there before the kubelet admits anything.
    await daemon.kill()
    await daemon.start()
    await rig.reboot()
    back = await rig.until_pod(pod, lambda now: is_running(now) and restarts(now, "main") >= 1, "is back", 60)
    assert daemon.share(back) == {daemon.card(1): 2000}
    assert await books(rig, back) == (frozenset({daemon.at(1, 4)}),) * 2


async def test_pods_that_come_together_are_told_apart(rig: Rig, daemon: NodeDaemon) -> None:
    made = await asyncio.gather(
        *(daemon.create(f"p{n}", Ask("main", (daemon.at(n % 2, n // 2),), 1000 + n)) for n in range(8))
    )
    running = await rig.running(*made)
    assert [daemon.share(pod) for pod in running] == [{daemon.card(n % 2): 1000 + n} for n in range(8)]
