"""What each type does on its way into the store: defaults, resets, validation."""

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass

from simulator.apiserver import pods, quantities
from simulator.apiserver.failures import FieldError, Object

Storage = tuple[str, str]

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")

BAD_SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
BAD_LABEL_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
BAD_QUALIFIED_NAME = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)

BAD_KEY = (
    BAD_QUALIFIED_NAME.replace("name part must", "a qualified name must")
    + " with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
)

ANNOTATION_LIMIT_BYTES = 256 * 1024

# Names of these types may hold anything that a path can (RBAC: `system:node`).
_PATH_NAMES = frozenset({"rbac.authorization.k8s.io"})


def _nothing(_: Object) -> None:
    """Change nothing."""


def _no_problems(_: Object) -> list[FieldError]:
    return []


def _no_change_problems(_new: Object, _old: Object) -> list[FieldError]:
    return []


@dataclass(frozen=True, slots=True)
class Strategy:
    """The hooks of one type."""

    default: Callable[[Object], None] = _nothing
    """Fill in defaults of an object that a client sent (create, update, patch)."""
    prepare_create: Callable[[Object], None] = _nothing
    """Set what only the server may set in a new object."""
    validate: Callable[[Object], list[FieldError]] = _no_problems
    validate_update: Callable[[Object, Object], list[FieldError]] = _no_change_problems
    status: bool = False
    """The status is a subresource: writes to the object leave it, writes to /status leave the rest."""


def _drop_status(obj: Object) -> None:
    obj.pop("status", None)


def _default_pod(pod: Object) -> None:
    spec = pod.get("spec")
    if isinstance(spec, dict):
        pods.default_pod_spec(spec)
        pods.default_requests(spec)
    pods.default_conditions(pod)


def _validate_pod(pod: Object) -> list[FieldError]:
    return pods.validate_spec(pod.get("spec") or {}, "spec")


def _default_node(node: Object) -> None:
    node.setdefault("spec", {})
    status = node.get("status") or {}
    if "capacity" in status and "allocatable" not in status:
        status["allocatable"] = dict(status["capacity"])
    for part in ("capacity", "allocatable"):
        quantities.canonicalize(status.get(part))


def _validate_node(node: Object) -> list[FieldError]:
    problems = []
    status = node.get("status") or {}
    for part in ("capacity", "allocatable"):
        for name, text in (status.get(part) or {}).items():
            where = f"status.{part}[{name}]" if "/" in name else f"status.{part}.{name}"
            if found := quantities.quantity_problem(where, text):
                problems.append(found)
    return problems


def _create_namespace(namespace: Object) -> None:
    spec = namespace.setdefault("spec", {})
    spec["finalizers"] = ["kubernetes"]
    namespace["status"] = {"phase": "Active"}
    labels = namespace["metadata"].setdefault("labels", {})
    labels["kubernetes.io/metadata.name"] = namespace["metadata"]["name"]


def _default_workload(workload: Object) -> None:
    spec = workload.get("spec") or {}
    template = spec.get("template") or {}
    if isinstance(template.get("spec"), dict):
        template.setdefault("metadata", {})
        pods.default_pod_spec(template["spec"])


def _default_replicas(workload: Object) -> None:
    _default_workload(workload)
    spec = workload.setdefault("spec", {})
    if spec.get("replicas") is None:
        spec["replicas"] = 1


def _default_deployment(deployment: Object) -> None:
    _default_replicas(deployment)
    spec = deployment["spec"]
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    strategy = spec.setdefault("strategy", {})
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")


def _default_daemonset(daemonset: Object) -> None:
    _default_workload(daemonset)
    spec = daemonset.setdefault("spec", {})
    spec.setdefault("revisionHistoryLimit", 10)
    strategy = spec.setdefault("updateStrategy", {})
    strategy.setdefault("type", "RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        strategy.setdefault("rollingUpdate", {"maxSurge": 0, "maxUnavailable": 1})


def _validate_workload(workload: Object) -> list[FieldError]:
    template = (workload.get("spec") or {}).get("template") or {}
    return pods.validate_spec(template.get("spec") or {}, "spec.template.spec")


def _validate_selected_workload(workload: Object) -> list[FieldError]:
    spec = workload.get("spec") or {}
    problems = [] if spec.get("selector") else [FieldError("Required", "spec.selector")]
    return problems + _validate_workload(workload)


def _default_service(service: Object) -> None:
    spec = service.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    for port in spec.get("ports") or []:
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))


def _default_webhooks(configuration: Object) -> None:
    mutating = configuration.get("kind", "").startswith("Mutating")
    for hook in configuration.get("webhooks") or []:
        hook.setdefault("failurePolicy", "Fail")
        hook.setdefault("matchPolicy", "Equivalent")
        hook.setdefault("namespaceSelector", {})
        hook.setdefault("objectSelector", {})
        hook.setdefault("timeoutSeconds", 10)
        if mutating:
            hook.setdefault("reinvocationPolicy", "Never")
        service = (hook.get("clientConfig") or {}).get("service")
        if service:
            service.setdefault("port", 443)
        for rule in hook.get("rules") or []:
            rule.setdefault("scope", "*")


def _validate_webhooks(configuration: Object) -> list[FieldError]:
    problems = []
    for index, hook in enumerate(configuration.get("webhooks") or []):
        where = f"webhooks[{index}]"
        name = hook.get("name", "")
        if name.count(".") < 2:
            problems.append(
                FieldError(
                    "Invalid",
                    f"{where}.name",
                    name,
                    "should be a domain with at least three segments separated by dots",
                )
            )
        if not hook.get("admissionReviewVersions"):
            detail = "must specify one of v1, v1beta1"
            problems.append(FieldError("Required", f"{where}.admissionReviewVersions", None, detail))
        if hook.get("sideEffects") not in {"None", "NoneOnDryRun"}:
            problems.append(
                FieldError(
                    "NotSupported",
                    f"{where}.sideEffects",
                    hook.get("sideEffects"),
                    'supported values: "None", "NoneOnDryRun"',
                )
            )
        client = hook.get("clientConfig") or {}
        if bool(client.get("url")) is bool(client.get("service")):
            problems.append(
                FieldError("Required", f"{where}.clientConfig", None, "exactly one of url or service is required")
            )
    return problems


def _default_secret(secret: Object) -> None:
    secret.setdefault("type", "Opaque")
    plain = secret.pop("stringData", None)
    if plain:
        data = secret.setdefault("data", {})
        data.update({key: base64.b64encode(str(value).encode()).decode() for key, value in plain.items()})


def _default_priority_class(priority_class: Object) -> None:
    priority_class.setdefault("preemptionPolicy", "PreemptLowerPriority")


def _default_binding_subjects(binding: Object) -> None:
    for subject in binding.get("subjects") or []:
        if subject.get("kind") in {"User", "Group"}:
            subject.setdefault("apiGroup", "rbac.authorization.k8s.io")
    reference = binding.get("roleRef")
    if isinstance(reference, dict):
        reference.setdefault("apiGroup", "rbac.authorization.k8s.io")


def _validate_lease(lease: Object) -> list[FieldError]:
    spec = lease.get("spec") or {}
    problems = []
    seconds = spec.get("leaseDurationSeconds")
    if seconds is not None and seconds <= 0:
        problems.append(FieldError("Invalid", "spec.leaseDurationSeconds", seconds, "must be greater than 0"))
    if spec.get("leaseTransitions") is not None and spec["leaseTransitions"] < 0:
        problems.append(
            FieldError(
                "Invalid", "spec.leaseTransitions", spec["leaseTransitions"], "must be greater than or equal to 0"
            )
        )
    return problems


_WEBHOOKS = Strategy(default=_default_webhooks, validate=_validate_webhooks)
_PLAIN = Strategy()
_WITH_STATUS = Strategy(prepare_create=_drop_status, status=True)

STRATEGIES: dict[Storage, Strategy] = {
    ("", "pods"): Strategy(_default_pod, pods.prepare_create, _validate_pod, pods.validate_update, status=True),
    ("", "nodes"): Strategy(_default_node, validate=_validate_node, status=True),
    ("", "namespaces"): Strategy(prepare_create=_create_namespace, status=True),
    ("", "services"): Strategy(default=_default_service, status=True),
    ("", "secrets"): Strategy(default=_default_secret),
    ("", "replicationcontrollers"): Strategy(_default_replicas, _drop_status, _validate_workload, status=True),
    ("apps", "deployments"): Strategy(_default_deployment, _drop_status, _validate_selected_workload, status=True),
    ("apps", "replicasets"): Strategy(_default_replicas, _drop_status, _validate_selected_workload, status=True),
    ("apps", "statefulsets"): Strategy(_default_replicas, _drop_status, _validate_selected_workload, status=True),
    ("apps", "daemonsets"): Strategy(_default_daemonset, _drop_status, _validate_selected_workload, status=True),
    ("batch", "jobs"): Strategy(_default_workload, _drop_status, _validate_workload, status=True),
    ("coordination.k8s.io", "leases"): Strategy(validate=_validate_lease),
    ("scheduling.k8s.io", "priorityclasses"): Strategy(default=_default_priority_class),
    ("rbac.authorization.k8s.io", "clusterrolebindings"): Strategy(default=_default_binding_subjects),
    ("rbac.authorization.k8s.io", "rolebindings"): Strategy(default=_default_binding_subjects),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"): _WEBHOOKS,
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"): _WEBHOOKS,
}


def strategy_of(storage: Storage, subresources: tuple[str, ...]) -> Strategy:
    """Return a type's hooks."""
    found = STRATEGIES.get(storage)
    if found is None:
        return _WITH_STATUS if "status" in subresources else _PLAIN
    return found


def validate_metadata(storage: Storage, meta: Object) -> list[FieldError]:
    """Check name, labels and annotations."""
    problems = []
    name = meta.get("name", "")
    if not name:
        problems.append(FieldError("Required", "metadata.name", None, "name or generateName is required"))
    elif storage[0] in _PATH_NAMES:
        if "/" in name or "%" in name or name in {".", ".."}:
            problems.append(FieldError("Invalid", "metadata.name", name, "may not contain '/' or '%'"))
    elif not _SUBDOMAIN.fullmatch(name) or len(name) > 253:
        problems.append(FieldError("Invalid", "metadata.name", name, BAD_SUBDOMAIN))
    for field in ("labels", "annotations"):
        problems += _validate_keys(meta.get(field) or {}, f"metadata.{field}")
    for value in (meta.get("labels") or {}).values():
        if not isinstance(value, str) or len(value) > 63 or not _LABEL_VALUE.fullmatch(value):
            problems.append(FieldError("Invalid", "metadata.labels", value, BAD_LABEL_VALUE))
    size = sum(len(key) + len(str(value)) for key, value in (meta.get("annotations") or {}).items())
    if size > ANNOTATION_LIMIT_BYTES:
        problems.append(
            FieldError("TooLong", "metadata.annotations", "", f"may not be more than {ANNOTATION_LIMIT_BYTES} bytes")
        )
    return problems


def _validate_keys(entries: Object, field: str) -> list[FieldError]:
    problems = []
    for key in entries:
        prefix, slash, name = key.rpartition("/")
        if key.count("/") > 1:
            problems.append(FieldError("Invalid", field, key, BAD_KEY))
        elif slash and not _SUBDOMAIN.fullmatch(prefix):
            problems.append(FieldError("Invalid", field, key, "prefix part " + BAD_SUBDOMAIN))
        elif not _QUALIFIED.fullmatch(name) or len(name) > 63:
            problems.append(FieldError("Invalid", field, key, BAD_QUALIFIED_NAME))
    return problems
