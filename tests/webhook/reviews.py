"""Builders: pods as the API server hands them over, reviews around them, and answers taken apart."""

import base64
import json
from collections.abc import Mapping
from typing import Any

from gpuslice.devices.families import load_builtin
from webhook.admission import Admission
from webhook.policy import Policy
from webhook.review import Verdict, decode_review, encode_review

FAMILIES = load_builtin()
USER = "alice"
SCHEDULER = "system:serviceaccount:gpuslice-system:gpuslice-scheduler"
Json = dict[str, Any]


def container(name: str = "main", limits: Any = None, **more: Any) -> Json:
    return {"name": name, "image": "x", "resources": {"limits": limits} if limits is not None else {}, **more}


def pod(limits: Any = None, *, annotations: Any = None, containers: list[Json] | None = None, **spec: Any) -> Json:
    """Return a pod with one container ``main``, or with the containers given."""
    listed = [container(limits=limits)] if containers is None else containers
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default"}
        | ({} if annotations is None else {"annotations": annotations}),
        "spec": {"schedulerName": "default-scheduler", "containers": listed} | spec,
    }


def body(
    object_: Any,
    *,
    old: Any = None,
    operation: str = "CREATE",
    kind: str = "Pod",
    sub_resource: str = "",
    user: str = USER,
    namespace: str = "default",
    dry_run: bool = False,
) -> bytes:
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": kind},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "name": "p",
        "namespace": namespace,
        "operation": operation,
        "userInfo": {"username": user, "groups": ["system:authenticated"]},
        "object": object_,
        "oldObject": old,
        "dryRun": dry_run,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }
    if sub_resource:
        request["subResource"] = sub_resource
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


def mutate(object_: Any, *, policy: Policy | None = None, **more: Any) -> Verdict:
    return Admission(FAMILIES, policy or Policy()).mutate(decode_review(body(object_, **more)))


def validate(object_: Any, *, policy: Policy | None = None, **more: Any) -> Verdict:
    return Admission(FAMILIES, policy or Policy()).validate(decode_review(body(object_, **more)))


def wire_patch(verdict: Verdict) -> list[Json]:
    """Return the patch as the API server reads it from the answer."""
    response = json.loads(encode_review("u", verdict))["response"]
    if "patch" not in response:
        return []
    assert response["patchType"] == "JSONPatch"
    patch: list[Json] = json.loads(base64.b64decode(response["patch"]))
    return patch


def patched(object_: Json, verdict: Verdict) -> Json:
    """Return a pod with the answer's patch applied, by a small reader of RFC 6902 that knows nothing of ours."""
    result: Json = json.loads(json.dumps(object_))
    for operation in wire_patch(verdict):
        tokens = [token.replace("~1", "/").replace("~0", "~") for token in operation["path"].split("/")[1:]]
        _apply(result, tokens, operation)
    return result


def _apply(document: Any, tokens: list[str], operation: Mapping[str, Any]) -> None:
    target = document
    for token in tokens[:-1]:
        target = target[int(token)] if isinstance(target, list) else target[token]
    last = tokens[-1]
    match operation["op"], target:
        case "remove", list():
            del target[int(last)]
        case "remove", dict():
            del target[last]
        case "add", list():
            target.insert(len(target) if last == "-" else int(last), operation["value"])
        case "add", dict():
            target[last] = operation["value"]
        case "replace", dict():
            assert last in target, f"replace of the absent {operation['path']}"
            target[last] = operation["value"]
        case other:
            raise AssertionError(f"operation {other} is none of ours")
