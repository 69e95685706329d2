"""Subresources through which only one part of an object changes: status, ephemeralcontainers, resize, finalize."""

from simulator.apiserver import pods
from simulator.apiserver.calls import Call
from simulator.apiserver.failures import FieldError, Object

_RESIZABLE = frozenset({"cpu", "memory"})


def keep_rest(call: Call, new: Object, old: Object) -> Object:
    """Return the old object with that part of the new one that the call's subresource may change."""
    match call.target.subresource:
        case "status":
            return _status(call, new, old)
        case "ephemeralcontainers":
            spec = dict(old.get("spec") or {})
            spec.pop("ephemeralContainers", None)
            if (new.get("spec") or {}).get("ephemeralContainers"):
                spec["ephemeralContainers"] = new["spec"]["ephemeralContainers"]
            return {**old, "metadata": dict(old["metadata"]), "spec": spec}
        case "resize":
            return {**old, "metadata": dict(old["metadata"]), "spec": _resized(new.get("spec") or {}, old["spec"])}
        case "finalize":
            spec = {**(old.get("spec") or {}), "finalizers": (new.get("spec") or {}).get("finalizers") or []}
            return {**old, "metadata": dict(old["metadata"]), "spec": spec}
    return new


def _status(call: Call, new: Object, old: Object) -> Object:
    """Take the status, and of built-in types labels, annotations and finalizers too."""
    meta = dict(old["metadata"])
    if not call.resource.custom:
        for field in ("labels", "annotations", "finalizers"):
            if field in new["metadata"]:
                meta[field] = new["metadata"][field]
            else:
                meta.pop(field, None)
    return {**old, "metadata": meta, "status": new.get("status") or {}}


def _resized(new: Object, old: Object) -> Object:
    spec = dict(old)
    for field in ("containers", "initContainers"):
        wanted = {item.get("name"): item for item in new.get(field) or []}
        if field in old:
            spec[field] = [
                {**item, "resources": wanted.get(item["name"], item).get("resources") or {}} for item in old[field]
            ]
    return spec


def validate(call: Call, new: Object, old: Object) -> list[FieldError]:
    """Check a change made through one of these subresources."""
    match call.target.subresource:
        case "ephemeralcontainers":
            return _validate_ephemeral(new, old)
        case "resize":
            return _validate_resize(new, old)
        case "status" if call.storage == ("", "namespaces"):
            phase = (new.get("status") or {}).get("phase")
            if phase != "Active" and not new["metadata"].get("deletionTimestamp"):
                detail = "may only be 'Active' if `deletionTimestamp` is empty"
                return [FieldError("Invalid", "status.Phase", phase or "", detail)]
    return []


def _validate_ephemeral(new: Object, old: Object) -> list[FieldError]:
    wanted = {item.get("name"): item for item in new["spec"].get("ephemeralContainers") or []}
    problems = []
    for item in old["spec"].get("ephemeralContainers") or []:
        if wanted.get(item["name"]) != item:
            verb = "changed" if item["name"] in wanted else "removed"
            detail = f'existing ephemeral containers "{item["name"]}" may not be {verb}'
            problems.append(FieldError("Forbidden", "spec.ephemeralContainers", None, detail))
    return problems + pods.validate_spec(new["spec"], "spec")


def _validate_resize(new: Object, old: Object) -> list[FieldError]:
    before, after = pods.qos_class(old["spec"]), pods.qos_class(new["spec"])
    if before != after:
        return [FieldError("Invalid", "spec", before, "Pod QOS Class may not change as a result of resizing")]
    for field in ("containers", "initContainers"):
        for item, was in zip(new["spec"].get(field) or [], old["spec"].get(field) or [], strict=True):
            if _others(item) != _others(was):
                return [FieldError("Forbidden", "spec", None, "only cpu and memory resources are mutable")]
    return pods.validate_spec(new["spec"], "spec")


def _others(container: Object) -> Object:
    resources = container.get("resources") or {}
    return {
        part: {name: text for name, text in (resources.get(part) or {}).items() if name not in _RESIZABLE}
        for part in ("limits", "requests")
    }
