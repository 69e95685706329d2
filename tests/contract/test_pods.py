"""Pods: what the server makes of them, binding, eviction, deletion with grace."""

from typing import Any

import pytest

from tests.contract.client import JSON_PATCH, MERGE, STRATEGIC, Client
from tests.contract.manifests import binding, eviction, limited, node, pod


def pods(ns: str) -> str:
    return f"/api/v1/namespaces/{ns}/pods"


def bound(api: Client, ns: str, name: str, **meta: Any) -> str:
    """Create a pod on node NAMESPACE; returns its path."""
    api.post(pods(ns), pod(name, **meta))
    assert api.post(f"{pods(ns)}/{name}/binding", binding(name, ns)).code == 201
    return f"{pods(ns)}/{name}"


def running(api: Client, ns: str, name: str, **meta: Any) -> str:
    path = bound(api, ns, name, **meta)
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    assert api.patch(f"{path}/status", {"status": status}).code == 200
    return path


def test_a_new_pod_has_its_defaults(api: Client, ns: str) -> None:
    spec = api.post(pods(ns), pod("a")).body["spec"]
    container = spec["containers"][0]
    assert container["imagePullPolicy"] == "IfNotPresent"
    assert container["terminationMessagePath"] == "/dev/termination-log"
    assert container["resources"] == {}
    kept = ("restartPolicy", "terminationGracePeriodSeconds", "dnsPolicy", "serviceAccountName", "serviceAccount",
            "securityContext", "schedulerName", "priority", "enableServiceLinks", "preemptionPolicy")  # fmt: skip
    assert {key: spec[key] for key in kept} == {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "serviceAccount": "default",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    }
    assert [item["key"] for item in spec["tolerations"]] == [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ]


def test_a_new_pods_metadata_is_the_servers(api: Client, ns: str) -> None:
    sent = pod("a") | {"status": {"phase": "Running"}}
    sent["metadata"] |= {"uid": "mine", "creationTimestamp": "2001-01-01T00:00:00Z", "generation": 9}
    answer = api.post(pods(ns), sent)
    assert (answer.code, answer.meta["generation"], answer.body["status"]["phase"]) == (201, 1, "Pending")
    assert answer.meta["uid"] != "mine"
    assert not answer.meta["creationTimestamp"].startswith("2001")


CANONICAL = [
    pytest.param("3000", "3k", id="a round number gets a suffix"),
    pytest.param(3001, "3001", id="an odd number stays"),
    pytest.param("1500m", "1500m", id="milli that are no whole stay milli"),
    pytest.param("2000m", "2", id="whole milli become a number"),
    pytest.param("2048Mi", "2Gi", id="binary climbs"),
    pytest.param("1500Ki", "1500Ki", id="binary that is no whole stays"),
    pytest.param("0.5", "500m", id="a fraction becomes milli"),
    pytest.param("8e1", "80", id="a small exponent is written out"),
    pytest.param("1E3", "1E3", id="an exponent stays one"),
    pytest.param("1024", "1024", id="a decimal never becomes binary"),
    pytest.param("0", "0", id="zero"),
    pytest.param("0Mi", "0", id="zero binary"),
]


@pytest.mark.parametrize(("written", "stored"), CANONICAL)
def test_quantities_are_stored_canonically(api: Client, ns: str, written: object, stored: str) -> None:
    answer = api.post(pods(ns), limited("a", {"memory": written}))
    resources = answer.body["spec"]["containers"][0]["resources"]
    assert resources == {"limits": {"memory": stored}, "requests": {"memory": stored}}


QOS = [
    pytest.param({}, {}, "BestEffort", id="nothing asked"),
    pytest.param({"nvidia.com/gpu": "1"}, {}, "BestEffort", id="cards alone do not count"),
    pytest.param({"cpu": "1", "memory": "1Gi"}, {}, "Guaranteed", id="limits of both"),
    pytest.param({"cpu": "1"}, {}, "Burstable", id="limit of one"),
    pytest.param({"cpu": "1", "memory": "1Gi"}, {"cpu": "500m"}, "Burstable", id="request below limit"),
]


@pytest.mark.parametrize(("limits", "requests", "expected"), QOS)
def test_quality_of_service(api: Client, ns: str, limits: Any, requests: Any, expected: str) -> None:
    assert api.post(pods(ns), limited("a", limits, requests)).body["status"]["qosClass"] == expected


def test_a_binding_sets_the_node_and_merges_annotations_in_one_write(api: Client, ns: str) -> None:
    before = api.post(pods(ns), pod("a", annotations={"keep": "1", "over": "old"}))
    said = api.post(f"{pods(ns)}/a/binding", binding("a", ns, annotations={"over": "new", "add": "2"}))
    after = api.get(f"{pods(ns)}/a")
    assert (said.code, said.body["kind"], said.body["status"]) == (201, "Status", "Success")
    assert after.body["spec"]["nodeName"] == ns
    assert after.meta["annotations"] == {"keep": "1", "over": "new", "add": "2"}
    assert [c["type"] for c in after.body["status"]["conditions"]] == ["PodScheduled"]
    with api.watch(f"{pods(ns)}?watch=1&timeoutSeconds=5&resourceVersion={before.meta['resourceVersion']}") as events:
        assert next(events)["object"]["metadata"]["resourceVersion"] == after.meta["resourceVersion"]


def test_a_binding_ignores_labels_and_unknown_nodes(api: Client, ns: str) -> None:
    api.post(pods(ns), pod("a"))
    assert api.post(f"{pods(ns)}/a/binding", binding("a", "no-such-node", labels={"l": "1"})).code == 201
    assert "labels" not in api.get(f"{pods(ns)}/a").meta


def test_a_binding_of_the_pods_own_uid_passes(api: Client, ns: str) -> None:
    uid = api.post(pods(ns), pod("a")).meta["uid"]
    assert api.post(f"{pods(ns)}/a/binding", binding("a", ns, uid=uid)).code == 201


def test_the_bindings_collection_binds_too(api: Client, ns: str) -> None:
    api.post(pods(ns), pod("a"))
    assert api.post(f"/api/v1/namespaces/{ns}/bindings", binding("a", ns)).code == 201
    assert api.get(f"{pods(ns)}/a").body["spec"]["nodeName"] == ns


def test_one_patch_lifts_the_gate_and_steers(api: Client, ns: str) -> None:
    api.post(pods(ns), pod("a", schedulingGates=[{"name": "example.com/g"}]))
    patch = {"spec": {"schedulingGates": [], "nodeSelector": {"a": "b"}}, "metadata": {"annotations": {"x": "y"}}}
    answer = api.patch(f"{pods(ns)}/a", patch)
    assert (answer.code, answer.body["spec"]["nodeSelector"], answer.meta["generation"]) == (200, {"a": "b"}, 2)
    assert "schedulingGates" not in answer.body["spec"]


def test_a_status_write_leaves_the_spec_and_takes_annotations(api: Client, ns: str) -> None:
    api.post(pods(ns), pod("a"))
    patch = {"metadata": {"annotations": {"s": "1"}}, "status": {"phase": "Running"}, "spec": {"nodeName": "x"}}
    answer = api.patch(f"{pods(ns)}/a/status", patch)
    assert (answer.body["status"]["phase"], answer.meta["annotations"]) == ("Running", {"s": "1"})
    assert "nodeName" not in answer.body["spec"]


def test_a_spec_write_leaves_the_status(api: Client, ns: str) -> None:
    api.post(pods(ns), pod("a"))
    assert api.patch(f"{pods(ns)}/a", {"status": {"phase": "Running"}}).body["status"]["phase"] == "Pending"


def test_conditions_merge_by_type_and_new_ones_come_first(api: Client, ns: str) -> None:
    api.post(pods(ns), pod("a"))
    for type_ in ("Ready", "PodScheduled", "Ready"):
        patch = {"status": {"conditions": [{"type": type_, "status": "True"}]}}
        answer = api.patch(f"{pods(ns)}/a/status", patch, STRATEGIC)
    assert [c["type"] for c in answer.body["status"]["conditions"]] == ["PodScheduled", "Ready"]


def test_default_tolerations_come_back_when_patched_away(api: Client, ns: str) -> None:
    api.post(pods(ns), pod("a"))
    answer = api.patch(f"{pods(ns)}/a", {"spec": {"tolerations": [{"key": "a", "operator": "Exists"}]}})
    assert [item["key"] for item in answer.body["spec"]["tolerations"]] == [
        "a",
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ]


def test_a_json_patch_replace_creates_a_missing_label(api: Client, ns: str) -> None:
    api.post(pods(ns), pod("a", labels={"x": "y"}))
    patch = [{"op": "replace", "path": "/metadata/labels/q", "value": "a"}]
    assert api.patch(f"{pods(ns)}/a", patch, JSON_PATCH).meta["labels"] == {"x": "y", "q": "a"}


def test_a_pod_without_a_node_goes_at_once(api: Client, ns: str) -> None:
    api.post(pods(ns), pod("a"))
    answer = api.delete(f"{pods(ns)}/a")
    assert (answer.body["kind"], answer.meta["deletionGracePeriodSeconds"]) == ("Pod", 0)
    assert api.get(f"{pods(ns)}/a").code == 404


def test_a_pod_on_a_node_waits_for_its_kubelet(api: Client, ns: str) -> None:
    path = bound(api, ns, "a")
    asked = [None, {"gracePeriodSeconds": 5}, {"gracePeriodSeconds": 50}]
    graces = [api.delete(path, body).meta["deletionGracePeriodSeconds"] for body in asked]
    assert graces == [30, 5, 5]
    assert "deletionTimestamp" in api.get(path).meta
    assert api.delete(path, {"gracePeriodSeconds": 0}).code == 200
    assert api.get(path).code == 404


def test_a_finished_pod_goes_at_once(api: Client, ns: str) -> None:
    path = bound(api, ns, "a")
    api.patch(f"{path}/status", {"status": {"phase": "Succeeded"}})
    api.delete(path)
    assert api.get(path).code == 404


def test_a_namesake_has_another_uid(api: Client, ns: str) -> None:
    first = api.post(pods(ns), pod("a")).meta["uid"]
    api.delete(f"{pods(ns)}/a")
    assert api.post(pods(ns), pod("a")).meta["uid"] != first


def test_an_eviction_begins_the_deletion_and_says_so(api: Client, ns: str) -> None:
    path = bound(api, ns, "a")
    answer = api.post(f"{path}/eviction", eviction("a"))
    after = api.get(path)
    assert (answer.code, answer.body["status"]) == (201, "Success")
    assert after.meta["deletionGracePeriodSeconds"] == 30
    assert [c["reason"] for c in after.body["status"]["conditions"] if c["type"] == "DisruptionTarget"] == [
        "EvictionByEvictionAPI"
    ]


def test_a_disruption_budget_holds_evictions_up(api: Client, ns: str) -> None:
    budgets = f"/apis/policy/v1/namespaces/{ns}/poddisruptionbudgets"
    api.post(
        budgets, {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}}
    )
    path = running(api, ns, "a", labels={"app": "a"})
    processing = api.post(f"{path}/eviction", eviction("a"))
    counts = {"observedGeneration": 1, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}
    api.patch(f"{budgets}/b/status", {"status": counts | {"disruptionsAllowed": 0}})
    held = api.post(f"{path}/eviction", eviction("a"))
    api.patch(f"{budgets}/b/status", {"status": {"disruptionsAllowed": 1}})
    let_go = api.post(f"{path}/eviction", eviction("a"))
    assert [answer.code for answer in (processing, held, let_go)] == [429, 429, 201]
    assert held.refusal[1:] == ("TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.")
    assert (
        held.body["details"]["causes"][0]["message"]
        == "The disruption budget b needs 1 healthy pods and has 1 currently"
    )
    after = api.get(f"{budgets}/b").body["status"]
    assert (after["disruptionsAllowed"], list(after["disruptedPods"])) == (0, ["a"])


def test_pods_are_found_by_their_node(api: Client, ns: str) -> None:
    bound(api, ns, "here")
    api.post(pods(ns), pod("nowhere"))
    found = api.get(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{ns}").body["items"]
    assert [item["metadata"]["name"] for item in found] == ["here"]


def test_a_node_serves_its_capacity_canonically(api: Client, ns: str) -> None:
    made = api.post("/api/v1/nodes", node(ns)).body["status"]
    assert made["capacity"] == made["allocatable"] == {"cpu": "8", "nvidia.com/gpu": "80"}
    patch = {"status": {"allocatable": {"nvidia.com/gpu": "70"}}}
    kept = api.patch(f"/api/v1/nodes/{ns}", patch).body["status"]["allocatable"]["nvidia.com/gpu"]
    changed = api.patch(f"/api/v1/nodes/{ns}/status", patch, MERGE).body["status"]["allocatable"]["nvidia.com/gpu"]
    assert (kept, changed) == ("80", "70")


def test_priority_comes_from_the_class(api: Client, ns: str) -> None:
    api.post(
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        {"metadata": {"name": ns}, "value": 7, "preemptionPolicy": "Never"},
    )
    spec = api.post(pods(ns), pod("a", priorityClassName=ns)).body["spec"]
    assert (spec["priority"], spec["preemptionPolicy"]) == (7, "Never")


def test_an_ephemeral_container_is_added_and_nothing_else_changes(api: Client, ns: str) -> None:
    api.post(pods(ns), pod("a"))
    path = f"{pods(ns)}/a/ephemeralcontainers"
    added = {"spec": {"ephemeralContainers": [{"name": "d", "image": "y:1"}], "nodeName": "n"}}
    answer = api.patch(path, added | {"metadata": {"annotations": {"q": "r"}}}, STRATEGIC)
    assert [item["name"] for item in answer.body["spec"]["ephemeralContainers"]] == ["d"]
    assert ("nodeName" in answer.body["spec"], "annotations" in answer.meta) == (False, False)
    changed = api.patch(path, {"spec": {"ephemeralContainers": [{"name": "d", "image": "z:1"}]}}, STRATEGIC)
    assert changed.refusal[:2] == (422, "Invalid")
    plain = api.patch(f"{pods(ns)}/a", {"spec": {"ephemeralContainers": [{"name": "e", "image": "y:1"}]}}, STRATEGIC)
    assert plain.refusal[:2] == (422, "Invalid")


def test_a_resize_changes_cpu_and_no_annotation(api: Client, ns: str) -> None:
    api.post(pods(ns), limited("a", {"cpu": "2"}, {"cpu": "1"}))
    api.post(f"{pods(ns)}/a/binding", binding("a", ns))
    smaller = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "500m"}}}]}}
    answer = api.patch(f"{pods(ns)}/a/resize", smaller | {"metadata": {"annotations": {"q": "r"}}}, STRATEGIC)
    resources = answer.body["spec"]["containers"][0]["resources"]
    assert (resources["requests"], "annotations" in answer.meta) == ({"cpu": "500m"}, False)


def test_a_resize_keeps_the_quality_of_service(api: Client, ns: str) -> None:
    api.post(pods(ns), pod("a"))
    limits = {"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}}}]}}
    answer = api.patch(f"{pods(ns)}/a/resize", limits, STRATEGIC)
    assert answer.refusal[:2] == (422, "Invalid")
    assert "Pod QOS Class may not change as a result of resizing" in answer.refusal[2]


def test_a_namespaces_finalizers_change_only_through_finalize(api: Client, ns: str) -> None:
    path = f"/api/v1/namespaces/{ns}"
    wanted = {"metadata": {"name": ns}, "spec": {"finalizers": ["kubernetes", "example.com/f"]}}
    assert api.put(f"{path}/finalize", wanted).body["spec"]["finalizers"] == ["kubernetes", "example.com/f"]
    kept = api.patch(path, {"spec": {"finalizers": []}, "metadata": {"labels": {"a": "b"}}})
    assert (kept.body["spec"]["finalizers"], kept.meta["labels"]["a"]) == (["kubernetes", "example.com/f"], "b")
