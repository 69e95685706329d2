"""Webhooks behind services, several webhooks in a row, and what a pod's writer must not say."""

import base64
import json
from typing import Any

from simulator.apiserver import ADMIN, Options, ServerThread
from tests.contract.client import Client
from tests.contract.hooks import Hook, serve_hook
from tests.contract.manifests import pod

BASE = "/apis/admissionregistration.k8s.io/v1"
PODS = "/api/v1/namespaces/default/pods"
RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}


def entry(name: str, client: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "name": f"{name}.hooks.example",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "clientConfig": client,
        "rules": [RULE],
        **fields,
    }


def register(api: Client, *entries: dict[str, Any], kind: str = "mutatingwebhookconfigurations") -> None:
    assert api.post(f"{BASE}/{kind}", {"metadata": {"name": "hooks"}, "webhooks": list(entries)}).code == 201


def labelling(hook: Hook, label: str) -> None:
    """Let a webhook add a label that counts its calls."""

    def respond(request: dict[str, Any]) -> dict[str, Any]:
        labels = request["object"]["metadata"].get("labels") or {}
        labels[label] = str(len(hook.asked))
        patch = [{"op": "add", "path": "/metadata/labels", "value": labels}]
        return {
            "allowed": True,
            "patchType": "JSONPatch",
            "patch": base64.b64encode(json.dumps(patch).encode()).decode(),
        }

    hook.respond = respond


def test_a_service_is_found_through_the_resolver_map_and_its_name_is_verified() -> None:
    with serve_hook("webhook.system.svc") as hook, serve_hook("other.system.svc") as impostor:
        services = {
            "system/webhook": hook.url.removeprefix("https://"),
            "system/other:8443": impostor.url.removeprefix("https://"),
        }
        with ServerThread(Options(services=services)) as handle:
            api = Client(handle.url, ADMIN.token)
            service = {"namespace": "system", "name": "webhook", "path": "/mutate"}
            register(api, entry("a", {"service": service, "caBundle": hook.ca_bundle}))
            assert api.post(PODS, pod("a")).code == 201
            assert len(hook.asked) == 1
            wrong = {"service": service | {"name": "absent"}, "caBundle": hook.ca_bundle}
            register(api, entry("b", wrong), kind="validatingwebhookconfigurations")
            refused = api.post(PODS, pod("b"))
        assert refused.refusal[:2] == (500, "InternalError")
        assert "service system/absent:443 is not in the server's resolver map" in refused.refusal[2]
        assert impostor.asked == []


def test_a_webhook_is_asked_again_when_a_later_one_changed_the_pod() -> None:
    with serve_hook() as first, serve_hook() as second, ServerThread() as handle:
        api = Client(handle.url, ADMIN.token)
        labelling(first, "first")
        labelling(second, "second")
        again = {"reinvocationPolicy": "IfNeeded"}
        register(
            api,
            entry("a", {"url": first.url, "caBundle": first.ca_bundle}, **again),
            entry("b", {"url": second.url, "caBundle": second.ca_bundle}),
        )
        labels = api.post(PODS, pod("a")).meta["labels"]
    assert (labels, len(first.asked), len(second.asked)) == ({"first": "2", "second": "1"}, 2, 1)


def test_the_webhook_sees_the_users_name() -> None:
    with serve_hook() as hook, ServerThread() as handle:
        api = Client(handle.url, ADMIN.token)
        register(api, entry("a", {"url": hook.url, "caBundle": hook.ca_bundle}))
        token = api_token(api)
        api.with_token(token).post(PODS, pod("a"))
    user = hook.asked[0]["userInfo"]
    assert user["username"] == "system:serviceaccount:default:writer"
    assert user["groups"] == ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"]


def api_token(api: Client) -> str:
    """Make a service account and a token for it."""
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    api.post(accounts, {"metadata": {"name": "writer"}})
    token: str = api.post(f"{accounts}/writer/token", {"spec": {}}).body["status"]["token"]
    return token


def test_a_priority_that_contradicts_its_class_is_refused() -> None:
    with ServerThread() as handle:
        api = Client(handle.url, ADMIN.token)
        answer = api.post(PODS, pod("a", priority=7))
    assert answer.refusal[:2] == (403, "Forbidden")
    assert "the integer value of priority (7) must not be provided in pod spec" in answer.refusal[2]
