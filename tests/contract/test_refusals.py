"""What is refused, with which code, reason and words. Nothing here changes the namespace."""

from dataclasses import dataclass
from typing import Any

import pytest

from tests.contract.client import APPLY, JSON, JSON_PATCH, MERGE, STRATEGIC, Client
from tests.contract.manifests import binding, config_map, limited, pod

PODS = "/api/v1/namespaces/{ns}/pods"
MAPS = "/api/v1/namespaces/{ns}/configmaps"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases"


@dataclass(frozen=True)
class Row:
    """One request and its refusal; `said` is a part of the message, {ns} stands for the namespace."""

    method: str
    path: str
    body: Any
    code: int
    reason: str
    said: str = ""
    content_type: str = JSON


def row(story: str, *fields: Any, **named: Any) -> Any:
    return pytest.param(Row(*fields, **named), id=story)


CREATES = [
    row("a name that is taken", "POST", PODS, pod("free"), 409, "AlreadyExists", 'pods "free" already exists'),
    row("a name with capitals", "POST", PODS, pod("Bad_Name"), 422, "Invalid", "a lowercase RFC 1123 subdomain"),
    row(
        "a namespace name with capitals",
        "POST",
        "/api/v1/namespaces",
        {"metadata": {"name": "Bad"}},
        422,
        "Invalid",
        "RFC 1123 label",
    ),
    row(
        "no name",
        "POST",
        PODS,
        {"spec": {}},
        422,
        "Invalid",
        "[metadata.name: Required value: name or generateName is required, spec.containers: Required value]",
    ),
    row(
        "another kind", "POST", PODS, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "e"}}, 400, "BadRequest"
    ),
    row(
        "another namespace in the body",
        "POST",
        PODS,
        pod("x") | {"metadata": {"name": "x", "namespace": "other"}},
        400,
        "BadRequest",
        "the namespace of the provided object does not match the namespace sent on the request",
    ),
    row("not JSON", "POST", PODS, b"{nonsense", 400, "BadRequest", "json parse error"),
    row("a JSON list", "POST", PODS, b"[]", 400, "BadRequest", "json parse error"),
    row("nothing", "POST", PODS, b"", 400, "BadRequest", "json parse error"),
    row(
        "plain text",
        "POST",
        PODS,
        b"x",
        415,
        "UnsupportedMediaType",
        "the body of the request was in an unknown format",
        "text/plain",
    ),
    row(
        "a namespace that does not exist",
        "POST",
        "/api/v1/namespaces/absent/pods",
        pod("x"),
        404,
        "NotFound",
        'namespaces "absent" not found',
    ),
    row(
        "a resourceVersion",
        "POST",
        PODS,
        {"metadata": {"name": "x", "resourceVersion": "7"}, "spec": pod("x")["spec"]},
        500,
        "",
        "resourceVersion should not be set on objects to be created",
    ),
    row("half a card", "POST", PODS, limited("x", {"nvidia.com/gpu": "1.5"}), 422, "Invalid", "must be an integer"),
    row(
        "minus one card",
        "POST",
        PODS,
        limited("x", {"nvidia.com/gpu": "-1"}),
        422,
        "Invalid",
        "must be greater than or equal to 0",
    ),
    row(
        "a quantity that is a word",
        "POST",
        PODS,
        limited("x", {"nvidia.com/gpu": "abc"}),
        400,
        "BadRequest",
        "quantities must match the regular expression",
    ),
    row(
        "cards requested without a limit",
        "POST",
        PODS,
        limited("x", {}, {"nvidia.com/gpu": "1"}),
        422,
        "Invalid",
        "Limit must be set for non overcommitable resources",
    ),
    row(
        "fewer cards requested than limited",
        "POST",
        PODS,
        limited("x", {"nvidia.com/gpu": "2"}, {"nvidia.com/gpu": "1"}),
        422,
        "Invalid",
        "must be equal to nvidia.com/gpu limit of 2",
    ),
    row(
        "more cpu requested than limited",
        "POST",
        PODS,
        limited("x", {"cpu": "1"}, {"cpu": "2"}),
        422,
        "Invalid",
        "must be less than or equal to cpu limit of 1",
    ),
    row(
        "an unknown restart policy",
        "POST",
        PODS,
        pod("x", restartPolicy="Maybe"),
        422,
        "Invalid",
        'supported values: "Always", "OnFailure", "Never"',
    ),
    row(
        "two containers of one name",
        "POST",
        PODS,
        pod("x", containers=[{"name": "c", "image": "x"}] * 2),
        422,
        "Invalid",
        'spec.containers[1].name: Duplicate value: "c"',
    ),
    row(
        "a container without an image",
        "POST",
        PODS,
        pod("x", containers=[{"name": "c"}]),
        422,
        "Invalid",
        "spec.containers[0].image: Required value",
    ),
    row(
        "a label value with a blank",
        "POST",
        PODS,
        pod("x", labels={"a": "b c"}),
        422,
        "Invalid",
        "a valid label must be an empty string or consist of",
    ),
    row(
        "a label key with a blank",
        "POST",
        PODS,
        pod("x", labels={"a b": "c"}),
        422,
        "Invalid",
        "name part must consist of alphanumeric characters",
    ),
    row(
        "an annotation key with two slashes",
        "POST",
        PODS,
        pod("x", annotations={"a/b/c": ""}),
        422,
        "Invalid",
        "a qualified name must consist of",
    ),
    row(
        "a priority class that does not exist",
        "POST",
        PODS,
        pod("x", priorityClassName="none"),
        403,
        "Forbidden",
        "no PriorityClass with name none was found",
    ),
    row(
        "an unknown dry run",
        "POST",
        PODS + "?dryRun=Some",
        pod("x"),
        422,
        "Invalid",
        'dryRun: Unsupported value: ["Some"]: supported values: "All"',
    ),
    row(
        "a lease of no duration",
        "POST",
        LEASES,
        {"metadata": {"name": "x"}, "spec": {"leaseDurationSeconds": 0}},
        422,
        "Invalid",
        "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
    ),
    row("a collection by name", "POST", PODS + "/free", pod("free"), 405, "MethodNotAllowed"),
]

UPDATES = [
    row("a pod that does not exist", "PUT", PODS + "/none", pod("none"), 404, "NotFound", 'pods "none" not found'),
    row(
        "another name in the body",
        "PUT",
        PODS + "/none",
        pod("free"),
        400,
        "BadRequest",
        "the name of the object (free) does not match the name on the URL (none)",
    ),
    row(
        "an old resourceVersion",
        "PUT",
        MAPS + "/cm",
        config_map("cm", resourceVersion="1"),
        409,
        "Conflict",
        "the object has been modified; please apply your changes to the latest version and try again",
    ),
    row(
        "the uid of another object",
        "PUT",
        MAPS + "/cm",
        config_map("cm", uid="other"),
        409,
        "Conflict",
        "Precondition failed: UID in precondition: other",
    ),
    row(
        "a lease without resourceVersion",
        "PUT",
        LEASES + "/held",
        {"metadata": {"name": "held"}, "spec": {}},
        422,
        "Invalid",
        "metadata.resourceVersion: Invalid value: 0: must be specified for an update",
    ),
    row("a collection", "PUT", PODS, pod("free"), 405, "MethodNotAllowed"),
    row(
        "the node of a pod",
        "PATCH",
        PODS + "/free",
        {"spec": {"nodeName": "n"}},
        422,
        "Invalid",
        "pod updates may not change fields other than",
        MERGE,
    ),
    row(
        "resources of a pod",
        "PATCH",
        PODS + "/free",
        [{"op": "add", "path": "/spec/containers/0/resources/limits", "value": {"cpu": "1"}}],
        422,
        "Invalid",
        "pod updates may not change fields other than",
        JSON_PATCH,
    ),
    row(
        "a new scheduling gate",
        "PATCH",
        PODS + "/free",
        {"spec": {"schedulingGates": [{"name": "a.b/c"}]}},
        422,
        "Invalid",
        "only deletion is allowed, but found new scheduling gate 'a.b/c'",
        MERGE,
    ),
]

PATCHES = [
    row(
        "an old resourceVersion",
        "PATCH",
        PODS + "/free",
        {"metadata": {"resourceVersion": "1"}},
        409,
        "Conflict",
        "the object has been modified",
        MERGE,
    ),
    row(
        "the uid",
        "PATCH",
        PODS + "/free",
        {"metadata": {"uid": "1"}},
        422,
        "Invalid",
        'metadata.uid: Invalid value: "1": field is immutable',
        MERGE,
    ),
    row(
        "a test that fails",
        "PATCH",
        PODS + "/free",
        [{"op": "test", "path": "/metadata/labels/x", "value": "z"}],
        422,
        "Invalid",
        "the server rejected our request due to an error in our request",
        JSON_PATCH,
    ),
    row(
        "removing what is not there",
        "PATCH",
        PODS + "/free",
        [{"op": "remove", "path": "/metadata/labels/q"}],
        422,
        "Invalid",
        "the server rejected our request",
        JSON_PATCH,
    ),
    row(
        "adding below what is not there",
        "PATCH",
        PODS + "/free",
        [{"op": "add", "path": "/metadata/annotations/q", "value": ""}],
        422,
        "Invalid",
        "the server rejected our request",
        JSON_PATCH,
    ),
    row(
        "an unknown operation",
        "PATCH",
        PODS + "/free",
        [{"op": "frob", "path": "/a"}],
        422,
        "Invalid",
        "the server rejected our request",
        JSON_PATCH,
    ),
    row(
        "an object as JSON patch",
        "PATCH",
        PODS + "/free",
        {"op": "add"},
        400,
        "BadRequest",
        "error decoding patch",
        JSON_PATCH,
    ),
    row("numbers as JSON patch", "PATCH", PODS + "/free", [1], 400, "BadRequest", "error decoding patch", JSON_PATCH),
    row(
        "half an object as merge patch", "PATCH", PODS + "/free", b"{", 400, "BadRequest", "error decoding patch", MERGE
    ),
    row("a list as merge patch", "PATCH", PODS + "/free", b"[]", 400, "BadRequest", "error decoding patch", MERGE),
    row("plain JSON", "PATCH", PODS + "/free", {"a": 1}, 415, "UnsupportedMediaType", "415: Unsupported Media Type"),
    row("a pod that does not exist", "PATCH", PODS + "/none", {}, 404, "NotFound", 'pods "none" not found', MERGE),
    row("a collection", "PATCH", PODS, {}, 405, "MethodNotAllowed", "", MERGE),
    row(
        "an item without its merge key",
        "PATCH",
        PODS + "/free",
        {"spec": {"containers": [{"image": "y"}]}},
        500,
        "",
        "does not contain declared merge key: name",
        STRATEGIC,
    ),
    row(
        "an apply that carries managedFields",
        "PATCH",
        MAPS + "/cm?fieldManager=m",
        config_map("cm", managedFields=[{"manager": "m"}]),
        400,
        "BadRequest",
        "metadata.managedFields must be nil",
        APPLY,
    ),
]

BINDINGS = [
    row(
        "a pod that has a node",
        "POST",
        PODS + "/taken/binding",
        binding("taken", "n"),
        409,
        "Conflict",
        'Operation cannot be fulfilled on pods/binding "taken": pod taken is already assigned to node "{ns}"',
    ),
    row(
        "a predecessor's uid",
        "POST",
        PODS + "/free/binding",
        binding("free", "n", uid="00000000-0000-0000-0000-000000000000"),
        409,
        "Conflict",
        "Precondition failed: UID in precondition: 00000000-0000-0000-0000-000000000000",
    ),
    row(
        "a gated pod",
        "POST",
        PODS + "/gated/binding",
        binding("gated", "n"),
        409,
        "Conflict",
        "pod gated has non-empty .spec.schedulingGates",
    ),
    row(
        "a pod that does not exist",
        "POST",
        PODS + "/none/binding",
        binding("none", "n"),
        404,
        "NotFound",
        'pods "none" not found',
    ),
    row("no node", "POST", PODS + "/free/binding", binding("free", ""), 500, "", "target.name: Required value"),
    row(
        "something that is no node",
        "POST",
        PODS + "/free/binding",
        binding("free", "n") | {"target": {"kind": "Pod", "name": "n"}},
        500,
        "",
        'target.kind: Unsupported value: "Pod"',
    ),
    row(
        "another pod's name",
        "POST",
        PODS + "/free/binding",
        binding("other", "n"),
        400,
        "BadRequest",
        "name in URL does not match name in Binding object",
    ),
    row("by GET", "GET", PODS + "/free/binding", None, 405, "MethodNotAllowed"),
]

READS = [
    row(
        "an unselectable field",
        "GET",
        PODS + "?fieldSelector=spec.foo%3Dx",
        None,
        400,
        "BadRequest",
        "field label not supported: spec.foo",
    ),
    row(
        "a field without a value",
        "GET",
        PODS + "?fieldSelector=spec.nodeName",
        None,
        400,
        "BadRequest",
        "invalid selector: 'spec.nodeName'; can't understand 'spec.nodeName'",
    ),
    row(
        "a label selector of two words",
        "GET",
        PODS + "?labelSelector=a%20b",
        None,
        400,
        "BadRequest",
        "unable to parse requirement",
    ),
    row(
        "a resourceVersion that is a word",
        "GET",
        PODS + "?resourceVersion=abc",
        None,
        400,
        "BadRequest",
        'invalid resource version: resourceVersion: Invalid value: "abc"',
    ),
    row(
        "a match without resourceVersion",
        "GET",
        PODS + "?resourceVersionMatch=Exact",
        None,
        422,
        "Invalid",
        "resourceVersionMatch is forbidden unless resourceVersion is provided",
    ),
    row(
        "exactly version 0",
        "GET",
        PODS + "?resourceVersionMatch=Exact&resourceVersion=0",
        None,
        422,
        "Invalid",
        'resourceVersionMatch "exact" is forbidden for resourceVersion "0"',
    ),
    row(
        "an unknown match",
        "GET",
        PODS + "?resourceVersionMatch=Foo&resourceVersion=1",
        None,
        422,
        "Invalid",
        'supported values: "Exact", "NotOlderThan", ""',
    ),
    row("a made-up continue token", "GET", PODS + "?continue=abc", None, 400, "BadRequest", "invalid continue token"),
    row(
        "a limit that is a word",
        "GET",
        PODS + "?limit=x",
        None,
        400,
        "BadRequest",
        'strconv.ParseInt: parsing "x": invalid syntax',
    ),
    row(
        "a version of the future",
        "GET",
        PODS + "?resourceVersion=99999999",
        None,
        504,
        "Timeout",
        "Too large resource version: 99999999, current:",
    ),
    row(
        "a watch with a match but no initial events",
        "GET",
        PODS + "?watch=1&resourceVersionMatch=NotOlderThan",
        None,
        422,
        "Invalid",
        "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
    ),
    row(
        "initial events without a match",
        "GET",
        PODS + "?watch=1&sendInitialEvents=true",
        None,
        422,
        "Invalid",
        "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
    ),
    row(
        "a watch from a word",
        "GET",
        PODS + "?watch=1&resourceVersion=abc",
        None,
        500,
        "",
        'resourceVersion: Invalid value: "abc"',
    ),
    row(
        "an unknown subresource",
        "GET",
        PODS + "/free/frob",
        None,
        404,
        "NotFound",
        "the server could not find the requested resource",
    ),
    row(
        "an unknown type",
        "GET",
        "/api/v1/frobs",
        None,
        404,
        "NotFound",
        "the server could not find the requested resource",
    ),
]

DELETES = [
    row(
        "another uid",
        "DELETE",
        PODS + "/free",
        {"preconditions": {"uid": "x"}},
        409,
        "Conflict",
        'Operation cannot be fulfilled on Pod "free": the UID in the precondition (x) does not match the UID in record',
    ),
    row(
        "an old resourceVersion",
        "DELETE",
        PODS + "/free",
        {"preconditions": {"resourceVersion": "1"}},
        409,
        "Conflict",
        "the ResourceVersion in the precondition (1) does not match the ResourceVersion in record",
    ),
    row("what does not exist", "DELETE", PODS + "/none", None, 404, "NotFound", 'pods "none" not found'),
    row(
        "an unknown propagation",
        "DELETE",
        PODS + "/free",
        {"propagationPolicy": "Frob"},
        422,
        "Invalid",
        "propagationPolicy: Unsupported value",
    ),
    row(
        "a grace that is a word",
        "DELETE",
        PODS + "/free?gracePeriodSeconds=x",
        None,
        400,
        "BadRequest",
        'strconv.ParseInt: parsing "x": invalid syntax',
    ),
]


def refuse(api: Client, ns: str, case: Row) -> None:
    answer = api.call(case.method, case.path.format(ns=ns), case.body, case.content_type)
    assert answer.refusal[:2] == (case.code, case.reason), answer.body
    assert case.said.format(ns=ns) in answer.refusal[2]
    assert (answer.body["kind"], answer.body["status"], answer.body["code"]) == ("Status", "Failure", case.code)


@pytest.mark.parametrize("case", CREATES)
def test_create_refuses(api: Client, furnished: str, case: Row) -> None:
    refuse(api, furnished, case)


@pytest.mark.parametrize("case", UPDATES)
def test_update_refuses(api: Client, furnished: str, case: Row) -> None:
    refuse(api, furnished, case)


@pytest.mark.parametrize("case", PATCHES)
def test_patch_refuses(api: Client, furnished: str, case: Row) -> None:
    refuse(api, furnished, case)


@pytest.mark.parametrize("case", BINDINGS)
def test_binding_refuses(api: Client, furnished: str, case: Row) -> None:
    refuse(api, furnished, case)


@pytest.mark.parametrize("case", READS)
def test_read_refuses(api: Client, furnished: str, case: Row) -> None:
    refuse(api, furnished, case)


@pytest.mark.parametrize("case", DELETES)
def test_delete_refuses(api: Client, furnished: str, case: Row) -> None:
    refuse(api, furnished, case)


def test_a_path_outside_every_group_is_plain_text(api: Client) -> None:
    answer = api.get("/apis/frob.example/v1/frobs")
    assert (answer.code, answer.body) == (404, "404 page not found\n")


def test_a_stranger_is_unauthorised(api: Client) -> None:
    answer = api.with_token("nobody").get("/api/v1/namespaces")
    assert answer.refusal == (401, "Unauthorized", "Unauthorized")
