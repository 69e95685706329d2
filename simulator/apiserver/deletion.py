"""Deletion: grace, preconditions, finalizers, propagation, and whole namespaces.

Rules: k8s.io/apiserver/pkg/registry/rest/delete.go and the pod strategy's CheckGracefulDelete. The garbage collector
and the namespace controller are other programs in a real cluster; `simulator.apiserver.controllers` plays them.
"""

from datetime import timedelta

from simulator.apiserver import calls, failures, writes
from simulator.apiserver.calls import Call, State
from simulator.apiserver.failures import Object

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"

# Types whose DELETE answers with the object instead of a Status.
_RETURN_OBJECT = frozenset(
    {
        ("", "pods"),
        ("", "serviceaccounts"),
        ("", "resourcequotas"),
        ("", "podtemplates"),
        ("", "persistentvolumes"),
        ("", "persistentvolumeclaims"),
        ("", "services"),
        ("batch", "jobs"),
        ("storage.k8s.io", "storageclasses"),
        ("storage.k8s.io", "csinodes"),
        ("apiextensions.k8s.io", "customresourcedefinitions"),
    }
)


async def delete(state: State, call: Call, options: Object) -> Object:
    """Delete the named object, or begin to; returns what the client is told.

    Args:
        state: The server.
        call: Names the object.
        options: DeleteOptions: gracePeriodSeconds, preconditions, propagationPolicy.
    """
    entry = writes.existing(state, call)
    obj = call.show(entry)
    _check_preconditions(call, obj, options.get("preconditions") or {})
    if state.admission is not None:
        await state.admission.mutate(call, "DELETE", None, obj)
        await state.admission.validate(call, "DELETE", None, obj)
    current = writes.existing(state, call)
    if current is not entry:
        obj = call.show(current)
        _check_preconditions(call, obj, options.get("preconditions") or {})
    before = call.show(current)
    removed, changed = _plan(state, call, obj, options)
    if not call.dry_run:
        if removed:
            state.store.remove(call.storage, obj)
        elif changed:
            state.store.put(call.storage, obj)
        if state.after_write is not None and (removed or changed):
            await state.after_write(call.resource, None if removed else obj, before)
    if not removed or call.storage in _RETURN_OBJECT:
        return obj
    return _success(call, obj)


def _success(call: Call, obj: Object) -> Object:
    details: Object = {"name": obj["metadata"]["name"]}
    if call.resource.group:
        details["group"] = call.resource.group
    details |= {"kind": call.resource.plural, "uid": obj["metadata"]["uid"]}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def _check_preconditions(call: Call, obj: Object, preconditions: Object) -> None:
    resource, meta = call.resource, obj["metadata"]
    for field, words, happened in (
        ("uid", "UID", "deleted and then recreated"),
        ("resourceVersion", "ResourceVersion", "modified"),
    ):
        wanted, found = preconditions.get(field), meta[field]
        if wanted is not None and wanted != found:
            why = f"the {words} in the precondition ({wanted}) does not match the {words} in record ({found})"
            why += f". The object might have been {happened}"
            raise failures.conflict(resource.kind, resource.group, meta["name"], why)


def _plan(state: State, call: Call, obj: Object, options: Object) -> tuple[bool, bool]:
    """Change `obj` as the deletion does; returns (removed now, changed)."""
    meta = obj["metadata"]
    before = (meta.get("deletionTimestamp"), meta.get("deletionGracePeriodSeconds"), list(meta.get("finalizers") or []))
    _apply_propagation(meta, options)
    grace = _grace_seconds(call, obj, options)
    if call.storage == ("", "namespaces"):
        obj.setdefault("status", {})["phase"] = "Terminating"
        waits = True
        grace = None
    else:
        waits = bool(meta.get("finalizers"))
    if meta.get("deletionTimestamp"):
        if grace is not None and grace < (meta.get("deletionGracePeriodSeconds") or 0):
            meta["deletionGracePeriodSeconds"] = grace
            meta["deletionTimestamp"] = calls.timestamp(state.clock() + timedelta(seconds=grace))
    elif grace or waits:
        meta["deletionTimestamp"] = calls.timestamp(state.clock() + timedelta(seconds=grace or 0))
        if grace is not None:
            meta["deletionGracePeriodSeconds"] = grace
        if "generation" in meta:
            meta["generation"] += 1
    after = (meta.get("deletionTimestamp"), meta.get("deletionGracePeriodSeconds"), list(meta.get("finalizers") or []))
    removed = not waits and not grace and not (meta.get("deletionGracePeriodSeconds") and grace is None)
    if removed and call.storage == ("", "pods") and not meta.get("deletionTimestamp"):
        meta["deletionTimestamp"], meta["deletionGracePeriodSeconds"] = state.now(), 0
        meta["generation"] = meta.get("generation", 0) + 1
    return removed, before != after


def _apply_propagation(meta: Object, options: Object) -> None:
    policy = options.get("propagationPolicy")
    if policy is None and options.get("orphanDependents"):
        policy = "Orphan"
    wanted = {"Foreground": FOREGROUND, "Orphan": ORPHAN}.get(policy or "")
    finalizers = [item for item in meta.get("finalizers") or [] if item not in {FOREGROUND, ORPHAN} or policy is None]
    if wanted and wanted not in finalizers:
        finalizers.append(wanted)
    if finalizers:
        meta["finalizers"] = finalizers
    else:
        meta.pop("finalizers", None)


def _grace_seconds(call: Call, obj: Object, options: Object) -> int | None:
    """Return the grace of a graceful deletion; 0 or None deletes at once."""
    asked = options.get("gracePeriodSeconds")
    if asked is not None and asked < 0:
        asked = 1  # as the real server corrects it
    if call.storage != ("", "pods"):
        return 0 if obj["metadata"].get("finalizers") else None
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    if not spec.get("nodeName") or status.get("phase") in {"Succeeded", "Failed"}:
        return 0
    period: int = spec.get("terminationGracePeriodSeconds", 30) if asked is None else asked
    return period if period >= 0 else 1


def read_options(body: Object, query: dict[str, str]) -> Object:
    """Combine DeleteOptions from body and query; the body wins, as in the real server."""
    options = dict(body)
    if not options:
        if "gracePeriodSeconds" in query:
            options["gracePeriodSeconds"] = _number(query["gracePeriodSeconds"])
        if "propagationPolicy" in query:
            options["propagationPolicy"] = query["propagationPolicy"]
        if "orphanDependents" in query:
            options["orphanDependents"] = query["orphanDependents"] == "true"
    policy = options.get("propagationPolicy")
    if policy not in {None, "", "Foreground", "Background", "Orphan"}:
        detail = 'supported values: "Foreground", "Background", "Orphan", "nil"'
        problem = failures.FieldError("NotSupported", "propagationPolicy", policy, detail)
        raise failures.invalid("DeleteOptions", "meta.k8s.io", "", [problem])
    return options


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise failures.bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None
