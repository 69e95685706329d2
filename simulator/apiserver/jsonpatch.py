"""JSON Patch (RFC 6902) and JSON Merge Patch (RFC 7386) on decoded objects."""

import copy

from simulator.apiserver.failures import Json, Object, StatusError, bad_request


class _Bad(Exception):
    """An operation that cannot be applied."""


def rejected(why: str) -> StatusError:
    """422 as the real server words a JSON patch that cannot be applied, its `test` included."""
    del why  # the real server keeps the reason to itself
    return StatusError(422, "Invalid", "the server rejected our request due to an error in our request", details={})


def apply_json_patch(target: Object, operations: object) -> Object:
    """Apply all operations or none.

    Raises:
        StatusError: 400 for something that is not a patch, 422 when an operation (or a `test`) fails.
    """
    if not isinstance(operations, list):
        raise bad_request("error decoding patch: a JSON patch is a list of operations")
    result: Json = copy.deepcopy(target)
    for operation in operations:
        if not isinstance(operation, dict) or "op" not in operation or not isinstance(operation.get("path"), str):
            raise bad_request(f"error decoding patch: {operation!r:.80} is not an operation")
        try:
            result = _apply(result, operation)
        except _Bad as error:
            raise rejected(str(error)) from error
    if not isinstance(result, dict):
        raise rejected("the patched document is not an object")
    return result


def _apply(document: Json, operation: Object) -> Json:
    path = operation["path"]
    match operation["op"]:
        case "add":
            return _add(document, path, copy.deepcopy(operation.get("value")))
        case "remove":
            _remove(document, path, "remove")
        case "replace":
            if path == "":
                return copy.deepcopy(operation.get("value"))
            _put(document, path, copy.deepcopy(operation.get("value")), insert=False)
        case "move":
            source = operation.get("from", "")
            value = _lookup(document, source, "move")
            _remove(document, source, "move")
            return _add(document, path, value)
        case "copy":
            return _add(document, path, copy.deepcopy(_lookup(document, operation.get("from", ""), "copy")))
        case "test":
            _test(document, path, operation.get("value"))
        case unknown:
            raise _Bad(f"Unexpected kind: {unknown}")
    return document


def _tokens(path: str) -> list[str]:
    if path and not path.startswith("/"):
        raise _Bad(f"path {path!r} does not begin with a slash")
    return [token.replace("~1", "/").replace("~0", "~") for token in path.split("/")[1:]]


def _step(container: Json, token: str) -> Json:
    if isinstance(container, dict):
        return container[token]
    if isinstance(container, list):
        index = int(token)
        if index < 0:
            raise IndexError(token)
        return container[index]
    raise KeyError(token)


def _lookup(document: Json, path: str, op: str) -> Json:
    found = document
    try:
        for token in _tokens(path):
            found = _step(found, token)
    except (KeyError, IndexError, ValueError):
        raise _Bad(f"{op} operation does not apply: doc is missing key: {path}: missing value") from None
    return found


def _parent(document: Json, path: str, op: str) -> tuple[Json, str]:
    tokens = _tokens(path)
    found = document
    try:
        for token in tokens[:-1]:
            found = _step(found, token)
    except (KeyError, IndexError, ValueError):
        raise _Bad(f'{op} operation does not apply: doc is missing path: "{path}": missing value') from None
    if not isinstance(found, (dict, list)):
        raise _Bad(f'{op} operation does not apply: doc is missing path: "{path}": missing value')
    return found, tokens[-1]


def _put(document: Json, path: str, value: Json, *, insert: bool) -> None:
    op = "add" if insert else "replace"
    parent, token = _parent(document, path, op)
    if isinstance(parent, dict):
        parent[token] = value
        return
    if token == "-" and insert:
        parent.append(value)
        return
    if not token.isdigit() or int(token) > len(parent) - (not insert):
        raise _Bad(f"{op} operation does not apply: doc is missing path: Unable to access invalid index: {token}")
    if insert:
        parent.insert(int(token), value)
    else:
        parent[int(token)] = value


def _add(document: Json, path: str, value: Json) -> Json:
    if path == "":
        return value
    _put(document, path, value, insert=True)
    return document


def _remove(document: Json, path: str, op: str) -> None:
    if path == "":
        raise _Bad("remove operation does not apply: the whole document cannot be removed")
    parent, token = _parent(document, path, op)
    try:
        if isinstance(parent, dict):
            del parent[token]
        else:
            del parent[int(token)]
    except (KeyError, IndexError, ValueError):
        missing = f"Unable to remove nonexistent key: {token}: missing value"
        raise _Bad(f"{op} operation does not apply: doc is missing path: {path}: {missing}") from None


def _test(document: Json, path: str, expected: Json) -> None:
    try:
        found = _lookup(document, path, "test")
    except _Bad:
        found = None
    if found != expected or isinstance(found, bool) is not isinstance(expected, bool):
        raise _Bad(f"testing value {path} failed: test failed")


def apply_merge_patch(target: Json, patch: Json) -> Json:
    """Merge as RFC 7386: null deletes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = apply_merge_patch(result.get(key), value)
    return result
