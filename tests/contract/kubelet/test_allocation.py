"""Which devices a container gets, and what the plugin is asked when."""

import os
import signal

import pytest

from tests.contract.kubelet.kubelets import BOTH_SLOWLY
from tests.contract.kubelet.probe import IDS, Probe
from tests.contract.kubelet.rig import Rig, container, is_running, pod, restarts, waiting_for
from tests.contract.kubelet.stub_machine import StubMachine

pytestmark = pytest.mark.anyio


async def test_a_valid_preference_is_obeyed_and_ids_travel_in_no_order(rig: Rig, registered: Probe) -> None:
    registered.prefer = ["d3", "d1", "d5", "d0"]
    (made,) = await rig.running(await rig.create(pod("p", container("main", registered.resource, 4))))
    assert registered.calls == ["options", "prefer", "allocate", "start"]
    assert registered.available == [frozenset(IDS)]
    (allocated,), (started,) = registered.allocated, registered.started
    assert set(allocated) == set(started) == set(registered.prefer)
    assert rig.environment(made)["GOT"] == "d0,d1,d3,d5"
    for number in range(8):
        if list(allocated) != sorted(allocated):
            break
        again = await rig.create(pod(f"again{number}", container("main", registered.resource, 2)))
        await rig.running(again)
        allocated = registered.allocated[-1]
        await rig.delete(again)
    else:
        pytest.fail(f"eight Allocates with sorted IDs: {registered.allocated}")


async def test_a_short_preference_is_filled_and_a_foreign_one_dropped(rig: Rig, registered: Probe) -> None:
    registered.prefer = ["d4", "no-such-device"]
    await rig.running(await rig.create(pod("p", container("main", registered.resource, 3))))
    (ids,) = registered.allocated
    assert "d4" in ids
    assert len(set(ids) & set(IDS)) == 3


async def test_a_plugin_may_meet_a_kubelet_that_ignores_preferences(rig: Rig, registered: Probe) -> None:
    if not isinstance(rig.machine, StubMachine):
        pytest.skip("the real kubelet obeys every valid preference where no NUMA hint speaks against it")
    rig.machine.kubelet.manager.honour_preferences = False
    registered.prefer = ["d4", "d5"]
    made = [await rig.create(pod(f"p{n}", container("main", registered.resource, 2))) for n in range(3)]
    await rig.running(*made)
    assert [set(ids) for ids in registered.allocated] != [{"d4", "d5"}] * 3
    assert registered.calls.count("prefer") == 3


async def test_init_and_sidecar_containers_reuse_devices_without_another_preference(
    rig: Rig, registered: Probe
) -> None:
    resource = registered.resource
    sidecar = {**container("s", resource, 1), "restartPolicy": "Always"}
    init = [container("i1", resource, 2, "exit 0"), sidecar, container("i2", resource, 1, "exit 0")]
    made = await rig.create(pod("p", container("c1", resource, 1), container("c2", resource, 2), init=init))
    (made,) = await rig.running(made)
    assert registered.calls[1:8] == ["prefer", *["allocate"] * 4, "prefer", "allocate"]
    assert registered.calls[8:] == ["start"] * 5
    first, side, second, app, other = (frozenset(ids) for ids in registered.allocated)
    assert (side | second, second, side & second) == (first, app, frozenset())
    assert not other & first
    assert rig.recorded(resource) == {
        (made["metadata"]["uid"], name): ids
        for name, ids in {"i1": first, "s": side, "i2": second, "c1": app, "c2": other}.items()
    }


async def test_a_container_that_restarts_is_started_anew_and_not_allocated(rig: Rig, registered: Probe) -> None:
    made = await rig.create(pod("p", container("main", registered.resource, 2), restart_policy="Always"))
    (made,) = await rig.running(made)
    got = rig.environment(made)["GOT"]
    again = await rig.crash(made)
    assert registered.calls[1:] == ["prefer", "allocate", "start", "start"]
    assert set(registered.started[1]) == set(registered.allocated[0])
    assert rig.environment(again)["GOT"] == got


async def test_a_refused_start_waits_with_the_plugins_words_and_heals(rig: Rig, registered: Probe) -> None:
    registered.refuse_start = "wait for the other " + "x" * 1000
    made = await rig.create(pod("p", container("main", registered.resource, 1)))
    await rig.waits(made, "CreateContainerConfigError", registered.refuse_start)
    registered.refuse_start = ""
    await rig.starts_after_all(made)
    assert registered.calls.count("allocate") == 1


async def test_a_refused_allocate_fails_the_pod_for_good_and_frees_the_devices(rig: Rig, registered: Probe) -> None:
    registered.refuse_allocate = "this pod was not placed by the scheduler"
    refused = await rig.create(pod("refused", container("main", registered.resource, 4)))
    message = await rig.failed(refused)
    assert registered.refuse_allocate in message
    assert message.startswith("Pod was rejected: Allocate failed due to ")
    assert message.endswith(", which is unexpected")
    registered.refuse_allocate = ""
    await rig.running(await rig.create(pod("next", container("main", registered.resource, 6))))
    assert registered.available[-1] == frozenset(IDS)


async def test_too_few_healthy_devices_fail_the_pod_for_good(rig: Rig, registered: Probe) -> None:
    await registered.offer(["d0"])
    await rig.until_offered(registered.resource, 1)
    made = await rig.create(pod("p", container("main", registered.resource, 2)))
    assert "Requested: 2, Available: 1" in await rig.failed(made)


async def test_devices_of_a_deleted_pod_and_of_a_completed_one_are_free(rig: Rig, registered: Probe) -> None:
    deleted = await rig.create(pod("deleted", container("main", registered.resource, 3)))
    done = await rig.create(pod("done", container("main", registered.resource, 3, "exit 0")))
    await rig.running(deleted)
    await rig.until_pod(done, lambda now: now["status"].get("phase") == "Succeeded", "completes")
    await rig.delete(deleted)
    await rig.running(await rig.create(pod("next", container("main", registered.resource, 6))))
    assert set(registered.allocated[-1]) == set(IDS)


@pytest.mark.parametrize("rig", BOTH_SLOWLY, indirect=True)
async def test_a_pod_that_asks_for_more_than_others_leave_is_refused_by_the_node(rig: Rig, registered: Probe) -> None:
    """The kubelet counts requests too, whatever its device manager believes after a lost checkpoint."""
    await rig.running(await rig.create(pod("first", container("main", registered.resource, 4))))
    await rig.machine.stop_kubelet()
    rig.places.checkpoint.unlink()
    await rig.start_kubelet()
    await registered.register()
    await rig.until_offered(registered.resource, 6)
    await rig.until_devices(registered.resource, 6, 6)
    second = await rig.create(pod("second", container("main", registered.resource, 4)))
    failed = await rig.until_pod(second, lambda now: now["status"].get("phase") == "Failed", "is refused")
    assert failed["status"]["reason"] == f"OutOf{registered.resource}"
    assert f"{registered.resource}, requested: 4, used: 4, capacity: 6" in failed["status"]["message"]


@pytest.mark.parametrize("grace_seconds", [0, 1], ids=["by force", "gracefully"])
async def test_a_pod_deleted_while_a_slow_plugin_answers_keeps_nothing(
    rig: Rig, registered: Probe, grace_seconds: int
) -> None:
    registered.hold.clear()
    gone = await rig.create(pod("gone", container("main", registered.resource, 6)))
    await rig.until(lambda: registered.allocated, "Allocate is called")
    await rig.start_deletion(gone, grace_seconds)
    registered.hold.set()
    await rig.delete(gone)

    await rig.until(lambda: not rig.machine.processes(gone, "main"), "no process of the deleted pod")
    await rig.running(await rig.create(pod("later", container("main", registered.resource, 6))))


@pytest.mark.parametrize("rig", BOTH_SLOWLY, indirect=True)
async def test_while_the_plugin_is_away_a_container_does_not_restart_and_later_does(
    rig: Rig, registered: Probe
) -> None:
    made = await rig.create(pod("p", container("main", registered.resource, 1), restart_policy="Always"))
    (made,) = await rig.running(made)
    await registered.stop()
    await rig.until_offered(registered.resource, 0)
    os.kill(rig.first_process(made), signal.SIGKILL)
    await rig.until_pod(made, lambda now: not is_running(now) and waiting_for(now), "waits", 60)
    await registered.register()
    await rig.until_offered(registered.resource, 6)
    again = await rig.starts_after_all(made)
    assert restarts(again, "main") == 1
    assert registered.calls.count("allocate") == 1
