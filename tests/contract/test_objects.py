"""Any object: versions, patches, server-side apply, lists and their pages, deletion with finalizers."""

from typing import Any

import pytest

from tests.contract.client import APPLY, JSON_PATCH, MERGE, STRATEGIC, Client
from tests.contract.manifests import config_map, deployment, pod

LEASES = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases"
DEPLOYMENTS = "/apis/apps/v1/namespaces/{ns}/deployments"


def maps(ns: str) -> str:
    return f"/api/v1/namespaces/{ns}/configmaps"


def names(answer: Any) -> list[str]:
    return [item["metadata"]["name"] for item in answer.body["items"]]


def version(answer: Any) -> int:
    return int(answer.meta["resourceVersion"])


def test_versions_rise_with_every_write_and_lists_show_the_latest(api: Client, ns: str) -> None:
    made = version(api.post(maps(ns), config_map("a")))
    changed = version(api.patch(f"{maps(ns)}/a", {"data": {"b": "2"}}))
    assert made < changed <= version(api.get(maps(ns)))


def test_a_write_that_changes_nothing_keeps_the_version(api: Client, ns: str) -> None:
    made = version(api.post(maps(ns), config_map("a")))
    assert version(api.patch(f"{maps(ns)}/a", {"data": {"a": "1"}})) == made


def test_a_stale_put_is_a_conflict_and_a_fresh_one_passes(api: Client, ns: str) -> None:
    read = api.post(maps(ns), config_map("a")).body
    api.patch(f"{maps(ns)}/a", {"data": {"z": "1"}})
    assert api.put(f"{maps(ns)}/a", read).refusal[:2] == (409, "Conflict")
    assert api.put(f"{maps(ns)}/a", api.get(f"{maps(ns)}/a").body | {"data": {"n": "1"}}).body["data"] == {"n": "1"}


def test_a_put_without_a_version_overwrites(api: Client, ns: str) -> None:
    api.post(maps(ns), config_map("a"))
    assert api.put(f"{maps(ns)}/a", config_map("a", {"n": "1"})).body["data"] == {"n": "1"}


def test_a_put_creates_a_missing_lease_but_no_config_map(api: Client, ns: str) -> None:
    lease = {"metadata": {"name": "a"}, "spec": {"holderIdentity": "me"}}
    assert api.put(LEASES.format(ns=ns) + "/a", lease).code == 201
    assert api.put(f"{maps(ns)}/a", config_map("a")).code == 404


def test_of_two_that_take_a_lease_one_wins(api: Client, ns: str) -> None:
    path = LEASES.format(ns=ns)
    free = api.post(path, {"metadata": {"name": "a"}, "spec": {"holderIdentity": ""}}).body
    codes = [api.put(f"{path}/a", free | {"spec": {"holderIdentity": who}}).code for who in ("one", "two")]
    assert codes == [200, 409]
    assert api.get(f"{path}/a").body["spec"]["holderIdentity"] == "one"


def test_generated_names_have_five_letters(api: Client, ns: str) -> None:
    meta = api.post(maps(ns), {"metadata": {"generateName": "g-"}}).meta
    assert (meta["name"][:2], len(meta["name"]), meta["generateName"]) == ("g-", 7, "g-")


def test_a_dry_run_answers_and_stores_nothing(api: Client, ns: str) -> None:
    assert api.post(f"{maps(ns)}?dryRun=All", config_map("a")).code == 201
    assert api.get(f"{maps(ns)}/a").code == 404
    api.post(maps(ns), config_map("a"))
    assert api.delete(f"{maps(ns)}/a?dryRun=All").code == 200
    assert api.patch(f"{maps(ns)}/a?dryRun=All", {"data": {"a": "2"}}).body["data"] == {"a": "2"}
    assert api.get(f"{maps(ns)}/a").body["data"] == {"a": "1"}


PATCHES = [
    pytest.param(MERGE, {"data": {"a": None, "b": "2"}}, {"b": "2", "c": "3"}, id="merge: null deletes"),
    pytest.param(STRATEGIC, {"data": {"a": None, "b": "2"}}, {"b": "2", "c": "3"}, id="strategic: null deletes"),
    pytest.param(STRATEGIC, {"data": {"$patch": "replace", "b": "2"}}, {"b": "2"}, id="strategic: replace directive"),
    pytest.param(
        JSON_PATCH,
        [{"op": "test", "path": "/data/a", "value": "1"}, {"op": "remove", "path": "/data/a"}],
        {"c": "3"},
        id="json: test and remove",
    ),
    pytest.param(
        JSON_PATCH, [{"op": "move", "from": "/data/a", "path": "/data/d"}], {"c": "3", "d": "1"}, id="json: move"
    ),
    pytest.param(
        JSON_PATCH,
        [{"op": "copy", "from": "/data/a", "path": "/data/d"}],
        {"a": "1", "c": "3", "d": "1"},
        id="json: copy",
    ),
]


@pytest.mark.parametrize(("kind", "patch", "expected"), PATCHES)
def test_patch(api: Client, ns: str, kind: str, patch: Any, expected: dict[str, str]) -> None:
    api.post(maps(ns), config_map("a", {"a": "1", "c": "3"}))
    assert api.patch(f"{maps(ns)}/a", patch, kind).body["data"] == expected


def test_a_strategic_patch_merges_containers_by_name(api: Client, ns: str) -> None:
    path = DEPLOYMENTS.format(ns=ns)
    api.post(path, deployment("a"))
    containers = [{"name": "c", "env": [{"name": "A", "value": "1"}]}, {"name": "z", "image": "q:1"}]
    answer = api.patch(f"{path}/a", {"spec": {"template": {"spec": {"containers": containers}}}}, STRATEGIC)
    found = answer.body["spec"]["template"]["spec"]["containers"]
    assert [(item["name"], item["image"]) for item in found] == [("c", "x:1"), ("z", "q:1")]
    assert answer.meta["generation"] == 2


def test_a_merge_patch_replaces_lists(api: Client, ns: str) -> None:
    path = DEPLOYMENTS.format(ns=ns)
    api.post(path, deployment("a"))
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "z", "image": "q:1"}]}}}}
    found = api.patch(f"{path}/a", patch).body["spec"]["template"]["spec"]["containers"]
    assert [item["name"] for item in found] == ["z"]


def test_scale_reads_and_writes_replicas(api: Client, ns: str) -> None:
    path = DEPLOYMENTS.format(ns=ns)
    api.post(path, deployment("a"))
    read = api.get(f"{path}/a/scale")
    assert (read.body["kind"], read.body["apiVersion"], read.body["spec"]) == (
        "Scale",
        "autoscaling/v1",
        {"replicas": 1},
    )
    assert api.patch(f"{path}/a/scale", {"spec": {"replicas": 3}}).body["spec"] == {"replicas": 3}
    after = api.get(f"{path}/a")
    assert (after.body["spec"]["replicas"], after.meta["generation"]) == (3, 2)


def test_a_selector_never_changes(api: Client, ns: str) -> None:
    path = DEPLOYMENTS.format(ns=ns)
    api.post(path, deployment("a"))
    answer = api.patch(f"{path}/a", {"spec": {"selector": {"matchLabels": {"q": "r"}}}})
    assert answer.refusal[:2] == (422, "Invalid")
    assert "field is immutable" in answer.refusal[2]


def applied(api: Client, ns: str, manager: str, data: Any, query: str = "") -> Any:
    return api.patch(f"{maps(ns)}/a?fieldManager={manager}{query}", config_map("a", data), APPLY)


def test_apply_creates_updates_and_drops_what_it_no_longer_says(api: Client, ns: str) -> None:
    made = applied(api, ns, "one", {"a": "1", "b": "1"})
    after = applied(api, ns, "one", {"a": "2"})
    assert (made.code, after.code, after.body["data"]) == (201, 200, {"a": "2"})
    assert [(e["manager"], e["operation"]) for e in after.meta["managedFields"]] == [("one", "Apply")]


def test_apply_reports_conflicts_and_force_takes_over(api: Client, ns: str) -> None:
    applied(api, ns, "one", {"a": "1"})
    refused = applied(api, ns, "two", {"a": "2"})
    assert refused.refusal == (409, "Conflict", 'Apply failed with 1 conflict: conflict with "one": .data.a')
    assert applied(api, ns, "two", {"a": "2"}, "&force=true").body["data"] == {"a": "2"}
    assert applied(api, ns, "one", {"b": "1"}).body["data"] == {"a": "2", "b": "1"}


def test_apply_of_the_same_value_shares_the_field(api: Client, ns: str) -> None:
    applied(api, ns, "one", {"a": "1"})
    assert applied(api, ns, "two", {"a": "1"}).code == 200
    assert applied(api, ns, "one", {"b": "1"}).body["data"] == {"a": "1", "b": "1"}


def test_apply_twice_changes_nothing(api: Client, ns: str) -> None:
    assert version(applied(api, ns, "one", {"a": "1"})) == version(applied(api, ns, "one", {"a": "1"}))


def test_apply_needs_a_manager(api: Client, ns: str) -> None:
    answer = api.patch(f"{maps(ns)}/a", config_map("a"), APPLY)
    assert answer.code in {400, 422}
    assert "fieldManager" in answer.body["message"]


@pytest.fixture
def five(api: Client, ns: str) -> str:
    for index in range(5):
        api.post(maps(ns), config_map(f"m{index}", labels={"odd": str(index % 2), "n": str(index)}))
    return maps(ns)


SELECTORS = [
    pytest.param("labelSelector=odd%3D1", ["m1", "m3"], id="equal"),
    pytest.param("labelSelector=odd%3D%3D1,n!%3D3", ["m1"], id="two terms"),
    pytest.param("labelSelector=n%20in%20(0,4)", ["m0", "m4"], id="in"),
    pytest.param("labelSelector=n%20notin%20(0,1,2,3)", ["m4"], id="notin"),
    pytest.param("labelSelector=odd", ["m0", "m1", "m2", "m3", "m4"], id="exists"),
    pytest.param("labelSelector=!odd", [], id="does not exist"),
    pytest.param("labelSelector=n%3E2", ["m3", "m4"], id="greater"),
    pytest.param("fieldSelector=metadata.name%3Dm2", ["m2"], id="by name"),
    pytest.param("fieldSelector=metadata.name!%3Dm2&labelSelector=odd%3D0", ["m0", "m4"], id="both kinds"),
]


@pytest.mark.parametrize(("query", "expected"), SELECTORS)
def test_selectors(api: Client, five: str, query: str, expected: list[str]) -> None:
    assert names(api.get(f"{five}?{query}")) == expected


def test_pages_show_one_moment(api: Client, five: str) -> None:
    first = api.get(f"{five}?limit=2&labelSelector=odd")
    api.delete(f"{five}/m4")
    api.post(five, config_map("m9", labels={"odd": "1"}))
    second = api.get(f"{five}?limit=2&labelSelector=odd&continue={first.meta['continue']}")
    third = api.get(f"{five}?limit=2&labelSelector=odd&continue={second.meta['continue']}")
    assert [names(first), names(second), names(third)] == [["m0", "m1"], ["m2", "m3"], ["m4"]]
    assert first.meta["resourceVersion"] == third.meta["resourceVersion"]
    assert "continue" not in third.meta


def test_a_page_says_how_much_is_left(api: Client, five: str) -> None:
    assert api.get(f"{five}?limit=2").meta["remainingItemCount"] == 3
    assert "remainingItemCount" not in api.get(f"{five}?limit=2&labelSelector=odd").meta


def test_a_list_at_a_version_shows_that_moment(api: Client, five: str) -> None:
    then = api.get(five).meta["resourceVersion"]
    api.delete(f"{five}/m0")
    query = f"resourceVersion={then}&resourceVersionMatch="
    assert names(api.get(f"{five}?{query}Exact"))[0] == "m0"
    assert names(api.get(f"{five}?{query}NotOlderThan"))[0] == "m1"


def test_items_of_lists_carry_no_type(api: Client, five: str) -> None:
    answer = api.get(five)
    assert (answer.body["kind"], answer.body["apiVersion"]) == ("ConfigMapList", "v1")
    assert not {"kind", "apiVersion"} & answer.body["items"][0].keys()


def test_a_collection_is_deleted_by_selector(api: Client, five: str) -> None:
    assert api.delete(f"{five}?labelSelector=odd%3D1").code == 200
    assert names(api.get(five)) == ["m0", "m2", "m4"]


def test_a_table_has_columns_and_rows(api: Client, ns: str) -> None:
    api.post(f"/api/v1/namespaces/{ns}/pods", pod("a"))
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
    table = api.call("GET", f"/api/v1/namespaces/{ns}/pods", accept=accept).body
    columns = [column["name"] for column in table["columnDefinitions"] if not column["priority"]]
    assert (table["kind"], columns) == ("Table", ["Name", "Ready", "Status", "Restarts", "Age"])
    assert table["rows"][0]["cells"][:3] == ["a", "0/1", "Pending"]


def test_a_deleted_object_answers_with_a_status_that_names_it(api: Client, ns: str) -> None:
    uid = api.post(maps(ns), config_map("a")).meta["uid"]
    body = api.delete(f"{maps(ns)}/a").body
    assert (body["status"], body["details"]) == ("Success", {"name": "a", "kind": "configmaps", "uid": uid})


def test_a_finalizer_holds_the_object_until_it_is_lifted(api: Client, ns: str) -> None:
    api.post(maps(ns), config_map("a", finalizers=["example.com/f"]))
    first = api.delete(f"{maps(ns)}/a")
    more = api.patch(f"{maps(ns)}/a", {"metadata": {"finalizers": ["example.com/f", "example.com/g"]}})
    lifted = api.patch(f"{maps(ns)}/a", {"metadata": {"finalizers": None}})
    assert (first.body["kind"], "deletionTimestamp" in first.meta) == ("ConfigMap", True)
    assert (more.code, lifted.code, api.get(f"{maps(ns)}/a").code) == (422, 200, 404)


def test_a_namespace_that_ends_takes_nothing_new(api: Client, ns: str) -> None:
    api.post(maps(ns), config_map("a", finalizers=["example.com/f"]))
    assert api.delete(f"/api/v1/namespaces/{ns}").body["status"]["phase"] == "Terminating"
    answer = api.post(maps(ns), config_map("b"))
    assert answer.refusal[:2] == (403, "Forbidden")
    assert "because it is being terminated" in answer.refusal[2]
    assert answer.body["details"]["causes"][0]["reason"] == "NamespaceTerminating"


def test_a_secret_takes_plain_text(api: Client, ns: str) -> None:
    answer = api.post(f"/api/v1/namespaces/{ns}/secrets", {"metadata": {"name": "a"}, "stringData": {"a": "b"}})
    assert (answer.body["data"], answer.body["type"]) == ({"a": "Yg=="}, "Opaque")
    assert "stringData" not in answer.body


DISCOVERED = [
    pytest.param("/api/v1", "pods", True, id="pods"),
    pytest.param("/api/v1", "nodes", False, id="nodes"),
    pytest.param("/apis/coordination.k8s.io/v1", "leases", True, id="leases"),
    pytest.param("/apis/policy/v1", "poddisruptionbudgets", True, id="budgets"),
    pytest.param("/apis/admissionregistration.k8s.io/v1", "validatingadmissionpolicies", False, id="policies"),
]


@pytest.mark.parametrize(("path", "plural", "namespaced"), DISCOVERED)
def test_discovery_lists_the_type(api: Client, path: str, plural: str, namespaced: bool) -> None:
    rows = {row["name"]: row for row in api.get(path).body["resources"]}
    assert rows[plural]["namespaced"] is namespaced
    assert {"create", "delete", "get", "list", "patch", "update", "watch"} <= set(rows[plural]["verbs"])


def test_an_event_shows_both_its_faces(api: Client, ns: str) -> None:
    subject = {"kind": "Pod", "namespace": ns, "name": "a"}
    event = {"metadata": {"name": "e"}, "involvedObject": subject, "reason": "R", "message": "said", "type": "Normal"}
    assert api.post(f"/api/v1/namespaces/{ns}/events", event).code == 201
    path = f"/apis/events.k8s.io/v1/namespaces/{ns}/events"
    new = api.get(f"{path}/e").body
    assert (new["apiVersion"], new["regarding"], new["note"]) == ("events.k8s.io/v1", subject, "said")
    assert api.get(path).body["items"][0]["note"] == "said"
    patched = api.patch(f"{path}/e", {"metadata": {"annotations": {"a": "b"}}})
    assert (patched.code, patched.body["note"]) == (200, "said")
    selected = api.get(f"/api/v1/namespaces/{ns}/events?fieldSelector=involvedObject.name%3Da,reason%3DR")
    assert names(selected) == ["e"]


def test_an_event_made_as_the_new_kind_is_found_as_the_old(api: Client, ns: str) -> None:
    event = {
        "metadata": {"name": "e"},
        "regarding": {"kind": "Pod", "namespace": ns, "name": "a"},
        "reason": "R",
        "note": "said",
        "type": "Normal",
        "action": "Bind",
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "example.com/c",
        "reportingInstance": "c-1",
    }
    made = api.post(f"/apis/events.k8s.io/v1/namespaces/{ns}/events", event)
    assert made.code == 201, made.body
    old = api.get(f"/api/v1/namespaces/{ns}/events/e").body
    assert (old["message"], old["involvedObject"]["name"], old["reportingComponent"]) == ("said", "a", "example.com/c")


CRD_GROUP = "contract.example"


def test_a_custom_resource_lives_once_its_definition_is_established(api: Client, ns: str) -> None:
    plural = ns.replace("-", "") + "s"
    kind = plural.capitalize()
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    served = {"name": "v1", "served": True, "storage": True, "schema": schema, "subresources": {"status": {}}}
    spec = {"group": CRD_GROUP, "scope": "Namespaced", "names": {"plural": plural, "kind": kind}, "versions": [served]}
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    definition = {"metadata": {"name": f"{plural}.{CRD_GROUP}"}, "spec": spec}
    assert api.post(definitions, definition).code == 201
    path = f"/apis/{CRD_GROUP}/v1/namespaces/{ns}/{plural}"
    thing = {
        "apiVersion": f"{CRD_GROUP}/v1",
        "kind": kind,
        "metadata": {"name": "a"},
        "spec": {"x": 1},
        "status": {"y": 1},
    }
    made = api.post_until(path, thing, 201)
    assert (made.meta["generation"], made.body["spec"], "status" in made.body) == (1, {"x": 1}, False)
    after = api.patch(f"{path}/a/status", {"status": {"y": 2}, "spec": {"x": 9}})
    assert (after.body["status"], after.body["spec"], after.meta["generation"]) == ({"y": 2}, {"x": 1}, 1)
    assert api.patch(f"{path}/a", {"spec": {"x": 2}}).meta["generation"] == 2
    assert api.patch(f"{path}/a", {"spec": {}}, STRATEGIC).code == 415
    assert api.get(path).body["items"][0]["kind"] == kind
    api.delete(f"{definitions}/{plural}.{CRD_GROUP}")
