"""Admission webhooks: whom they are called for, what they can do, what happens when they fail."""

import base64
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gpuslice.devices.families import load_builtin
from tests.contract.client import Answer, Client
from tests.contract.hooks import Hook
from tests.contract.manifests import limited, pod
from webhook.registration import Registration, mutating_configuration, validating_configuration

BASE = "/apis/admissionregistration.k8s.io/v1"
MUTATING, VALIDATING = "mutatingwebhookconfigurations", "validatingwebhookconfigurations"
RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
WITHIN_SECONDS = 10.0


def pods(ns: str) -> str:
    return f"/api/v1/namespaces/{ns}/pods"


class Registrar:
    """Registers the webhook for pods of one namespace and waits until the server knows it."""

    def __init__(self, api: Client, ns: str, hook: Hook) -> None:
        self.api, self.ns, self.hook = api, ns, hook
        self.made: list[str] = []

    def configuration(self, kind: str, **fields: Any) -> dict[str, Any]:
        selector = {"matchLabels": {"kubernetes.io/metadata.name": self.ns}}
        entry = {
            "name": "hook.contract.example",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "clientConfig": {"url": self.hook.url, "caBundle": self.hook.ca_bundle},
            "rules": [RULE],
            "namespaceSelector": selector,
            **fields,
        }
        return {"metadata": {"name": f"{kind[:3]}-{self.ns}"}, "webhooks": [entry]}

    def register(self, kind: str, **fields: Any) -> Answer:
        configuration = self.configuration(kind, **fields)
        answer = self.api.post(f"{BASE}/{kind}", configuration)
        if answer.code == 201:
            self.made.append(f"{BASE}/{kind}/{configuration['metadata']['name']}")
        return answer

    def create_until(self, settled: Any, **spec: Any) -> Answer:
        """Create pods until an answer shows that the registration is in force (a server may take a moment)."""
        deadline = time.monotonic() + WITHIN_SECONDS
        number = 0
        while True:
            number += 1
            answer = self.api.post(pods(self.ns), pod(f"p{number}", **spec))
            if settled(answer):
                return answer
            assert time.monotonic() < deadline, answer.body


@pytest.fixture
def registrar(api: Client, ns: str, hook: Hook) -> Iterator[Registrar]:
    found = Registrar(api, ns, hook)
    yield found
    for path in found.made:
        api.delete(path)


def refused(answer: Answer) -> bool:
    return answer.code >= 400


DENIALS = [
    pytest.param(
        {"message": "no", "code": 418, "reason": "Teapot"}, (418, "Teapot", ": no"), id="its own code and reason"
    ),
    pytest.param({"message": "no"}, (400, "", ": no"), id="a message alone is a bad request"),
    pytest.param({"reason": "Because"}, (400, "Because", ": Because"), id="a reason alone"),
    pytest.param({}, (400, "", " without explanation"), id="nothing said"),
]


@pytest.mark.parametrize(("status", "expected"), DENIALS)
def test_a_denial(registrar: Registrar, status: dict[str, Any], expected: tuple[int, str, str]) -> None:
    registrar.hook.respond = lambda _: {"allowed": False, "status": status}
    registrar.register(VALIDATING)
    code, reason, said = registrar.create_until(refused).refusal
    assert (code, reason) == expected[:2]
    assert said == f'admission webhook "hook.contract.example" denied the request{expected[2]}'


def test_a_patch_changes_the_pod(registrar: Registrar) -> None:
    patch = [{"op": "add", "path": "/metadata/labels", "value": {"patched": "yes"}}]
    encoded = base64.b64encode(json.dumps(patch).encode()).decode()
    registrar.hook.respond = lambda _: {"allowed": True, "patchType": "JSONPatch", "patch": encoded}
    registrar.register(MUTATING)
    answer = registrar.create_until(lambda found: "labels" in found.meta)
    assert answer.meta["labels"] == {"patched": "yes"}


def test_a_patch_that_does_not_apply_is_an_internal_error(registrar: Registrar) -> None:
    encoded = base64.b64encode(b'[{"op":"replace","path":"/x/y","value":1}]').decode()
    registrar.hook.respond = lambda _: {"allowed": True, "patchType": "JSONPatch", "patch": encoded}
    registrar.register(MUTATING)
    assert registrar.create_until(refused).refusal[:2] == (500, "InternalError")


def test_a_warning_reaches_the_client(registrar: Registrar) -> None:
    registrar.hook.respond = lambda _: {"allowed": True, "warnings": ['careful "now"']}
    registrar.register(VALIDATING)
    answer = registrar.create_until(lambda found: "warning" in found.headers)
    assert answer.headers["warning"] == '299 - "careful \\"now\\""'


def test_the_review_names_the_request(registrar: Registrar) -> None:
    registrar.register(VALIDATING)
    registrar.create_until(lambda _: bool(registrar.hook.asked))
    asked = registrar.hook.asked[0]
    assert {key: asked[key] for key in ("kind", "resource", "namespace", "operation", "dryRun")} == {
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": registrar.ns,
        "operation": "CREATE",
        "dryRun": False,
    }
    assert asked["object"]["metadata"]["name"] == asked["name"]
    assert asked["oldObject"] is None
    assert "system:masters" in asked["userInfo"]["groups"]


def test_a_dry_run_is_announced(registrar: Registrar) -> None:
    registrar.register(VALIDATING)
    registrar.create_until(lambda _: bool(registrar.hook.asked))
    registrar.api.post(f"{pods(registrar.ns)}?dryRun=All", pod("dry"))
    assert [asked["dryRun"] for asked in registrar.hook.asked if asked["name"] == "dry"] == [True]


def test_an_unreachable_webhook_fails_the_request(registrar: Registrar) -> None:
    registrar.register(VALIDATING, clientConfig={"url": "https://127.0.0.1:1/", "caBundle": registrar.hook.ca_bundle})
    code, reason, said = registrar.create_until(refused).refusal
    assert (code, reason) == (500, "InternalError")
    assert 'failed calling webhook "hook.contract.example": failed to call webhook: Post "https://127.0.0.1:1/' in said


def test_an_unreachable_webhook_may_be_ignored(registrar: Registrar) -> None:
    client = {"url": "https://127.0.0.1:1/", "caBundle": registrar.hook.ca_bundle}
    registrar.register(VALIDATING, clientConfig=client, failurePolicy="Ignore")
    registrar.register(MUTATING)
    registrar.create_until(lambda _: bool(registrar.hook.asked))
    assert registrar.api.post(pods(registrar.ns), pod("after")).code == 201


def test_an_unknown_authority_is_not_trusted(registrar: Registrar) -> None:
    registrar.register(VALIDATING, clientConfig={"url": registrar.hook.url})
    assert registrar.create_until(refused).refusal[:2] == (500, "InternalError")
    assert registrar.hook.asked == []


CONDITIONS = [
    pytest.param("object.metadata.name != 'free'", id="comparison"),
    pytest.param("!(object.metadata.name in ['free', 'other'])", id="membership"),
    pytest.param(
        "object.spec.containers.exists(c, c.image == 'x:1') && object.metadata.name.startsWith('p')",
        id="exists and startsWith",
    ),
    pytest.param("has(object.spec.nodeName) || object.metadata.name.matches('^p[0-9]+$')", id="has and matches"),
    pytest.param(
        "(has(object.metadata.labels) ? object.metadata.labels : {}).all(k, k != 'free')"
        " && size(object.metadata.name) < 4",
        id="ternary, map, all, size",
    ),
    pytest.param(
        "request.operation == 'CREATE' && object.?metadata.?labels[?'free'].orValue('no') == 'no'"
        " && object.metadata.name != 'free'",
        id="optionals",
    ),
    pytest.param(
        "object.metadata.labels['free'] == 'yes' || object.metadata.name != 'free'", id="an error beside a true"
    ),
    pytest.param(
        "(object.spec.containers + []).map(c, c.name) == ['c'] && object.metadata.name != 'free'",
        id="lists add and map",
    ),
]


@pytest.mark.parametrize("expression", CONDITIONS)
def test_a_condition_chooses(registrar: Registrar, expression: str) -> None:
    registrar.hook.respond = lambda _: {"allowed": False}
    made = registrar.register(VALIDATING, matchConditions=[{"name": "chosen", "expression": expression}])
    assert made.code == 201, made.body
    registrar.create_until(refused)
    if "an error" not in expression and "labels['free']" not in expression:
        assert registrar.api.post(pods(registrar.ns), pod("free")).code == 201


def test_a_condition_without_a_value_refuses(registrar: Registrar) -> None:
    condition = {"name": "broken", "expression": "object.metadata.labels['q'] == 'a'"}
    registrar.register(VALIDATING, matchConditions=[condition])
    code, reason, said = registrar.create_until(refused).refusal
    assert (code, reason) == (403, "Forbidden")
    assert "resulted in error: no such key: labels" in said


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(
            {"matchConditions": [{"name": "x", "expression": "object.metadata.name =="}]}, id="half a condition"
        ),
        pytest.param({"sideEffects": "Some"}, id="side effects"),
        pytest.param({"name": "short"}, id="a short name"),
        pytest.param({"admissionReviewVersions": []}, id="no review version"),
    ],
)
def test_a_registration_is_refused(registrar: Registrar, fields: dict[str, Any]) -> None:
    assert registrar.register(VALIDATING, **fields).refusal[:2] == (422, "Invalid")


def test_a_registration_gets_its_defaults(registrar: Registrar) -> None:
    entry = registrar.register(MUTATING).body["webhooks"][0]
    assert {key: entry[key] for key in ("failurePolicy", "matchPolicy", "timeoutSeconds", "reinvocationPolicy")} == {
        "failurePolicy": "Fail",
        "matchPolicy": "Equivalent",
        "timeoutSeconds": 10,
        "reinvocationPolicy": "Never",
    }
    assert entry["rules"][0]["scope"] == "*"


def test_an_admission_policy_denies_by_cel(registrar: Registrar) -> None:
    ns, api = registrar.ns, registrar.api
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    validation = {"expression": "variables.allowed", "message": "not allowed here"}
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "variables": [{"name": "allowed", "expression": "object.metadata.name.startsWith('ok')"}],
        "validations": [validation],
    }
    policy = api.post(f"{BASE}/validatingadmissionpolicies", {"metadata": {"name": ns}, "spec": spec})
    bound = {"matchLabels": {"kubernetes.io/metadata.name": ns}}
    binding = {"policyName": ns, "validationActions": ["Deny"], "matchResources": {"namespaceSelector": bound}}
    api.post(f"{BASE}/validatingadmissionpolicybindings", {"metadata": {"name": ns}, "spec": binding})
    registrar.made += [f"{BASE}/validatingadmissionpolicybindings/{ns}", f"{BASE}/validatingadmissionpolicies/{ns}"]
    assert policy.code == 201, policy.body
    deadline = time.monotonic() + WITHIN_SECONDS
    number = 0
    while True:
        number += 1
        answer = api.post(f"/api/v1/namespaces/{ns}/configmaps", {"metadata": {"name": f"no{number}"}})
        if refused(answer):
            break
        assert time.monotonic() < deadline
    said = f"ValidatingAdmissionPolicy '{ns}' with binding '{ns}' denied request: not allowed here"
    assert answer.refusal == (422, "Invalid", f'configmaps "no{number}" is forbidden: {said}')
    assert api.post(f"/api/v1/namespaces/{ns}/configmaps", {"metadata": {"name": "ok"}}).code == 201


@pytest.mark.parametrize("build", [mutating_configuration, validating_configuration])
def test_our_own_registration_is_accepted(api: Client, ns: str, hook: Hook, build: Any) -> None:
    registration = Registration({"url": hook.url}, hook.ca_bundle)
    configuration = build(registration, load_builtin())
    configuration["metadata"]["name"] = ns
    for entry in configuration["webhooks"]:
        entry["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": ns}}
    path = f"{BASE}/{configuration['kind'].lower()}s"
    answer = api.post(path, configuration)
    assert answer.code == 201, answer.body
    try:
        hook.respond = lambda request: {"allowed": "card" not in request["name"]}
        deadline = time.monotonic() + WITHIN_SECONDS
        number = 0
        while api.post(pods(ns), limited(f"card{number}", {"nvidia.com/gpumem": "3000"})).code == 201:
            number += 1
            assert time.monotonic() < deadline
        hook.asked.clear()
        assert api.post(pods(ns), pod("plain")).code == 201
        assert api.patch(f"{pods(ns)}/plain", {"metadata": {"annotations": {"mine": "1"}}}).code == 200
        assert hook.asked == []
    finally:
        api.delete(f"{path}/{ns}")
