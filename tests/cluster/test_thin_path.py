"""One GPU pod from YAML to an enforced quota, on real Kubernetes."""

import json
from typing import Any

import pytest

from tests.cluster.harness import pods
from tests.cluster.harness.api import ApiError, Json
from tests.cluster.harness.cluster import Cluster, allocation_of
from tests.cluster.harness.process import wait_until

pytestmark = pytest.mark.cluster

OUT_OF_MEMORY = 2
"""CUDA_ERROR_OUT_OF_MEMORY."""
SHARE = f"share; {pods.SLEEP}"
HOLD = "exec share hold"
CARD_MIB = 40960
MOST_MIB = 30000
"""More than half of a card, so that a card holds one such share."""
OVERHEAD_MIB = 1024
"""Largest part of a quota that a CUDA context itself may take."""


def shares(cluster: Cluster, pod: Json, container: str = "main") -> dict[str, Any]:
    """Return the line that the program in a container printed about its cards."""

    def printed() -> dict[str, Any] | None:
        lines = [line for line in cluster.output(pod, container).splitlines() if line.endswith("}")]
        return json.loads(lines[0]) if lines else None

    found = wait_until(
        printed,
        what=f"{pod['metadata']['name']}/{container} tells its share",
        within_seconds=20,
        explain=lambda: cluster.output(pod, container)[-2000:],
    )
    assert found is not None
    return found


def assert_share(found: dict[str, Any], *, memory_mib: int, uuids: list[str]) -> None:
    """Check that a container sees exactly its cards and its memory, and is refused above."""
    assert found["nvml_cards"] == len(uuids)
    assert [card["uuid"] for card in found["cards"]] == uuids
    for card in found["cards"]:
        assert card["cuda_total_mib"] == memory_mib
        assert card["nvml_total_mib"] == memory_mib
        assert memory_mib - OVERHEAD_MIB < card["granted_mib"] <= memory_mib
        assert card["refusal"] == OUT_OF_MEMORY


def cards_of(pod: Json, container: str = "main") -> list[str]:
    """Return the UUIDs that the scheduler chose for a container."""
    return [share["slice"].split("::")[0] for share in allocation_of(pod)[container]]


def test_a_pod_gets_its_share_and_not_a_byte_more(cluster: Cluster) -> None:
    cluster.apply(pods.card_pod("one", 3000, SHARE))
    pod = cluster.wait_running("one")
    assert_share(shares(cluster, pod), memory_mib=3000, uuids=cards_of(pod))


def test_two_pods_on_one_card_have_shares_of_their_own(cluster: Cluster) -> None:
    target = {"nvidia.com/use-gpuuuid": cluster.cards["node-a"].uuids[0]}
    for name, memory_mib in (("left", 3000), ("right", 5000)):
        cluster.apply(pods.card_pod(name, memory_mib, HOLD, annotations=target))
    for name, memory_mib in (("left", 3000), ("right", 5000)):
        pod = cluster.wait_running(name)
        assert cards_of(pod) == [cluster.cards["node-a"].uuids[0]]
        assert_share(shares(cluster, pod), memory_mib=memory_mib, uuids=cards_of(pod))


def test_two_containers_of_a_pod_have_different_shares(cluster: Cluster) -> None:
    small = pods.container("small", SHARE, cards=1, memory_mib=2000)
    large = pods.container("large", SHARE, cards=1, memory_mib=6000)
    plain = pods.container("plain", f"env; {pods.SLEEP}")
    cluster.apply(pods.pod("pair", small, large, plain))
    pod = cluster.wait_running("pair")
    assert_share(shares(cluster, pod, "small"), memory_mib=2000, uuids=cards_of(pod, "small"))
    assert_share(shares(cluster, pod, "large"), memory_mib=6000, uuids=cards_of(pod, "large"))
    assert "plain" not in allocation_of(pod)


def test_a_pod_with_two_cards_sees_both_in_the_schedulers_order(cluster: Cluster) -> None:
    cluster.apply(pods.pod("wide", pods.container("main", SHARE, cards=2, memory_mib=4000)))
    pod = cluster.wait_running("wide")
    assert len(set(cards_of(pod))) == 2
    assert_share(shares(cluster, pod), memory_mib=4000, uuids=cards_of(pod))


def test_deletion_frees_the_share(cluster: Cluster) -> None:
    for number in range(4):
        cluster.apply(pods.card_pod(f"whole-{number}", MOST_MIB))
    for number in range(4):
        cluster.wait_running(f"whole-{number}")
    cluster.apply(pods.card_pod("waiting", MOST_MIB, SHARE))
    cluster.wait_pod("waiting", is_refused, what="refused for lack of a card")
    cluster.admin.delete("pods", "default", "whole-2")
    pod = cluster.wait_running("waiting")
    assert_share(shares(cluster, pod), memory_mib=MOST_MIB, uuids=cards_of(pod))


def is_refused(pod: Json) -> bool:
    """Whether the scheduler has said that a pod fits nowhere."""
    conditions = pod["status"].get("conditions", [])
    return any(c["type"] == "PodScheduled" and c.get("reason") == "Unschedulable" for c in conditions)


def test_a_pod_that_names_our_annotations_is_refused_by_key(cluster: Cluster) -> None:
    with pytest.raises(ApiError, match=r"gpuslice\.io/allocation"):
        cluster.apply(pods.card_pod("forged", 1000, annotations={"gpuslice.io/allocation": "{}"}))


def test_pods_without_cards_run_while_the_webhook_is_down(cluster: Cluster) -> None:
    cluster.webhook.kill()
    try:
        cluster.apply(pods.pod("plain"))
        pod = cluster.wait_running("plain")
        assert pod["spec"]["schedulerName"] == "default-scheduler"
        with pytest.raises(ApiError, match="failed calling webhook"):
            cluster.apply(pods.card_pod("gpu", 1000))
    finally:
        cluster.webhook.start()
        cluster.webhook.wait_ready()


@pytest.mark.parametrize("daemon", ["webhook", "extender", "plugin"])
def test_a_killed_daemon_comes_back_and_no_share_is_lost(cluster: Cluster, daemon: str) -> None:
    target = {"nvidia.com/use-gpuuuid": cluster.cards["node-a"].uuids[0]}
    cluster.apply(pods.card_pod("before", CARD_MIB // 2, annotations=target))
    cluster.wait_running("before")
    restart_daemon(cluster, daemon)
    cluster.apply(pods.card_pod("after", CARD_MIB // 2, annotations=target))
    cluster.wait_running("after")
    cluster.apply(pods.card_pod("too-many", CARD_MIB // 2, annotations=target))
    cluster.wait_pod("too-many", is_refused, what="refused, since both halves are taken")
    assert cluster.pod("before")["status"]["phase"] == "Running"


def restart_daemon(cluster: Cluster, daemon: str) -> None:
    """Kill one of the daemons and start it again."""
    if daemon == "plugin":
        cluster.plugins["node-a"].kill()
        cluster.start_plugin("node-a").wait_ready()
        cluster.wait_slices("node-a")
    else:
        getattr(cluster, daemon).restart()
