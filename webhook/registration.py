"""The objects that register the webhook with the API server, and the conditions under which it is called at all.

The conditions (CEL) are what keeps an outage harmless: a pod that asks for no device and carries no annotation of ours
never reaches us, so failurePolicy Fail cannot hold it up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuslice.devices.families import Families
from webhook.policy import Policy
from webhook.protection import OWN_PREFIX, protected_keys

NAME = "gpuslice-webhook"
TIMEOUT_SECONDS = 5
Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Registration:
    """Where the webhook is and whom it leaves alone."""

    client: Mapping[str, object]
    """``{"url": "https://…"}`` without a path, or ``{"service": {"name": …, "namespace": …}}``."""
    authority: str
    """caBundle, base64 of PEM."""
    exempt_namespaces: Sequence[str] = ("kube-system", "gpuslice-system")
    failure_policy: str = "Fail"
    trusted_users: frozenset[str] = Policy().trusted_users
    """Their writes need no look; the webhook itself knows them too."""


def asks_for_devices(families: Families, variable: str = "object") -> str:
    """Return CEL that holds when a container of the pod names a resource of any family."""
    names = "[" + ",".join(f"'{name}'" for name in sorted(families.resource_names)) + "]"
    lists = "+".join(
        f"(has({variable}.spec.{key}) ? {variable}.spec.{key} : [])" for key in ("containers", "initContainers")
    )
    return (
        f"({lists}).exists(c, has(c.resources) && ("
        f"(has(c.resources.limits) && c.resources.limits.exists(r, r in {names})) || "
        f"(has(c.resources.requests) && c.resources.requests.exists(r, r in {names}))))"
    )


def _annotations(variable: str) -> str:
    return f"(has({variable}.metadata.annotations) ? {variable}.metadata.annotations : {{}})"


def _is_ours(families: Families) -> str:
    keys = "[" + ",".join(f"'{key}'" for key in sorted(protected_keys(families))) + "]"
    return f"(k.startsWith('{OWN_PREFIX}') || k in {keys})"


def carries_our_annotations(families: Families) -> str:
    """Return CEL that holds when the object has an annotation that only daemons write."""
    return f"{_annotations('object')}.exists(k, {_is_ours(families)})"


def changes_our_annotations(families: Families) -> str:
    """Return CEL that holds when an update adds, changes or removes an annotation that only daemons write."""
    new, old = _annotations("object"), _annotations("oldObject")
    ours = _is_ours(families)
    return (
        f"{new}.exists(k, {ours} && !(k in {old} && {old}[k] == {new}[k])) || {old}.exists(k, {ours} && !(k in {new}))"
    )


def _conditions(registration: Registration, name: str, expression: str) -> list[Manifest]:
    trusted = "[" + ",".join(f"'{user}'" for user in sorted(registration.trusted_users)) + "]"
    return [
        {"name": "not-our-daemons", "expression": f"!(request.userInfo.username in {trusted})"},
        {"name": name, "expression": expression},
    ]


def _rule(resources: Sequence[str], operations: Sequence[str], *, group: str = "") -> Manifest:
    return {
        "apiGroups": [group],
        "apiVersions": ["v1"],
        "operations": list(operations),
        "resources": list(resources),
        "scope": "Namespaced",
    }


def mutating_configuration(registration: Registration, families: Families) -> Manifest:
    """Return the MutatingWebhookConfiguration."""
    created = f"{asks_for_devices(families)} || {carries_our_annotations(families)}"
    pods = _hook(registration, "pods.mutate.gpuslice.io", "/mutate") | {
        "rules": [_rule(["pods"], ["CREATE"]), _rule(["pods/ephemeralcontainers"], ["UPDATE"])],
        "matchConditions": _conditions(
            registration,
            "concerns-devices",
            f"request.operation == 'CREATE' ? ({created}) : ({asks_for_devices(families)})",
        ),
        "reinvocationPolicy": "IfNeeded",
    }
    return _configuration("MutatingWebhookConfiguration", [pods])


def validating_configuration(registration: Registration, families: Families) -> Manifest:
    """Return the ValidatingWebhookConfiguration."""
    ours, devices = carries_our_annotations(families), asks_for_devices(families)
    updated = (
        f"{changes_our_annotations(families)} || "
        "(has(request.subResource) && request.subResource in ['ephemeralcontainers', 'resize'] && "
        f"{devices})"
    )
    pods = _hook(registration, "pods.validate.gpuslice.io", "/validate") | {
        "rules": [
            _rule(["pods"], ["CREATE", "UPDATE"]),
            _rule(["pods/ephemeralcontainers", "pods/resize", "pods/status"], ["UPDATE"]),
        ],
        "matchConditions": _conditions(
            registration,
            "concerns-devices",
            f"request.operation == 'CREATE' ? ({devices} || {ours}) : ({updated})",
        ),
    }
    bindings = _hook(registration, "bindings.validate.gpuslice.io", "/validate") | {
        "rules": [_rule(["pods/binding", "bindings"], ["CREATE"])],
        "matchConditions": _conditions(registration, "carries-our-annotations", ours),
    }
    workloads = _hook(registration, "workloads.validate.gpuslice.io", "/validate") | {
        "rules": [
            _rule(["deployments", "statefulsets", "daemonsets", "replicasets"], ["CREATE", "UPDATE"], group="apps"),
            _rule(["jobs", "cronjobs"], ["CREATE", "UPDATE"], group="batch"),
            _rule(["replicationcontrollers"], ["CREATE", "UPDATE"]),
        ],
        "failurePolicy": "Ignore",
        "matchConditions": [{"name": "template-asks-for-devices", "expression": _workload_asks(families)}],
    }
    return _configuration("ValidatingWebhookConfiguration", [pods, bindings, workloads])


def _workload_asks(families: Families) -> str:
    """Hold when the template's containers name a resource of ours; CronJobs nest it one level deeper."""
    cron = asks_for_devices(families, "object.spec.jobTemplate.spec.template")
    plain = asks_for_devices(families, "object.spec.template")
    return f"has(object.spec.jobTemplate) ? {cron} : (has(object.spec.template) && {plain})"


def _hook(registration: Registration, name: str, path: str) -> Manifest:
    client: Manifest = {"caBundle": registration.authority}
    if "url" in registration.client:
        client["url"] = f"{registration.client['url']}{path}"
    else:
        service = registration.client["service"]
        client["service"] = {**service, "path": path} if isinstance(service, Mapping) else service
    return {
        "name": name,
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": registration.failure_policy,
        "matchPolicy": "Equivalent",
        "timeoutSeconds": TIMEOUT_SECONDS,
        "clientConfig": client,
        "namespaceSelector": {
            "matchExpressions": [
                {
                    "key": "kubernetes.io/metadata.name",
                    "operator": "NotIn",
                    "values": list(registration.exempt_namespaces),
                }
            ]
        },
    }


def _configuration(kind: str, webhooks: list[Manifest]) -> Manifest:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": NAME},
        "webhooks": webhooks,
    }
