"""Strategic merge patch: lists of objects merge by key.

The keys are the `patchMergeKey` tags of k8s.io/api's Go types, the directives those of the community document
"strategic-merge-patch". Fields are found by name; where one name has two meanings, the parent's name decides.
"""

import copy

from simulator.apiserver.failures import Json, Object, StatusError, bad_request

MERGE_KEYS: dict[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "imagePullSecrets": "name",
    "secrets": "name",
    "hostAliases": "ip",
    "podIPs": "ip",
    "hostIPs": "ip",
    "conditions": "type",
    "addresses": "type",
    "topologySpreadConstraints": "topologyKey",
    "ownerReferences": "uid",
    "schedulingGates": "name",
    "resourceClaims": "name",
    "webhooks": "name",
    "matchConditions": "name",
}
_PORT_KEYS = {"spec": "port"}  # Service.spec.ports; container ports are keyed by containerPort

PRIMITIVE_SETS = frozenset({"finalizers", "podCIDRs"})
_DIRECTIVES = ("$patch", "$retainKeys", "$setElementOrder/", "$deleteFromPrimitiveList/")


def merge_key(field: str, parent: str) -> str | None:
    """Name the key by which a list of objects merges; None for lists that are replaced whole."""
    if field == "ports":
        return _PORT_KEYS.get(parent, "containerPort")
    if field == "addresses" and parent != "status":
        return None
    return MERGE_KEYS.get(field)


def apply_strategic_patch(target: Object, patch: object) -> Object:
    """Apply a strategic merge patch.

    Raises:
        StatusError: 400 when the patch is no object, 500 (as the real server) when a list item lacks its merge key.
    """
    if not isinstance(patch, dict):
        raise bad_request("error decoding patch: a strategic merge patch is an object")
    return _merge_map(target, patch, "")


def _merge_map(target: Object, patch: Object, parent: str) -> Object:
    if patch.get("$patch") == "replace":
        whole: Object = _without_directives(patch)
        return whole
    if patch.get("$patch") == "delete":
        return {}
    result = dict(target)
    if "$retainKeys" in patch:
        result = {key: value for key, value in result.items() if key in patch["$retainKeys"]}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            field = key.partition("/")[2]
            result[field] = [item for item in result.get(field) or [] if item not in value]
        elif not key.startswith("$"):
            _merge_field(result, key, value, parent)
    for key, order in patch.items():
        if key.startswith("$setElementOrder/"):
            _reorder(result, key.partition("/")[2], order, target, parent)
    return result


def _merge_field(result: Object, key: str, value: Json, parent: str) -> None:
    if value is None:
        result.pop(key, None)
    elif isinstance(value, dict):
        old = result.get(key)
        result[key] = _merge_map(old if isinstance(old, dict) else {}, value, key)
    elif isinstance(value, list):
        result[key] = _merge_list(result.get(key) or [], value, key, parent)
    else:
        result[key] = value


def _merge_list(target: list[Json], patch: list[Json], field: str, parent: str) -> list[Json]:
    if field in PRIMITIVE_SETS:
        merged = target + [item for item in patch if item not in target]
        return _in_order(merged, patch, target, None)
    key = merge_key(field, parent)
    if key is None or not all(isinstance(item, dict) for item in patch):
        return [_without_directives(item) if isinstance(item, dict) else item for item in patch]
    if any(item.get("$patch") == "replace" for item in patch):
        return [_without_directives(item) for item in patch if item.get("$patch") != "replace"]
    result = list(target)
    for item in patch:
        if key not in item:
            raise StatusError(500, "", f"map: {item!r:.120} does not contain declared merge key: {key}")
        at = next((i for i, old in enumerate(result) if old.get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            if at is not None:
                del result[at]
        elif at is None:
            result.append(_merge_map({}, item, field))
        else:
            result[at] = _merge_map(result[at], item, field)
    return _in_order(result, patch, target, key)


def _in_order(merged: list[Json], wanted: list[Json], before: list[Json], key: str | None) -> list[Json]:
    """Order a merged list: what the patch names in the patch's order, the rest in its old order between.

    As apimachinery's mergeSortedSlice: an old element goes first only where both are known to be in that order.
    """

    def name(item: Json) -> Json:
        return item.get(key) if key is not None and isinstance(item, dict) else item

    order, old = [name(item) for item in wanted], [name(item) for item in before]
    right = sorted((item for item in merged if name(item) in order), key=lambda item: order.index(name(item)))
    left = sorted((item for item in merged if name(item) not in order), key=lambda item: old.index(name(item)))
    result: list[Json] = []
    while left and right:
        first, second = name(left[0]), name(right[0])
        before_it = first in old and second in old and old.index(first) < old.index(second)
        result.append(left.pop(0) if before_it else right.pop(0))
    return result + left + right


def _reorder(result: Object, field: str, order: list[Json], before: Object, parent: str) -> None:
    items = result.get(field)
    if isinstance(items, list):
        result[field] = _in_order(items, order, before.get(field) or items, merge_key(field, parent))


def _without_directives(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _without_directives(item) for key, item in value.items() if not key.startswith(_DIRECTIVES)}
    if isinstance(value, list):
        return [_without_directives(item) for item in value]
    return copy.deepcopy(value)
