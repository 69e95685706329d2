"""Pods deleted by force and replaced at once, again and again; and pods that try to get more by force."""

from typing import Any

import pytest

from tests.cluster.harness import pods
from tests.cluster.harness.api import Json
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.lifetimes import Lifetimes
from tests.cluster.test_thin_path import assert_share, cards_of, shares

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

STUBBORN = "trap '' TERM; while :; do sleep 1; done"
"""Does not end before it is killed."""
LANES, ROUNDS = 6, 5
MEMORY_MIB = 4000


def on_node_a(name: str, script: str = pods.SLEEP, **spec: Any) -> Json:
    return pods.card_pod(name, MEMORY_MIB, script, nodeSelector={"kubernetes.io/hostname": "node-a"}, **spec)


@pytest.mark.slow
def test_thirty_force_deleted_pods_never_overlap_their_successors(cluster: Cluster) -> None:
    with Lifetimes() as lifetimes:
        for lane in range(LANES):
            cluster.apply(on_node_a(f"lane{lane}-0", STUBBORN))
        for round_number in range(ROUNDS + 1):
            for lane in range(LANES):
                pod = cluster.wait_running(f"lane{lane}-{round_number}", within_seconds=90)
                lifetimes.follow(pod, cluster.nodes["node-a"].container_processes(pod, "main")[0])
            if round_number < ROUNDS:
                for lane in range(LANES):
                    cluster.admin.delete("pods", "default", f"lane{lane}-{round_number}", grace_seconds=0)
                    cluster.apply(on_node_a(f"lane{lane}-{round_number + 1}", STUBBORN))
        print(f"\n{LANES * ROUNDS} pods force-deleted; slices taken over {lifetimes.reused()} times")
        assert lifetimes.overlaps() == []
        assert lifetimes.reused() >= LANES


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
