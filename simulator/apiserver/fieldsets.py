"""Sets of fields, as metadata.managedFields writes them (FieldsV1).

A set is a nested dictionary: `{"f:spec": {"f:replicas": {}}}`. List items are `k:{"name":"c"}` (keyed) or `v:"x"` (a
set's value); `.` means the item itself. Format: sigs.k8s.io/structured-merge-diff. Which lists are keyed comes from
the listType tags of k8s.io/api; lists of custom resources are atomic, since this server keeps no schemas.
"""

from collections.abc import Iterator

import msgspec

from simulator.apiserver.failures import Json, Object

FieldSet = dict[str, Json]

_KEYS: dict[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "imagePullSecrets": ("name",),
    "secrets": ("name",),
    "hostAliases": ("ip",),
    "podIPs": ("ip",),
    "conditions": ("type",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "ownerReferences": ("uid",),
    "schedulingGates": ("name",),
    "resourceClaims": ("name",),
    "webhooks": ("name",),
    "matchConditions": ("name",),
}
_DEFAULT_KEY_VALUES = {"protocol": "TCP"}
_SETS = frozenset({"finalizers"})
_ATOMIC = frozenset(
    {
        "nodeSelector",
        "selector",
        "labelSelector",
        "namespaceSelector",
        "objectSelector",
        "fieldRef",
        "resourceFieldRef",
        "secretKeyRef",
        "configMapKeyRef",
        "roleRef",
        "template.selector",
    }
)
_SERVER_META = frozenset(
    {"name", "namespace", "uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink",
     "deletionTimestamp", "deletionGracePeriodSeconds"}
)  # fmt: skip


def list_keys(field: str, parent: str, *, schemaless: bool) -> tuple[str, ...] | None:
    """Name the keys of a keyed list; None for atomic lists."""
    if field == "ports":
        return None if schemaless else ("port", "protocol") if parent == "spec" else ("containerPort", "protocol")
    if schemaless and field != "ownerReferences":
        return None
    return _KEYS.get(field)


def item_key(item: Object, keys: tuple[str, ...]) -> str:
    """Write a keyed list item's path element."""
    values = {key: item.get(key, _DEFAULT_KEY_VALUES.get(key)) for key in sorted(keys)}
    return "k:" + msgspec.json.encode({key: value for key, value in values.items() if value is not None}).decode()


def fields_of(obj: Object, *, schemaless: bool) -> FieldSet:
    """Return all fields that an object sets, without type meta and what only the server writes."""
    body = {key: value for key, value in obj.items() if key not in {"kind", "apiVersion"}}
    meta = {key: value for key, value in (body.pop("metadata", None) or {}).items() if key not in _SERVER_META}
    found = _of_map(body, "", schemaless)
    if meta:
        found["f:metadata"] = _of_map(meta, "metadata", schemaless)
    return found


def _of_map(value: Object, parent: str, schemaless: bool) -> FieldSet:
    return {f"f:{key}": _of_field(key, item, parent, schemaless) for key, item in value.items() if item is not None}


def _of_field(field: str, value: Json, parent: str, schemaless: bool) -> FieldSet:
    if isinstance(value, dict) and field not in _ATOMIC:
        return _of_map(value, field, schemaless)
    if isinstance(value, list):
        if field in _SETS:
            return {"v:" + msgspec.json.encode(item).decode(): {} for item in value}
        keys = list_keys(field, parent, schemaless=schemaless)
        if keys and all(isinstance(item, dict) for item in value):
            return {item_key(item, keys): {".": {}, **_of_map(item, field, schemaless)} for item in value}
    return {}


def union(left: FieldSet, right: FieldSet) -> FieldSet:
    """Return what is in either set."""
    result = dict(left)
    for key, sub in right.items():
        result[key] = union(left[key], sub) if key in left else sub
    return result


def difference(left: FieldSet, right: FieldSet) -> FieldSet:
    """Return what is in the left set only; a field with children counts by its children."""
    result: FieldSet = {}
    for key, sub in left.items():
        if key not in right:
            result[key] = sub
        elif sub:
            rest = difference(sub, right[key])
            if rest and (rest.keys() != {"."} or not right[key]):
                result[key] = rest
    return result


def intersection(left: FieldSet, right: FieldSet) -> FieldSet:
    """Return what is in both sets."""
    result: FieldSet = {}
    for key, sub in left.items():
        if key in right:
            both = intersection(sub, right[key])
            if both or not sub or not right[key]:
                result[key] = both
    return result


def paths(fields: FieldSet, prefix: str = "") -> Iterator[str]:
    """Write each leaf as people read it: `.spec.containers[name="c"].image`."""
    for key, sub in fields.items():
        here = prefix + _shown(key)
        if key == "." or not sub:
            yield prefix if key == "." else here
        else:
            yield from paths(sub, here)


def _shown(key: str) -> str:
    kind, _, text = key.partition(":")
    if kind == "f":
        return f".{text}"
    if kind == "k":
        pairs = msgspec.json.decode(text).items()
        return "[" + ",".join(f"{name}={msgspec.json.encode(value).decode()}" for name, value in pairs) + "]"
    return f"[={text}]"


def changed(new: Object, old: Object, *, schemaless: bool) -> FieldSet:
    """Return the fields of `new` whose value is not that of `old`."""
    mine, theirs = fields_of(new, schemaless=schemaless), fields_of(old, schemaless=schemaless)
    return _changed(mine, theirs, new, old)


def _changed(mine: FieldSet, theirs: FieldSet, new: Json, old: Json) -> FieldSet:
    result: FieldSet = {}
    for key, sub in mine.items():
        if key == ".":
            continue
        if key not in theirs:
            result[key] = sub
            continue
        here, there = value_at(new, key), value_at(old, key)
        if here == there:
            continue
        if not sub:
            result[key] = {}
            continue
        rest = _changed(sub, theirs[key], here, there)
        if rest:
            result[key] = rest
    return result


def value_at(owner: Json, key: str) -> Json:
    """Follow one path element; None where it leads nowhere."""
    kind, _, text = key.partition(":")
    if kind == "f":
        return owner.get(text) if isinstance(owner, dict) else None
    if not isinstance(owner, list):
        return None
    wanted = msgspec.json.decode(text)
    if kind == "v":
        return wanted if wanted in owner else None
    return next((item for item in owner if _has_key(item, wanted)), None)


def _has_key(item: Json, wanted: Object) -> bool:
    return isinstance(item, dict) and all(
        item.get(key, _DEFAULT_KEY_VALUES.get(key)) == value for key, value in wanted.items()
    )


def remove(owner: Json, fields: FieldSet) -> None:
    """Delete fields from an object in place; an item goes whole when the set holds the item itself."""
    for key, sub in fields.items():
        kind, _, text = key.partition(":")
        if kind == "f" and isinstance(owner, dict):
            if not sub:
                owner.pop(text, None)
            elif text in owner:
                remove(owner[text], sub)
                if owner[text] in ({}, []):
                    del owner[text]
        elif isinstance(owner, list) and key != ".":
            found = value_at(owner, key)
            if found is None:
                continue
            if kind == "v" or "." in sub:
                owner.remove(found)
            else:
                remove(found, sub)
