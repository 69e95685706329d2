"""The classic ways to give one card twice, staged on the real kubelet; and pods that try to get more by force."""

import json
import signal
from typing import Any

import pytest

from tests.cluster.harness import pods
from tests.cluster.harness.api import Json, path_of
from tests.cluster.harness.auditor import audit
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.lifetimes import Lifetimes
from tests.cluster.harness.process import wait_until
from tests.cluster.test_thin_path import assert_share, cards_of, shares

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

STUBBORN = "trap '' TERM; while :; do sleep 1; done"
"""Does not end before it is killed."""
LANES, ROUNDS = 6, 5
MEMORY_MIB = 4000


def on_node_a(name: str, script: str = pods.SLEEP, **spec: Any) -> Json:
    return pods.card_pod(name, MEMORY_MIB, script, nodeSelector={"kubernetes.io/hostname": "node-a"}, **spec)


def test_a_lost_checkpoint_gives_no_slice_twice(cluster: Cluster) -> None:
    node = cluster.nodes["node-a"]
    with Lifetimes() as lifetimes:
        for number in range(6):
            cluster.apply(on_node_a(f"old-{number}"))
        for number in range(6):
            lifetimes.follow(node, cluster.wait_running(f"old-{number}"))
        node.restart_kubelet(lose_checkpoint=True)
        cluster.wait_registered("node-a")
        for number in range(6):
            cluster.apply(on_node_a(f"new-{number}"))
        for number in range(6):
            lifetimes.follow(node, cluster.wait_running(f"new-{number}"))
        assert lifetimes.overlaps() == []
        assert [life.pod for life in lifetimes.lives if life.ended is not None] == []
    kept = [problem for problem in audit(cluster).problems if "default/new-" in problem]
    assert kept == []


@pytest.mark.slow
def test_thirty_force_deleted_pods_never_overlap_their_successors(cluster: Cluster) -> None:
    with Lifetimes() as lifetimes:
        for lane in range(LANES):
            cluster.apply(on_node_a(f"lane{lane}-0", STUBBORN))
        for round_number in range(ROUNDS + 1):
            for lane in range(LANES):
                pod = cluster.wait_running(f"lane{lane}-{round_number}", within_seconds=90)
                lifetimes.follow(cluster.nodes["node-a"], pod)
            if round_number < ROUNDS:
                for lane in range(LANES):
                    cluster.admin.delete("pods", "default", f"lane{lane}-{round_number}", grace_seconds=0)
                    cluster.apply(on_node_a(f"lane{lane}-{round_number + 1}", STUBBORN))
        print(f"\n{LANES * ROUNDS} pods force-deleted; slices taken over {lifetimes.reused()} times")
        assert lifetimes.overlaps() == []
        assert lifetimes.reused() >= LANES


def second_word(cluster: Cluster, pod: Json) -> dict[str, Any]:
    """Return what the container's second start told about its share."""
    lines = wait_until(
        lambda: [line for line in cluster.output(pod).splitlines() if line.endswith("}")][1:],
        what="the second start tells its share",
        within_seconds=30,
    )
    found: dict[str, Any] = json.loads(lines[0])
    return found


def test_a_restarted_container_keeps_its_share(cluster: Cluster) -> None:
    cluster.apply(on_node_a("restarting", "share; sleep 1; exit 1", restartPolicy="Always"))

    def restarted(pod: Json) -> bool:
        return any(status["restartCount"] >= 1 for status in pod["status"].get("containerStatuses", []))

    pod = cluster.wait_pod("restarting", restarted, what="restarted", within_seconds=60)
    assert_share(second_word(cluster, pod), memory_mib=MEMORY_MIB, uuids=cards_of(pod))


def came_back(pod: Json) -> bool:
    """Whether a pod runs again after a reboot, or the kubelet has given it up."""
    if pod["status"].get("phase") == "Failed":
        return True
    statuses = pod["status"].get("containerStatuses", [])
    return bool(statuses) and all(s["restartCount"] >= 1 and "running" in s["state"] for s in statuses)


def test_after_a_reboot_no_pod_has_another_share_than_before(cluster: Cluster) -> None:
    node = cluster.nodes["node-a"]
    names = [f"kept-{number}" for number in range(4)]
    for name in names:
        cluster.apply(on_node_a(name, f"share; {pods.SLEEP}", restartPolicy="Always"))
    before = {name: cluster.wait_running(name) for name in names}
    node.reboot()
    cluster.wait_registered("node-a")
    given_up = []
    for name in names:
        again = cluster.wait_pod(name, came_back, what="back after the reboot", within_seconds=90)
        if again["status"]["phase"] == "Failed":
            # The kubelet admitted it before the plugin had registered: a limit of the kubelet, final for a bare pod.
            assert again["status"]["reason"] == "UnexpectedAdmissionError"
            given_up.append(name)
            continue
        assert cards_of(again) == cards_of(before[name])
        assert_share(second_word(cluster, again), memory_mib=MEMORY_MIB, uuids=cards_of(again))
    print(f"\n{len(names) - len(given_up)} of {len(names)} pods run again with their share")
    assert audit(cluster).problems == []


def test_a_pod_that_our_scheduler_has_not_placed_gets_no_card(cluster: Cluster) -> None:
    # Whoever may create bindings can go around the scheduler, not around the node.
    with_gate = on_node_a("smuggled", schedulingGates=[{"name": "example.invalid/hold"}])
    cluster.apply(with_gate)
    scheduler = cluster.plane.process("gpuslice-scheduler")
    scheduler.signal(signal.SIGSTOP)
    try:
        cluster.admin.patch("pods", "default", "smuggled", {"spec": {"schedulingGates": None}})
        target = {"apiVersion": "v1", "kind": "Node", "name": "node-a"}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "smuggled"}, "target": target}
        cluster.admin.request("POST", path_of("pods", "default", "smuggled", "binding"), binding)
        pod = cluster.wait_phase("smuggled", "Failed", within_seconds=20)
    finally:
        scheduler.signal(signal.SIGCONT)
    assert pod["status"]["reason"] == "UnexpectedAdmissionError"
    assert "gpuslice-scheduler" in pod["status"]["message"]


HOSTILE = """
(echo 4294967295 > /var/run/gpuslice/limits) 2>/dev/null && echo 'ESCAPED: wrote the limits'
rm -f /var/run/gpuslice/limits 2>/dev/null && echo 'ESCAPED: removed the limits'
(echo > /etc/ld.so.preload) 2>/dev/null && echo 'ESCAPED: wrote ld.so.preload'
rm -f /etc/ld.so.preload 2>/dev/null && echo 'ESCAPED: removed ld.so.preload'
(echo > /usr/local/gpuslice/libvgpu.so) 2>/dev/null && echo 'ESCAPED: wrote the library'
ls /var/lib/gpuslice 2>/dev/null && echo 'ESCAPED: sees other grants'
export LD_PRELOAD= CUDA_DEVICE_MEMORY_LIMIT_0=40960m CUDA_DEVICE_MEMORY_LIMIT=40960m CUDA_DISABLE_CONTROL=true
export GPUSLICE_DIR=/tmp
share
"""


def test_a_hostile_pod_gets_nothing_more(cluster: Cluster) -> None:
    cluster.apply(on_node_a("victim", f"share; {pods.SLEEP}"))
    cluster.apply(on_node_a("hostile", HOSTILE + pods.SLEEP))
    pod = cluster.wait_running("hostile")
    found = shares(cluster, pod)
    assert "ESCAPED" not in cluster.output(pod)
    assert_share(found, memory_mib=MEMORY_MIB, uuids=cards_of(pod))
    victim = cluster.wait_running("victim")
    assert_share(shares(cluster, victim), memory_mib=MEMORY_MIB, uuids=cards_of(victim))


@pytest.mark.slow
def test_a_plugin_that_comes_back_with_fewer_slots_keeps_what_runs(cluster: Cluster) -> None:
    node = cluster.nodes["node-a"]
    config = cluster.folder / "fewer.yaml"
    config.write_text("defaults: {slotsPerCard: 2}\n")
    with Lifetimes() as lifetimes:
        for number in range(8):
            cluster.apply(on_node_a(f"many-{number}"))
        for number in range(8):
            lifetimes.follow(node, cluster.wait_running(f"many-{number}"))
        cluster.restart_plugin("node-a", f"--node-config={config}")
        try:
            node.restart_kubelet()
            cluster.wait_registered("node-a")
            assert [cluster.pod(f"many-{n}")["status"]["phase"] for n in range(8)] == ["Running"] * 8
            assert [life.pod for life in lifetimes.lives if life.ended is not None] == []
            wait_until(
                lambda: not audit(cluster).problems,
                what="the kubelet lists every running pod's slices again",
                within_seconds=15,
                explain=lambda: "\n".join(audit(cluster).problems),
            )
        finally:
            cluster.restart_plugin("node-a")
