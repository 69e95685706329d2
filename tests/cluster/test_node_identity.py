"""Every container on the real kubelet gets exactly what the scheduler chose for it, whatever restarts meanwhile."""

import re
import threading
from collections import Counter
from collections.abc import Callable

import grpc
import pytest

from tests.cluster.harness import pods
from tests.cluster.harness.api import Json
from tests.cluster.harness.auditor import audit, pod_resources
from tests.cluster.harness.cluster import Cluster, is_running
from tests.cluster.harness.daemons import Daemon
from tests.cluster.harness.process import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

WAVES, WAVE = 10, 20
BURST = 24
WAVE_SECONDS = 120.0


def mixed(name: str, number: int) -> Json:
    """Return a pod of one or two containers; the sizes repeat, so that many pods look alike to the kubelet."""
    sizes = (1000, 2000, 1000, 3000)
    main = pods.container("main", pods.SLEEP, cards=1, memory_mib=sizes[number % 4])
    if number % 3 == 2:
        return pods.pod(name, main, pods.container("side", pods.SLEEP, cards=1, memory_mib=1000))
    return pods.pod(name, main)


def create_wave(cluster: Cluster, prefix: str, count: int) -> None:
    for number in range(count):
        cluster.apply(mixed(f"{prefix}-{number:02d}", number))


def settled(pod: Json) -> bool:
    return is_running(pod) or pod["status"].get("phase") == "Failed"


def wait_settled(cluster: Cluster, prefix: str, count: int) -> list[Json]:
    """Wait until every pod of a wave runs or has failed, and return those that failed."""

    def found() -> list[Json]:
        wave = [pod for pod in cluster.admin.list("pods", "default") if pod["metadata"]["name"].startswith(prefix)]
        return wave if len(wave) == count and all(map(settled, wave)) else []

    wave = wait_until(
        found,
        what=f"{count} pods of {prefix} settled",
        within_seconds=WAVE_SECONDS,
        explain=lambda: "\n".join(
            cluster.describe(pod["metadata"]["name"])
            for pod in cluster.admin.list("pods", "default")
            if pod["metadata"]["name"].startswith(prefix) and not settled(pod)
        )[:6000],
    )
    return [pod for pod in wave if not is_running(pod)]


def identity_layers(cluster: Cluster) -> str:
    """Return how often each layer of identity decided, over both nodes."""
    counted: Counter[str] = Counter()
    for plugin in cluster.plugins.values():
        for line in plugin.fetch("metrics")[1].splitlines():
            for metric in ("identity", "steered", "delivered", "guarded"):
                if line.startswith(f"gpuslice_plugin_{metric}_total{{"):
                    sample, _, value = line.rpartition(" ")
                    labels = re.findall(r'(?:layer|outcome)="([^"]*)"', sample)
                    counted[f"{metric} {' '.join(labels)}"] += int(float(value))
    return ", ".join(f"{name}: {count}" for name, count in sorted(counted.items()))


def restart_kubelet(cluster: Cluster) -> None:
    cluster.nodes["node-a"].restart_kubelet()
    cluster.wait_registered("node-a")


def kill_plugin(cluster: Cluster) -> None:
    cluster.plugins["node-b"].kill()
    cluster.start_plugin("node-b").wait_ready()


@pytest.mark.slow
def test_two_hundred_pods_with_a_kubelet_restart_and_a_plugin_kill(cluster: Cluster) -> None:
    disturbances: dict[int, Callable[[Cluster], None]] = {3: restart_kubelet, 6: kill_plugin}
    failed: list[str] = []
    audited = 0
    for wave in range(WAVES):
        create_wave(cluster, f"wave{wave}", WAVE)
        if disturb := disturbances.get(wave):
            disturb(cluster)
        failed += [pod["status"].get("message", "") for pod in wait_settled(cluster, f"wave{wave}", WAVE)]
        found = audit(cluster)
        audited += len(found.witnesses)
        assert found.problems == []
        cluster.delete_all_pods()
    print(f"\n{WAVES * WAVE} pods, {audited} containers audited, 0 wrong; {identity_layers(cluster)}")
    print(f"pods that the kubelet refused while its plugin was away: {len(failed)} {set(failed)}")
    assert len(failed) <= WAVE


@pytest.mark.slow
def test_a_client_that_hammers_pod_resources_causes_no_double_allocation(cluster: Cluster) -> None:
    stopping = threading.Event()
    calls = Counter[str]()

    def hammer() -> None:
        while not stopping.wait(0.005):
            for node in cluster.nodes.values():
                try:
                    pod_resources(node)
                    calls["answered"] += 1
                except grpc.RpcError:
                    calls["refused"] += 1

    client = threading.Thread(target=hammer, name="hammer")
    client.start()
    try:
        create_wave(cluster, "burst", BURST)
        for number in range(0, BURST, 2):
            cluster.admin.delete("pods", "default", f"burst-{number:02d}", grace_seconds=1)
            cluster.apply(mixed(f"again-{number:02d}", number))
        assert wait_settled(cluster, "again", BURST // 2) == []
    finally:
        stopping.set()
        client.join()
    wait_until(
        lambda: all(not pod["metadata"].get("deletionTimestamp") for pod in cluster.admin.list("pods", "default")),
        what="deleted pods gone",
        within_seconds=30,
    )
    found = audit(cluster)
    print(f"\n{calls['answered']} lists answered, {calls['refused']} refused; {found.summary()}")
    assert found.problems == []
    assert calls["answered"] > 50


def test_replacing_the_plugin_under_churn_fails_no_pod(cluster: Cluster) -> None:
    old = cluster.plugins["node-a"]
    new = Daemon(
        "deviceplugin",
        cluster.plugin_flags("node-a"),
        folder=cluster.folder / "daemons",
        name="deviceplugin-node-a-new",
        environment=cluster.cards["node-a"].host_environment,
    )
    create_wave(cluster, "before", 6)
    new.start()
    new.wait_ready()
    create_wave(cluster, "during", 6)
    took = old.stop()
    cluster.plugins["node-a"] = new
    create_wave(cluster, "after", 6)
    failed = [pod for prefix in ("before", "during", "after") for pod in wait_settled(cluster, prefix, 6)]
    assert [pod["status"].get("message") for pod in failed] == []
    assert audit(cluster).problems == []
    assert took <= 2.0
