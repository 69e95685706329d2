"""Server-side apply: merge what a manager declares, drop what it no longer declares, report conflicts.

Semantics: "Server-Side Apply" of the Kubernetes documentation. Field ownership is recorded from an object's first apply
on; what was there before belongs to the manager `before-first-apply`, as in the real server for objects without
managedFields.
"""

import copy

from simulator.apiserver import failures, fieldsets
from simulator.apiserver.calls import Call, State
from simulator.apiserver.failures import Json, Object, StatusError
from simulator.apiserver.fieldsets import FieldSet


def apply(state: State, call: Call, live: Object, config: Object, *, force: bool) -> Object:
    """Return the object as it is after applying `config` to `live` ({} creates).

    Raises:
        StatusError: 400 for a config with managedFields or without a manager, 409 when another manager owns a field.
    """
    if not call.field_manager:
        raise failures.bad_request('PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value')
    if (config.get("metadata") or {}).get("managedFields"):
        raise failures.bad_request("metadata.managedFields must be nil")
    schemaless = call.resource.custom
    entries = _entries(state, call, live, schemaless=schemaless)
    wanted = fieldsets.fields_of(config, schemaless=schemaless)
    mine = next((entry for entry in entries if _is_mine(entry, call)), None)
    others = [entry for entry in entries if entry is not mine]
    _settle_conflicts(call, live, config, wanted, others, force=force)
    merged: Object = _merge(live, config, "", schemaless)
    if mine is not None:
        kept = wanted
        for entry in others:
            kept = fieldsets.union(kept, entry["fieldsV1"])
        fieldsets.remove(merged, fieldsets.difference(mine["fieldsV1"], kept))
    entry = _entry(state, call, "Apply", wanted)
    if mine is not None and mine["fieldsV1"] == wanted and merged == live:
        entry = mine
    meta = merged.setdefault("metadata", {})
    meta["managedFields"] = [item for item in others if item["fieldsV1"]] + [entry]
    return merged


def _is_mine(entry: Object, call: Call) -> bool:
    return (
        entry.get("manager") == call.field_manager
        and entry.get("operation") == "Apply"
        and entry.get("subresource", "") == call.target.subresource
    )


def _entries(state: State, call: Call, live: Object, *, schemaless: bool) -> list[Object]:
    found = copy.deepcopy((live.get("metadata") or {}).get("managedFields") or [])
    if not found and live:
        first = _entry(state, call, "Update", fieldsets.fields_of(live, schemaless=schemaless))
        return [first | {"manager": "before-first-apply"}]
    return found


def _entry(state: State, call: Call, operation: str, fields: FieldSet) -> Object:
    entry: Object = {
        "manager": call.field_manager,
        "operation": operation,
        "apiVersion": call.resource.api_version,
        "time": state.now(),
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }
    if call.target.subresource:
        entry["subresource"] = call.target.subresource
    return entry


def _settle_conflicts(
    call: Call, live: Object, config: Object, wanted: FieldSet, others: list[Object], *, force: bool
) -> None:
    """Find fields that others own with another value; force takes them over."""
    schemaless = call.resource.custom
    differing = fieldsets.changed(config, live, schemaless=schemaless)
    causes: list[Object] = []
    for entry in others:
        contested = fieldsets.intersection(fieldsets.intersection(entry["fieldsV1"], wanted), differing)
        if not contested:
            continue
        if force:
            entry["fieldsV1"] = fieldsets.difference(entry["fieldsV1"], contested)
            continue
        who = f'conflict with "{entry["manager"]}"'
        if entry.get("operation") == "Update":
            who += f" using {entry['apiVersion']}"
        causes += [
            {"reason": "FieldManagerConflict", "message": who, "field": path} for path in fieldsets.paths(contested)
        ]
    if causes:
        raise _conflict(causes)


def _conflict(causes: list[Object]) -> StatusError:
    plural = "s" if len(causes) > 1 else ""
    said = ", ".join(f"{cause['message']}: {cause['field']}" for cause in causes)
    message = f"Apply failed with {len(causes)} conflict{plural}: {said}"
    return StatusError(409, "Conflict", message, details={"causes": causes})


def _merge(live: Json, config: Json, field: str, schemaless: bool) -> Json:
    if not isinstance(live, dict) or not isinstance(config, dict):
        return copy.deepcopy(config)
    result = dict(live)
    for key, value in config.items():
        if value is None:
            continue
        if isinstance(value, dict) and isinstance(result.get(key), dict) and not _atomic(key):
            result[key] = _merge(result[key], value, key, schemaless)
        elif isinstance(value, list) and isinstance(result.get(key), list):
            result[key] = _merge_list(result[key], value, key, field, schemaless)
        else:
            result[key] = copy.deepcopy(value)
    return copy.deepcopy(result) if not field else result


def _atomic(key: str) -> bool:
    return not fieldsets.fields_of({key: {"x": 1}}, schemaless=False)[f"f:{key}"]


def _merge_list(live: list[Json], config: list[Json], field: str, parent: str, schemaless: bool) -> list[Json]:
    if field == "finalizers":
        return live + [item for item in config if item not in live]
    keys = fieldsets.list_keys(field, parent, schemaless=schemaless)
    if keys is None:
        return copy.deepcopy(config)
    result = list(live)
    for item in config:
        found = fieldsets.value_at(result, fieldsets.item_key(item, keys))
        if found is None:
            result.append(copy.deepcopy(item))
        else:
            result[next(i for i, old in enumerate(result) if old is found)] = _merge(found, item, field, schemaless)
    return result


def track(state: State, call: Call, new: Object, old: Object) -> None:
    """Note in managedFields what an ordinary write changed, if ownership of this object is recorded at all."""
    entries = (old.get("metadata") or {}).get("managedFields")
    if not entries:
        new["metadata"].pop("managedFields", None)
        return
    if new["metadata"].get("managedFields") == []:
        del new["metadata"]["managedFields"]
        return
    schemaless = call.resource.custom
    mine = fieldsets.changed(new, old, schemaless=schemaless)
    present = fieldsets.fields_of(new, schemaless=schemaless)
    kept = []
    found = False
    for entry in copy.deepcopy(entries):
        own = (
            entry["manager"] == call.field_manager
            and entry["operation"] == "Update"
            and entry.get("subresource", "") == call.target.subresource
        )
        fields = fieldsets.intersection(entry["fieldsV1"], present)
        fields = fieldsets.union(fields, mine) if own else fieldsets.difference(fields, mine)
        if own and mine:
            entry["time"] = state.now()
        found = found or own
        if fields:
            kept.append(entry | {"fieldsV1": fields})
    if mine and not found:
        kept.append(_entry(state, call, "Update", mine))
    new["metadata"]["managedFields"] = kept
