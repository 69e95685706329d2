"""The rendered manifests: valid, least rights, nothing that can stop pods which want no card."""

import json
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.charts.families_file import FAMILIES_FILE
from tests.charts.rendering import snapshot, variants

Manifest = dict[str, Any]
NAMES = list(variants())
FOREIGN_GROUPS = ("cert-manager.io/", "monitoring.coreos.com/")
SCHEMAS = "1.33"


def manifests(name: str, *kinds: str) -> list[Manifest]:
    found = [item for item in yaml.safe_load_all(snapshot(name).read_text()) if item]
    return [item for item in found if not kinds or item["kind"] in kinds]


def one(name: str, kind: str, suffix: str) -> Manifest:
    found = [item for item in manifests(name, kind) if item["metadata"]["name"].endswith(suffix)]
    assert len(found) == 1, f"{kind} …{suffix}: {len(found)}"
    return found[0]


def containers(name: str) -> Iterator[tuple[str, Manifest]]:
    for workload in manifests(name, "Deployment", "DaemonSet"):
        spec = workload["spec"]["template"]["spec"]
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            yield f"{workload['metadata']['name']}/{container['name']}", container


@pytest.mark.parametrize("name", NAMES)
def test_every_manifest_is_valid(name: str) -> None:
    for item in manifests(name):
        if not item["apiVersion"].startswith(FOREIGN_GROUPS):
            kubernetes_validate.validate(item, SCHEMAS, strict=True)


@pytest.mark.parametrize("name", NAMES)
def test_names_are_unique_and_labelled(name: str) -> None:
    found = manifests(name)
    keys = [(item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"]) for item in found]
    assert len(set(keys)) == len(keys)
    assert all(item["metadata"]["labels"]["app.kubernetes.io/part-of"] == "gpuslice" for item in found)


@pytest.mark.parametrize("name", NAMES)
def test_no_role_has_a_wildcard_or_reads_secrets(name: str) -> None:
    for role in manifests(name, "Role", "ClusterRole"):
        for rule in role["rules"]:
            words = [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert "*" not in words
            assert "secrets" not in rule["resources"]


def test_rbac_can_be_left_to_the_administrator() -> None:
    kinds = {item["kind"] for item in manifests("external")}
    assert not kinds & {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding", "ServiceAccount"}


@pytest.mark.parametrize("name", NAMES)
def test_containers_have_no_more_than_they_need(name: str) -> None:
    for where, container in containers(name):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False, where
        assert context["readOnlyRootFilesystem"] is True, where
        assert context["capabilities"] == {"drop": ["ALL"]}, where
        assert "privileged" not in context, where
        assert context.get("runAsNonRoot", False) is ("-node/" not in where), where
        assert "requests" in container["resources"], where


@pytest.mark.parametrize("name", NAMES)
def test_webhooks_leave_the_cluster_alone(name: str) -> None:
    configurations = manifests(name, "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    assert len(configurations) == 2
    for hook in (hook for configuration in configurations for hook in configuration["webhooks"]):
        excluded = hook["namespaceSelector"]["matchExpressions"]
        assert excluded[0]["operator"] == "NotIn"
        assert {"kube-system", "gpuslice-system"} <= set(excluded[0]["values"])
        assert hook["timeoutSeconds"] <= 5
        assert hook["sideEffects"] == "None"
        assert hook["matchConditions"], hook["name"]


@pytest.mark.parametrize("name", NAMES)
def test_the_scheduler_knows_every_resource(name: str) -> None:
    text = one(name, "ConfigMap", "-scheduler")["data"]["kube-scheduler.yaml"]
    extender = yaml.safe_load(text)["extenders"][0]
    resources = json.loads(FAMILIES_FILE.read_text())["resources"]
    assert [resource["name"] for resource in extender["managedResources"]] == resources
    assert all(resource["ignoredByScheduler"] for resource in extender["managedResources"])
    assert extender["nodeCacheCapable"] is True


@pytest.mark.parametrize(
    ("name", "verbs"),
    [
        pytest.param("default", {"filterVerb", "prioritizeVerb", "bindVerb", "preemptVerb"}, id="scoring: prioritize"),
        pytest.param("hardened", {"filterVerb", "bindVerb", "preemptVerb"}, id="scoring: filter saves a round trip"),
    ],
)
def test_scoring_chooses_the_verbs(name: str, verbs: set[str]) -> None:
    text = one(name, "ConfigMap", "-scheduler")["data"]["kube-scheduler.yaml"]
    extender = yaml.safe_load(text)["extenders"][0]
    assert {key for key in extender if key.endswith("Verb")} == verbs


def test_an_external_webhook_is_registered_by_its_address_and_not_deployed() -> None:
    hooks = one("external", "MutatingWebhookConfiguration", "-webhook")["webhooks"]
    assert [hook["clientConfig"]["url"] for hook in hooks] == ["https://10.0.0.7:9443/mutate"]
    assert not [item for item in manifests("external", "Deployment") if item["metadata"]["name"].endswith("-webhook")]


def test_a_mirror_serves_every_image() -> None:
    assert {container["image"].split("/")[0] for _, container in containers("hardened")} == {"mirror.example.invalid"}


def test_the_node_daemon_is_replaced_without_a_gap() -> None:
    strategy = one("default", "DaemonSet", "-node")["spec"]["updateStrategy"]["rollingUpdate"]
    assert strategy == {"maxSurge": 1, "maxUnavailable": 0}
