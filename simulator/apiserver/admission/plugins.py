"""Built-in admission plugins whose work clients notice.

Priority, DefaultTolerationSeconds, ServiceAccount (the name only: this server mounts no token), LimitRanger and
ResourceQuota, as in k8s.io/kubernetes/plugin/pkg/admission.
"""

from fractions import Fraction
from typing import Any

from gpuslice.devices.errors import BadQuantity
from gpuslice.devices.quantity import parse_quantity
from simulator.apiserver import failures, quantities, selectors
from simulator.apiserver.calls import Call, Operation, State
from simulator.apiserver.failures import Object

_PODS = ("", "pods")
_SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def mutate_pod(state: State, call: Call, pod: Object) -> None:
    """Run the mutating plugins on a new pod."""
    spec = pod.get("spec")
    if not isinstance(spec, dict):
        return
    if not spec.get("serviceAccountName"):
        spec["serviceAccountName"] = spec["serviceAccount"] = "default"
    _apply_limit_ranges(state, call, spec)
    _set_priority(state, pod, spec)
    _add_tolerations(spec)


def mutate_updated_pod(pod: Object, old: Object) -> None:
    """Run the mutating plugins on an update: default tolerations come back, the priority stays."""
    spec, before = pod.get("spec"), old.get("spec") or {}
    if not isinstance(spec, dict):
        return
    for field in ("priority", "preemptionPolicy"):
        if spec.get(field) is None and before.get(field) is not None:
            spec[field] = before[field]
    _add_tolerations(spec)


def _set_priority(state: State, pod: Object, spec: Object) -> None:
    name = spec.get("priorityClassName", "")
    value, policy = 0, "PreemptLowerPriority"
    if name in _SYSTEM_PRIORITIES:
        value = _SYSTEM_PRIORITIES[name]
    elif name:
        entry = state.store.get(("scheduling.k8s.io", "priorityclasses"), "", name)
        if entry is None:
            why = f"no PriorityClass with name {name} was found"
            raise failures.forbidden("pods", "", pod["metadata"].get("name", ""), why)
        found = entry.decode()
        value, policy = found.get("value", 0), found.get("preemptionPolicy", policy)
    else:
        default = _default_class(state)
        if default is not None:
            spec["priorityClassName"] = default["metadata"]["name"]
            value, policy = default.get("value", 0), default.get("preemptionPolicy", policy)
    given = spec.get("priority")
    if given is not None and given != value:
        why = (
            f"the integer value of priority ({given}) must not be provided in pod spec; "
            f"priority admission controller computed {value} from the given PriorityClass name"
        )
        raise failures.forbidden("pods", "", pod["metadata"].get("name", ""), why)
    spec["priority"] = value
    spec.setdefault("preemptionPolicy", policy)


def _default_class(state: State) -> Object | None:
    entries = state.store.collection(("scheduling.k8s.io", "priorityclasses")).entries.values()
    found = [entry.decode() for entry in entries]
    defaults = [item for item in found if item.get("globalDefault")]
    return min(defaults, key=lambda item: int(item.get("value", 0)), default=None)


_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def _add_tolerations(spec: Object) -> None:
    present = spec.get("tolerations") or []
    for key in _TAINTS:
        if not any(_tolerates(item, key) for item in present):
            addition = {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            present = [*present, addition]
    spec["tolerations"] = present


def _tolerates(toleration: Object, key: str) -> bool:
    return toleration.get("key", "") in {"", key} and toleration.get("effect", "") in {"", "NoExecute"}


def _apply_limit_ranges(state: State, call: Call, spec: Object) -> None:
    collection = state.store.collection(("", "limitranges"))
    if not collection.entries:
        return
    for entry in collection.select(call.namespace, selectors.EVERYTHING):
        for limit in (entry.decode().get("spec") or {}).get("limits") or []:
            if limit.get("type") == "Container":
                for container in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
                    _default_from_range(container, limit)


def _default_from_range(container: Object, limit: Object) -> None:
    resources = container.setdefault("resources", {})
    for part, defaults in (("limits", limit.get("default")), ("requests", limit.get("defaultRequest"))):
        if defaults:
            resources[part] = dict(defaults) | (resources.get(part) or {})
            quantities.canonicalize(resources[part])


def check_limit_ranges(state: State, call: Call, pod: Object) -> None:
    """Refuse a pod with a container outside a LimitRange's min and max."""
    collection = state.store.collection(("", "limitranges"))
    if not collection.entries:
        return
    problems = []
    for entry in collection.select(call.namespace, selectors.EVERYTHING):
        for limit in (entry.decode().get("spec") or {}).get("limits") or []:
            if limit.get("type") == "Container":
                for container in pod["spec"].get("containers") or []:
                    problems += _outside(container, limit)
    if problems:
        said = problems[0] if len(problems) == 1 else "[" + ", ".join(problems) + "]"
        raise failures.forbidden("pods", "", pod["metadata"]["name"], said)


def _outside(container: Object, limit: Object) -> list[str]:
    resources = container.get("resources") or {}
    problems = []
    for name, bound in (limit.get("max") or {}).items():
        text = (resources.get("limits") or {}).get(name)
        if text is not None and parse_quantity(text) > parse_quantity(bound):
            problems.append(f"maximum {name} usage per Container is {bound}, but limit is {text}")
    for name, bound in (limit.get("min") or {}).items():
        text = (resources.get("requests") or {}).get(name)
        if text is not None and parse_quantity(text) < parse_quantity(bound):
            problems.append(f"minimum {name} usage per Container is {bound}, but request is {text}")
    return problems


def check_quota(state: State, call: Call, operation: Operation, new: Object) -> None:
    """Refuse a pod that would exceed a ResourceQuota of its namespace."""
    if operation != "CREATE" or call.storage != _PODS or call.target.subresource:
        return
    collection = state.store.collection(("", "resourcequotas"))
    if not collection.entries:
        return
    wanted = _usage(new)
    for entry in collection.select(call.namespace, selectors.EVERYTHING):
        quota = entry.decode()
        hard = (quota.get("spec") or {}).get("hard") or {}
        counted = {name: _amount(text) for name, text in hard.items() if _counts(name)}
        if counted:
            _check_one_quota(state, call, quota, counted, wanted, new)


def _counts(name: str) -> bool:
    """Tell whether the real server counts it: of extended resources only requests, never limits."""
    limited = name.removeprefix("limits.")
    return (
        name in {"pods", "count/pods", "cpu", "memory"}
        or name.startswith("requests.")
        or (limited != name and "/" not in limited)
    )


def _amount(text: str | float) -> Fraction:
    try:
        return parse_quantity(text)
    except BadQuantity:
        return Fraction(0)


def _usage(pod: Object) -> dict[str, Fraction]:
    """Sum what a pod asks for, by quota name; init containers count by maximum."""
    spec: Any = pod.get("spec") or {}
    total: dict[str, Fraction] = {"pods": Fraction(1), "count/pods": Fraction(1)}
    for container in spec.get("containers") or []:
        for name, amount in _container_usage(container).items():
            total[name] = total.get(name, Fraction(0)) + amount
    for container in spec.get("initContainers") or []:
        for name, amount in _container_usage(container).items():
            total[name] = max(total.get(name, Fraction(0)), amount)
    return total


def _container_usage(container: Object) -> dict[str, Fraction]:
    resources = container.get("resources") or {}
    found: dict[str, Fraction] = {}
    for part in ("requests", "limits"):
        for name, text in (resources.get(part) or {}).items():
            found[f"{part}.{name}"] = _amount(text)
            if part == "requests":
                found[name] = _amount(text)
    return found


def _check_one_quota(
    state: State, call: Call, quota: Object, hard: dict[str, Fraction], wanted: dict[str, Fraction], pod: Object
) -> None:
    used = dict.fromkeys(hard, Fraction(0))
    for entry in state.store.collection(_PODS).select(call.namespace, selectors.EVERYTHING):
        if entry.fields.get("status.phase") in {"Succeeded", "Failed"}:
            continue
        amounts = _usage(entry.decode())
        for name in used:
            used[name] += amounts.get(name, Fraction(0))
    over = [name for name in hard if wanted.get(name, Fraction(0)) and used[name] + wanted[name] > hard[name]]
    if over:
        limits = quota["spec"]["hard"]
        asked = ",".join(f"{name}={_text(wanted[name])}" for name in sorted(over))
        spent = ",".join(f"{name}={_text(used[name])}" for name in sorted(over))
        bound = ",".join(f"{name}={quantities.canonical(limits[name])}" for name in sorted(over))
        why = f"exceeded quota: {quota['metadata']['name']}, requested: {asked}, used: {spent}, limited: {bound}"
        raise failures.forbidden("pods", "", pod["metadata"]["name"], why)


def _text(amount: Fraction) -> str:
    return quantities.canonical(f"{int(amount * 1000)}m")
