"""Kubelet restarts, reboots and forced deletions, as a plugin sees them."""

import pytest

from tests.contract.kubelet.kubelets import BOTH_SLOWLY
from tests.contract.kubelet.probe import Probe
from tests.contract.kubelet.rig import Rig, container, is_running, pod, restarts

pytestmark = pytest.mark.anyio


async def test_a_kubelet_restart_leaves_running_pods_alone(rig: Rig, registered: Probe) -> None:
    made = await rig.running(
        *[await rig.create(pod(f"p{n}", container("main", registered.resource, 1))) for n in range(3)]
    )
    pids = [rig.first_process(one) for one in made]
    before = await rig.listed(registered.resource)
    calls = list(registered.calls)
    await rig.restart_kubelet()
    await registered.register()
    await rig.until_offered(registered.resource, 6)

    async def listed_again() -> bool:
        return await rig.listed(registered.resource) == before

    await rig.until(listed_again, "podresources as before")
    assert [rig.first_process(one) for one in await rig.running(*made)] == pids
    assert registered.calls == [*calls, "options"]


async def test_after_a_reboot_a_pod_is_admitted_again_with_its_devices(rig: Rig, registered: Probe) -> None:
    made = await rig.create(pod("p", container("main", registered.resource, 2), restart_policy="Always"))
    (made,) = await rig.running(made)
    got = rig.environment(made)["GOT"]
    await rig.reboot()
    await registered.register()

    def back(now: dict[str, object]) -> bool:
        return is_running(now) and restarts(now, "main") >= 1

    again = await rig.until_pod(made, back, "runs again", 60)
    assert rig.environment(again)["GOT"] == got
    assert registered.calls.count("allocate") == 1


@pytest.mark.parametrize("rig", BOTH_SLOWLY, indirect=True)
async def test_after_a_reboot_a_pod_fails_that_is_admitted_before_the_plugin_is_there(
    rig: Rig, registered: Probe
) -> None:
    made = await rig.create(pod("p", container("main", registered.resource, 2), restart_policy="Always"))
    await rig.running(made)
    await registered.close()
    await rig.reboot()
    assert "no healthy devices present" in await rig.failed(made)


async def test_devices_of_a_pod_deleted_by_force_are_free_while_its_process_runs(rig: Rig, registered: Probe) -> None:
    stubborn = "trap '' TERM; while :; do sleep 1; done"
    registered.prefer = ["d2", "d4"]
    first = await rig.create(pod("first", container("main", registered.resource, 2, stubborn)))
    (first,) = await rig.running(first)
    pid = rig.first_process(first)
    await rig.start_deletion(first, 0)
    second = await rig.create(pod("second", container("main", registered.resource, 2)))
    await rig.until(lambda: len(registered.started) == 2, "the second starts")
    assert rig.machine.processes(first, "main")[:1] == [pid]
    assert set(registered.allocated[1]) == {"d2", "d4"}
    await rig.running(second)
