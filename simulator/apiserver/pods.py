"""Pods as the API server shapes them: defaults, quality of service, what may be changed, what is invalid.

Defaults: k8s.io/kubernetes/pkg/apis/core/v1/defaults.go; rules: pkg/apis/core/validation. Only what clients of this
server can notice is here; a field that nobody checks is stored as it came.
"""

import copy
import itertools
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from gpuslice.devices.errors import BadQuantity
from gpuslice.devices.quantity import parse_quantity
from simulator.apiserver import quantities
from simulator.apiserver.failures import FieldError, Object

CONTAINER_LISTS = ("initContainers", "containers", "ephemeralContainers")

_POD_DEFAULTS: tuple[tuple[str, object], ...] = (
    ("restartPolicy", "Always"),
    ("terminationGracePeriodSeconds", 30),
    ("dnsPolicy", "ClusterFirst"),
    ("schedulerName", "default-scheduler"),
)


def default_pod_spec(spec: Object, *, template: bool = False) -> None:
    """Fill in a pod spec's defaults, in pods and in the templates of workloads (which leave out one)."""
    for key, value in _POD_DEFAULTS:
        if spec.get(key) is None:
            spec[key] = value
    spec["securityContext"] = spec.get("securityContext") or {}
    if not template:
        spec.setdefault("enableServiceLinks", True)
    if spec.get("schedulingGates") == []:
        del spec["schedulingGates"]
    if spec.get("serviceAccountName"):
        spec["serviceAccount"] = spec["serviceAccountName"]
    for container in itertools.chain.from_iterable(spec.get(field) or [] for field in CONTAINER_LISTS):
        _default_container(container)
    for volume in spec.get("volumes") or []:
        _default_volume(volume)


def _default_container(container: Object) -> None:
    container.setdefault("resources", {})
    if container["resources"] is None:
        container["resources"] = {}
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    if not container.get("imagePullPolicy"):
        tag = container.get("image", "").rpartition("/")[2].partition("@")[0].partition(":")[2]
        latest = tag == "latest" or (not tag and "@" not in container.get("image", ""))
        container["imagePullPolicy"] = "Always" if latest else "IfNotPresent"
    for port in container.get("ports") or []:
        port.setdefault("protocol", "TCP")
    resources = container["resources"]
    for part in ("limits", "requests"):
        quantities.canonicalize(resources.get(part))
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if container.get(name):
            _default_probe(container[name])
    for entry in container.get("env") or []:
        reference = (entry.get("valueFrom") or {}).get("fieldRef")
        if reference:
            reference.setdefault("apiVersion", "v1")


def default_requests(spec: Object) -> None:
    """Ask for what is limited: an absent request equals the limit (pods only, not templates)."""
    for field in CONTAINER_LISTS[:2]:
        for container in spec.get(field) or []:
            resources = container["resources"]
            if resources.get("limits"):
                requests = resources.get("requests") or {}
                resources["requests"] = resources["limits"] | requests


def _default_probe(probe: Object) -> None:
    for key, value in (("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)):
        probe.setdefault(key, value)
    if probe.get("httpGet"):
        probe["httpGet"].setdefault("path", "/")
        probe["httpGet"].setdefault("scheme", "HTTP")


def _default_volume(volume: Object) -> None:
    for source in ("configMap", "secret", "downwardAPI", "projected"):
        if volume.get(source) is not None:
            volume[source].setdefault("defaultMode", 420)
    if volume.get("hostPath") is not None:
        volume["hostPath"].setdefault("type", "")
    if not any(key != "name" for key in volume):
        volume["emptyDir"] = {}


def _containers(spec: Object) -> Iterator[Object]:
    for field in ("initContainers", "containers"):
        yield from spec.get(field) or []


def qos_class(spec: Object) -> str:
    """Compute status.qosClass from cpu and memory of all containers (pkg/apis/core/helper/qos)."""
    requests: dict[str, Fraction] = {}
    limits: dict[str, Fraction] = {}
    guaranteed = True
    for container in _containers(spec):
        resources = container.get("resources") or {}
        _add_up(requests, resources.get("requests"))
        limited = _add_up(limits, resources.get("limits"))
        guaranteed = guaranteed and limited == {"cpu", "memory"}
    if not requests and not limits:
        return "BestEffort"
    return "Guaranteed" if guaranteed and requests == limits else "Burstable"


def _add_up(total: dict[str, Fraction], amounts: Object | None) -> set[str]:
    counted = set()
    for name in ("cpu", "memory"):
        text = (amounts or {}).get(name)
        if text is None:
            continue
        try:
            value = parse_quantity(text)
        except BadQuantity:
            continue
        if value > 0:
            total[name] = total.get(name, Fraction(0)) + value
            counted.add(name)
    return counted


def default_conditions(pod: Object) -> None:
    """Write the null times that the real server's types always carry."""
    for condition in (pod.get("status") or {}).get("conditions") or []:
        condition.setdefault("lastProbeTime", None)
        condition.setdefault("lastTransitionTime", None)


def prepare_create(pod: Object) -> None:
    """Set the status of a new pod; what the client sent there is dropped."""
    spec = pod["spec"]
    pod["status"] = {"phase": "Pending", "qosClass": qos_class(spec)}
    if spec.get("schedulingGates"):
        pod["status"]["conditions"] = [
            {
                "lastProbeTime": None,
                "lastTransitionTime": None,
                "message": "Scheduling is blocked due to non-empty scheduling gates",
                "reason": "SchedulingGated",
                "status": "False",
                "type": "PodScheduled",
            }
        ]


def validate_spec(spec: Object, path: str) -> list[FieldError]:
    """Check a pod spec after defaulting."""
    problems: list[FieldError] = []
    if not spec.get("containers"):
        problems.append(FieldError("Required", f"{path}.containers"))
    names: set[str] = set()
    for field in CONTAINER_LISTS:
        for index, container in enumerate(spec.get(field) or []):
            where = f"{path}.{field}[{index}]"
            name = container.get("name")
            if not name:
                problems.append(FieldError("Required", f"{where}.name"))
            elif name in names:
                problems.append(FieldError("Duplicate", f"{where}.name", name))
            else:
                names.add(name)
            if not container.get("image"):
                problems.append(FieldError("Required", f"{where}.image"))
            problems += _validate_resources(container.get("resources") or {}, f"{where}.resources")
    return problems + _validate_enums(spec, path)


_ENUMS = {
    "restartPolicy": ("Always", "OnFailure", "Never"),
    "dnsPolicy": ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"),
}


def _validate_enums(spec: Object, path: str) -> list[FieldError]:
    problems = []
    for field, allowed in _ENUMS.items():
        value = spec.get(field)
        if value is not None and value not in allowed:
            listed = ", ".join(f'"{item}"' for item in allowed)
            problems.append(FieldError("NotSupported", f"{path}.{field}", value, f"supported values: {listed}"))
    return problems


def _validate_resources(resources: Object, path: str) -> list[FieldError]:
    problems: list[FieldError] = []
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name, text in amounts.items():
            where = f"{path}.{part}[{name}]" if "/" in name else f"{path}.{part}.{name}"
            found = quantities.quantity_problem(where, text)
            if found is None and is_extended(name) and parse_quantity(text).denominator != 1:
                found = FieldError("Invalid", where, str(text), "must be an integer")
            if found:
                problems.append(found)
    if not problems:
        problems += _compare_limits(limits, requests, path)
    return problems


def _compare_limits(limits: Object, requests: Object, path: str) -> list[FieldError]:
    problems = []
    for name, text in requests.items():
        if name in limits:
            same = parse_quantity(text) == parse_quantity(limits[name])
            if is_extended(name) and not same:
                why = f"must be equal to {name} limit of {limits[name]}"
            elif parse_quantity(text) > parse_quantity(limits[name]):
                why = f"must be less than or equal to {name} limit of {limits[name]}"
            else:
                continue
            problems.append(FieldError("Invalid", f"{path}.requests", str(text), why))
        elif is_extended(name):
            problems.append(
                FieldError("Required", f"{path}.limits", None, "Limit must be set for non overcommitable resources")
            )
    return problems


def is_extended(resource_name: str) -> bool:
    """Tell extended resources (`nvidia.com/gpu`) from native ones."""
    domain, slash, _ = resource_name.partition("/")
    return bool(slash) and not (domain == "kubernetes.io" or domain.endswith(".kubernetes.io"))


_MUTABLE = ("activeDeadlineSeconds", "tolerations")


def _comparable(spec: Object, gated: bool) -> Object:
    """Keep what an update may not change."""
    kept = copy.deepcopy(spec)
    for key in (*_MUTABLE, "schedulingGates"):
        kept.pop(key, None)
    if gated:
        for key in ("nodeSelector", "affinity"):
            kept.pop(key, None)
    for container in _containers(kept):
        container.pop("image", None)
    return kept


CHANGE_REFUSED = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def validate_update(new: Object, old: Object) -> list[FieldError]:
    """Check which spec fields an update of a pod touches."""
    spec, before = new.get("spec") or {}, old.get("spec") or {}
    problems = validate_spec(spec, "spec")
    old_gates = _gates(before)
    for index, gate in enumerate(spec.get("schedulingGates") or []):
        if gate.get("name") not in old_gates:
            detail = f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'"
            problems.append(FieldError("Forbidden", f"spec.schedulingGates[{index}].name", None, detail))
    tolerations = spec.get("tolerations") or []
    if any(item not in tolerations for item in before.get("tolerations") or []):
        problems.append(
            FieldError(
                "Forbidden",
                "spec.tolerations",
                None,
                "existing toleration can not be modified except its tolerationSeconds",
            )
        )
    if _comparable(spec, bool(old_gates)) != _comparable(before, bool(old_gates)):
        problems.append(FieldError("Forbidden", "spec", None, CHANGE_REFUSED))
    return problems


def _gates(spec: Object) -> set[str]:
    return {gate.get("name", "") for gate in spec.get("schedulingGates") or []}


def set_condition(pod: Object, condition: Object) -> None:
    """Add or replace a status condition by its type."""
    status: Any = pod.setdefault("status", {})
    rest = [item for item in status.get("conditions") or [] if item.get("type") != condition["type"]]
    status["conditions"] = [*rest, condition]
