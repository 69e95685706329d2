"""What each type does on its way into the store: defaults, resets, validation."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from simulator.apiserver import cel_syntax, defaults, pods, quantities
from simulator.apiserver.failures import FieldError, Object, Raw

Storage = tuple[str, str]


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
    keep: tuple[str, ...] = ()
    """Parts that an update of the object itself cannot change."""
    status: bool = False
    """The status is a subresource: writes to the object leave it, writes to /status leave the rest."""


def _drop_status(obj: Object) -> None:
    obj.pop("status", None)


def _validate_pod(pod: Object) -> list[FieldError]:
    return pods.validate_spec(pod.get("spec") or {}, "spec")


def _validate_node(node: Object) -> list[FieldError]:
    problems = []
    status = node.get("status") or {}
    for part in ("capacity", "allocatable"):
        for name, text in (status.get(part) or {}).items():
            where = f"status.{part}[{name}]" if "/" in name else f"status.{part}.{name}"
            if found := quantities.quantity_problem(where, text):
                problems.append(found)
    return problems


def _validate_workload(workload: Object) -> list[FieldError]:
    template = (workload.get("spec") or {}).get("template") or {}
    return pods.validate_spec(template.get("spec") or {}, "spec.template.spec")


def _validate_selected_workload(workload: Object) -> list[FieldError]:
    spec = workload.get("spec") or {}
    problems = [] if spec.get("selector") else [FieldError("Required", "spec.selector")]
    return problems + _validate_workload(workload)


def _validate_webhooks(configuration: Object) -> list[FieldError]:
    problems = []
    for index, hook in enumerate(configuration.get("webhooks") or []):
        problems += _validate_hook(hook, f"webhooks[{index}]")
    return problems


def _validate_hook(hook: Object, where: str) -> list[FieldError]:
    problems = []
    name, effects, client = hook.get("name", ""), hook.get("sideEffects"), hook.get("clientConfig") or {}
    if name.count(".") < 2:
        detail = "should be a domain with at least three segments separated by dots"
        problems.append(FieldError("Invalid", f"{where}.name", name, detail))
    if not hook.get("admissionReviewVersions"):
        detail = "must specify one of v1, v1beta1"
        problems.append(FieldError("Required", f"{where}.admissionReviewVersions", None, detail))
    if effects is None:
        detail = "must specify one of None, NoneOnDryRun"
        problems.append(FieldError("Required", f"{where}.sideEffects", None, detail))
    elif effects not in {"None", "NoneOnDryRun"}:
        detail = 'supported values: "None", "NoneOnDryRun"'
        problems.append(FieldError("NotSupported", f"{where}.sideEffects", effects, detail))
    for index, condition in enumerate(hook.get("matchConditions") or ()):
        try:
            cel_syntax.parse(condition.get("expression", ""))
        except cel_syntax.CelSyntaxError as error:
            place = f"{where}.matchConditions[{index}].expression"
            problems.append(FieldError("Invalid", place, condition.get("expression"), f"compilation failed: {error}"))
    if bool(client.get("url")) is bool(client.get("service")):
        problems.append(
            FieldError("Required", f"{where}.clientConfig", None, "exactly one of url or service is required")
        )
    return problems


def _validate_lease(lease: Object) -> list[FieldError]:
    spec = lease.get("spec") or {}
    problems = []
    seconds = spec.get("leaseDurationSeconds")
    if seconds is not None and seconds <= 0:
        problems.append(FieldError("Invalid", "spec.leaseDurationSeconds", seconds, "must be greater than 0"))
    transitions = spec.get("leaseTransitions")
    if transitions is not None and transitions < 0:
        detail = "must be greater than or equal to 0"
        problems.append(FieldError("Invalid", "spec.leaseTransitions", transitions, detail))
    return problems


def _validate_workload_update(new: Object, old: Object) -> list[FieldError]:
    selector = (new.get("spec") or {}).get("selector")
    if selector == (old.get("spec") or {}).get("selector"):
        return []
    shown = msgspec.json.encode(selector).decode()
    return [FieldError("Invalid", "spec.selector", Raw(shown), "field is immutable")]


def _workload(default: Callable[[Object], None]) -> Strategy:
    return Strategy(default, defaults.empty_status, _validate_selected_workload, _validate_workload_update, status=True)


_WEBHOOKS = Strategy(default=defaults.default_webhooks, validate=_validate_webhooks)
_PLAIN = Strategy()
_WITH_STATUS = Strategy(prepare_create=_drop_status, status=True)

STRATEGIES: dict[Storage, Strategy] = {
    ("", "pods"): Strategy(defaults.default_pod, pods.prepare_create, _validate_pod, pods.validate_update, status=True),
    ("", "nodes"): Strategy(defaults.default_node, validate=_validate_node, status=True),
    ("", "namespaces"): Strategy(prepare_create=defaults.create_namespace, keep=("spec",), status=True),
    ("", "services"): Strategy(default=defaults.default_service, status=True),
    ("", "events"): Strategy(default=defaults.default_event),
    ("", "podtemplates"): Strategy(default=defaults.default_pod_template),
    ("", "resourcequotas"): Strategy(prepare_create=defaults.empty_status, status=True),
    ("", "secrets"): Strategy(default=defaults.default_secret),
    ("", "replicationcontrollers"): Strategy(defaults.default_replicas, _drop_status, _validate_workload, status=True),
    ("apps", "deployments"): _workload(defaults.default_deployment),
    ("apps", "replicasets"): _workload(defaults.default_replicas),
    ("apps", "statefulsets"): _workload(defaults.default_replicas),
    ("apps", "daemonsets"): _workload(defaults.default_daemonset),
    ("batch", "jobs"): Strategy(defaults.default_job, defaults.empty_status, _validate_workload, status=True),
    ("policy", "poddisruptionbudgets"): Strategy(prepare_create=defaults.create_budget, status=True),
    ("coordination.k8s.io", "leases"): Strategy(default=defaults.default_lease, validate=_validate_lease),
    ("storage.k8s.io", "storageclasses"): Strategy(default=defaults.default_storage_class),
    ("apiextensions.k8s.io", "customresourcedefinitions"): Strategy(
        defaults.default_definition, defaults.create_definition, status=True
    ),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies"): Strategy(
        defaults.default_policy, defaults.empty_status, status=True
    ),
    ("scheduling.k8s.io", "priorityclasses"): Strategy(default=defaults.default_priority_class),
    ("rbac.authorization.k8s.io", "clusterrolebindings"): Strategy(default=defaults.default_binding_subjects),
    ("rbac.authorization.k8s.io", "rolebindings"): Strategy(default=defaults.default_binding_subjects),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"): _WEBHOOKS,
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"): _WEBHOOKS,
}


# Updates of these must name the resourceVersion that they are based on (AllowUnconditionalUpdate is false).
CONDITIONAL_ONLY = frozenset(
    {
        ("coordination.k8s.io", "leases"),
        ("policy", "poddisruptionbudgets"),
        ("batch", "jobs"),
        ("node.k8s.io", "runtimeclasses"),
        ("storage.k8s.io", "csinodes"),
        ("apiextensions.k8s.io", "customresourcedefinitions"),
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
        ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
        ("admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
    }
)
# A PUT of these creates what is missing (AllowCreateOnUpdate is true).
CREATED_BY_PUT = frozenset(
    {
        ("", "limitranges"),
        ("", "endpoints"),
        ("", "services"),
        ("", "events"),
        ("coordination.k8s.io", "leases"),
        ("node.k8s.io", "runtimeclasses"),
        ("rbac.authorization.k8s.io", "roles"),
        ("rbac.authorization.k8s.io", "rolebindings"),
        ("rbac.authorization.k8s.io", "clusterroles"),
        ("rbac.authorization.k8s.io", "clusterrolebindings"),
    }
)


def strategy_of(storage: Storage, subresources: tuple[str, ...]) -> Strategy:
    """Return a type's hooks."""
    found = STRATEGIES.get(storage)
    if found is None:
        return _WITH_STATUS if "status" in subresources else _PLAIN
    return found
