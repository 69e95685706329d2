"""Bindings, reads and deletions that are refused, and how. Nothing here changes the namespace."""

import pytest

from tests.contract.client import Client
from tests.contract.manifests import binding
from tests.contract.refusals import PODS, Row, refuse, row

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
