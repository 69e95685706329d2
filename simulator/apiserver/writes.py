"""Create, update, patch: from a client's bytes to a stored version.

The order is the real server's: decode and default, mutating admission, the type's own preparation, validation,
validating admission, store. Admission may wait for webhooks; an update whose object changed meanwhile is tried again
on the fresh object if the client named no resourceVersion, and is a 409 if it did.
"""

import copy
from collections.abc import Callable

import msgspec

from gpuslice.devices.errors import BadQuantity
from simulator.apiserver import apply, calls, failures, names, partial, protobuf, quantities, strategies
from simulator.apiserver.calls import Call, State
from simulator.apiserver.failures import Object
from simulator.apiserver.resources import GENERATIONS
from simulator.apiserver.store import Entry

_RETRIES = 5
Transform = Callable[[Object], Object]
"""Makes the wanted object out of the present one (a copy it may change)."""


def decode_body(body: bytes, content_type: str = "application/json") -> Object:
    """Read a request body as one JSON (or YAML) object.

    Raises:
        StatusError: 400 for anything else, 415 for other formats.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind == protobuf.CONTENT_TYPE:
        return protobuf.decode(body)
    try:
        if kind in {"", "application/json", "application/x-www-form-urlencoded"} or kind.endswith("+json"):
            found = msgspec.json.decode(body)
        elif kind in {"application/yaml", "application/apply-patch+yaml"}:
            found = msgspec.yaml.decode(body)
        else:
            accepted = "application/json, application/yaml"
            message = f"the body of the request was in an unknown format - accepted media types include: {accepted}"
            raise failures.unsupported_media(message)
    except msgspec.DecodeError as error:
        raise failures.bad_request(f"couldn't get version/kind; json parse error: {error}") from error
    if not isinstance(found, dict):
        raise failures.bad_request("couldn't get version/kind; json parse error: the body is not an object")
    return found


def check_type(call: Call, obj: Object) -> None:
    """Refuse an object of another type, or without the parts every object has."""
    expected = (call.resource.api_version, call.resource.kind)
    found = (obj.get("apiVersion") or expected[0], obj.get("kind") or expected[1])
    if found != expected:
        group, _, version = str(found[0]).rpartition("/")
        message = (
            f"the object provided is unrecognized (must be of type {expected[1]}): "
            f"got {group}/{version}, Kind={found[1]}"
        )
        raise failures.bad_request(message)
    obj["apiVersion"], obj["kind"] = expected
    meta = obj.get("metadata")
    if meta is None:
        meta = obj["metadata"] = {}
    if not isinstance(meta, dict):
        raise failures.bad_request(
            f"{expected[1]} in version {call.resource.version!r} cannot be handled: metadata is not an object"
        )


def _check_namespace(call: Call, meta: Object) -> None:
    if not call.resource.namespaced:
        meta.pop("namespace", None)
        return
    if meta.get("namespace") and meta["namespace"] != call.namespace:
        raise failures.bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    meta["namespace"] = call.namespace


def _check_namespace_alive(state: State, call: Call, name: str) -> None:
    if not call.resource.namespaced or not state.protect_namespaces:
        return
    found = state.store.get(("", "namespaces"), "", call.namespace)
    if found is None:
        raise failures.not_found("namespaces", "", call.namespace)
    if found.fields.get("status.phase") == "Terminating":
        why = f"unable to create new content in namespace {call.namespace} because it is being terminated"
        cause = {
            "reason": "NamespaceTerminating",
            "message": f"namespace {call.namespace} is being terminated",
            "field": "metadata.namespace",
        }
        raise failures.forbidden(call.resource.plural, call.resource.group, name, why, causes=[cause])


def _default(call: Call, strategy: strategies.Strategy, obj: Object) -> None:
    """Decode as the real server does: defaults filled in, quantities canonical."""
    try:
        strategy.default(obj)
    except BadQuantity as error:
        kind, version = call.resource.kind, call.resource.version
        message = f'{kind} in version "{version}" cannot be handled as a {kind}: {quantities.UNREADABLE}'
        raise failures.bad_request(message) from error


def _raise_invalid(call: Call, obj: Object, problems: list[failures.FieldError]) -> None:
    if problems:
        raise failures.invalid(call.resource.kind, call.resource.group, obj["metadata"].get("name", ""), problems)


def _stamp(state: State, call: Call, meta: Object) -> None:
    """Give a new object its name, uid and time."""
    _check_namespace(call, meta)
    if call.name and not meta.get("name"):
        meta["name"] = call.name
    if meta.get("resourceVersion"):
        raise failures.StatusError(500, "", "resourceVersion should not be set on objects to be created")
    if not meta.get("name") and meta.get("generateName"):
        meta["name"] = meta["generateName"] + state.suffix()
    for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"):
        meta.pop(field, None)
    meta["uid"] = state.new_uid()
    meta["creationTimestamp"] = state.now()


async def create(state: State, call: Call, obj: Object) -> Object:
    """Create an object and return it as stored."""
    check_type(call, obj)
    meta = obj["metadata"]
    _stamp(state, call, meta)
    strategy = strategies.strategy_of(call.storage, call.resource.subresources)
    _default(call, strategy, obj)
    _check_namespace_alive(state, call, meta.get("name", ""))
    if state.admission is not None:
        mutated = await state.admission.mutate(call, "CREATE", obj, None) or obj
        if mutated is not obj:  # a webhook's patch brought something that lacks its defaults
            obj = mutated
            _default(call, strategy, obj)
    if call.storage in GENERATIONS or call.resource.custom:
        obj["metadata"]["generation"] = 1
    if call.storage == ("", "pods"):
        obj.setdefault("spec", {})
    strategy.prepare_create(obj)
    _raise_invalid(call, obj, names.validate_metadata(call.storage, obj["metadata"]) + strategy.validate(obj))
    if state.admission is not None:
        await state.admission.validate(call, "CREATE", obj, None)
    if state.store.get(call.storage, call.namespace, obj["metadata"]["name"]) is not None:
        raise failures.already_exists(call.resource.plural, call.resource.group, obj["metadata"]["name"])
    return await _store(state, call, obj, None)


async def _store(state: State, call: Call, obj: Object, old: Object | None) -> Object:
    if call.dry_run:
        return obj
    state.store.put(call.storage, obj)
    if state.after_write is not None:
        await state.after_write(call.resource, obj, old)
    return obj


def existing(state: State, call: Call) -> Entry:
    """Return the entry that the call names.

    Raises:
        StatusError: 404.
    """
    entry = state.store.get(call.storage, call.namespace, call.name)
    if entry is None:
        raise failures.not_found(call.resource.plural, call.resource.group, call.name)
    return entry


async def update(
    state: State, call: Call, transform: Transform, *, create_missing: bool = False
) -> tuple[Object, bool]:
    """Replace an object by what `transform` makes of it.

    Args:
        state: The server.
        call: Names the object; its subresource decides which part may change.
        transform: Called again when the object changed under an update that names no resourceVersion.
        create_missing: Create the object when there is none (server-side apply, PUT of leases).

    Returns:
        The object as stored, and whether it was created.
    """
    for attempt in range(_RETRIES):
        entry = state.store.get(call.storage, call.namespace, call.name)
        if entry is None:
            if not create_missing:
                raise failures.not_found(call.resource.plural, call.resource.group, call.name)
            return await create(state, call, transform({})), True
        old = call.show(entry)
        new = transform(call.show(entry))
        wanted = _check_identity(call, new, old)
        if not wanted and call.storage in strategies.CONDITIONAL_ONLY:
            detail = "must be specified for an update"
            problem = failures.FieldError("Invalid", "metadata.resourceVersion", 0, detail)
            raise failures.invalid(call.resource.plural, call.resource.group, call.name, [problem])
        result = await _update_once(state, call, new, old)
        if call.applying:
            result["metadata"]["managedFields"] = new["metadata"].get("managedFields") or []
        else:
            apply.track(state, call, result, old)
        current = state.store.get(call.storage, call.namespace, call.name)
        if current is entry:
            return await _commit(state, call, result, old), False
        if wanted or attempt == _RETRIES - 1:
            break
    raise failures.stale_write(call.resource.plural, call.resource.group, call.name)


def _check_identity(call: Call, new: Object, old: Object) -> bool:
    """Check name, namespace, uid and resourceVersion; returns whether the client named a resourceVersion."""
    check_type(call, new)
    meta, before = new["metadata"], old["metadata"]
    _check_namespace(call, meta)
    if meta.get("name", call.name) != call.name:
        message = f"the name of the object ({meta['name']}) does not match the name on the URL ({call.name})"
        raise failures.bad_request(message)
    meta["name"] = call.name
    resource = call.resource
    if meta.get("uid") and meta["uid"] != before["uid"]:
        problem = failures.FieldError("Invalid", "metadata.uid", meta["uid"], "field is immutable")
        raise failures.invalid(resource.kind, resource.group, call.name, [problem])
    version = meta.get("resourceVersion")
    if version and version != before["resourceVersion"]:
        raise failures.stale_write(resource.plural, resource.group, call.name)
    return bool(version) and version != "unset"


_SERVER_FIELDS = (
    "uid",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
)


async def _update_once(state: State, call: Call, new: Object, old: Object) -> Object:
    """Run defaults, admission and validation of one update; nothing is stored."""
    strategy = strategies.strategy_of(call.storage, call.resource.subresources)
    _default(call, strategy, new)
    if state.admission is not None:
        mutated = await state.admission.mutate(call, "UPDATE", new, old) or new
        if mutated is not new:
            new = mutated
            _default(call, strategy, new)
    new = _keep_other_parts(call, strategy, new, old)
    problems = names.validate_metadata(call.storage, new["metadata"]) + _new_finalizers(new, old)
    if call.target.subresource:
        problems += partial.validate(call, new, old)
    else:
        problems += strategy.validate_update(new, old)
    if call.storage != ("", "pods"):
        problems += strategy.validate(new)
    _raise_invalid(call, new, problems)
    if state.admission is not None:
        await state.admission.validate(call, "UPDATE", new, old)
    return new


def _new_finalizers(new: Object, old: Object) -> list[failures.FieldError]:
    if not old["metadata"].get("deletionTimestamp"):
        return []
    before = old["metadata"].get("finalizers") or []
    added = [item for item in new["metadata"].get("finalizers") or [] if item not in before]
    if not added:
        return []
    listed = ", ".join(f'"{item}"' for item in added)
    detail = "no new finalizers can be added if the object is being deleted, found new finalizers []string"
    detail += "{" + listed + "}"
    return [failures.FieldError("Forbidden", "metadata.finalizers", None, detail)]


def _keep_other_parts(call: Call, strategy: strategies.Strategy, new: Object, old: Object) -> Object:
    """Undo what this call may not change, and count the generation."""
    if call.target.subresource:
        new = partial.keep_rest(call, new, old)
    else:
        for part in (*strategy.keep, *(("status",) if strategy.status else ())):
            new.pop(part, None)
            if part in old:
                new[part] = old[part]
    meta, before = new["metadata"], old["metadata"]
    for field in _SERVER_FIELDS:
        if field in before:
            meta[field] = before[field]
        else:
            meta.pop(field, None)
    if "generation" in before and _spec(new) != _spec(old):
        meta["generation"] = before["generation"] + 1
    return new


def _spec(obj: Object) -> Object:
    return {key: value for key, value in obj.items() if key not in {"metadata", "status", "kind", "apiVersion"}}


async def _commit(state: State, call: Call, new: Object, old: Object) -> Object:
    """Store an update unless it changes nothing; an object that only waited for its finalizers goes away."""
    new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
    if new == old or call.dry_run:
        return new
    meta = new["metadata"]
    if meta.get("deletionTimestamp") and not meta.get("finalizers") and _finished_deleting(call, new):
        state.store.remove(call.storage, new)
        if state.after_write is not None:
            await state.after_write(call.resource, None, new)
        return new
    return await _store(state, call, new, old)


def _finished_deleting(call: Call, obj: Object) -> bool:
    if call.storage == ("", "namespaces"):
        return not (obj.get("spec") or {}).get("finalizers")
    return not obj["metadata"].get("deletionGracePeriodSeconds")


def check_put(state: State, call: Call, body: Object) -> None:
    """Check what a PUT promises about the object before anything else is looked at: its name and uid."""
    meta = body.get("metadata") or {}
    if isinstance(meta, dict) and meta.get("name", call.name) != call.name:
        message = f"the name of the object ({meta['name']}) does not match the name on the URL ({call.name})"
        raise failures.bad_request(message)
    entry = state.store.get(call.storage, call.namespace, call.name)
    if entry is None or not meta.get("uid"):
        return
    found = entry.decode()["metadata"]["uid"]
    if meta["uid"] != found:
        raise failed_precondition(call, f"UID in precondition: {meta['uid']}, UID in object meta: {found}")


def failed_precondition(call: Call, why: str) -> failures.StatusError:
    """409 in the words of the real server's storage layer."""
    key = "/".join(part for part in (call.resource.plural, call.namespace, call.name) if part)
    said = f"StorageError: invalid object, Code: 4, Key: /registry/{key}, ResourceVersion: 0, AdditionalErrorMsg: "
    return failures.conflict(call.resource.plural, call.resource.group, call.name, f"{said}Precondition failed: {why}")


def replacement(body: Object) -> Transform:
    """Make the transform of a PUT: the body is the object."""

    def replace(_: Object) -> Object:
        return copy.deepcopy(body)

    return replace


def now_micro(state: State) -> str:
    """Return the present as metav1.MicroTime."""
    return state.clock().strftime("%Y-%m-%dT%H:%M:%S.%fZ")


__all__ = ["calls", "create", "decode_body", "existing", "replacement", "update"]
