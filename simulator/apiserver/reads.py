"""Get and list: resourceVersion rules, paging, and lists assembled from stored bytes."""

import base64
from itertools import islice

import msgspec

from simulator.apiserver import eventviews, selectors
from simulator.apiserver.calls import Call, State
from simulator.apiserver.failures import FieldError, StatusError, bad_request, gone, invalid
from simulator.apiserver.resources import Resource
from simulator.apiserver.store import Entry


class _Token(msgspec.Struct):
    """The continue token: where a list stopped and the revision that all its pages show."""

    v: str
    rv: int
    start: str


class ListQuery(msgspec.Struct):
    """The query of a list, checked."""

    selector: selectors.Selector
    limit: int
    start: str
    at: int | None
    revision: int
    """The list's metadata.resourceVersion."""


def read_selector(call: Call, query: dict[str, str]) -> selectors.Selector:
    """Read both selectors; a name in the path selects that one object."""
    known = selectors.selectable_fields(call.storage)
    labels = selectors.parse_labels(query.get("labelSelector", ""))
    fields = selectors.parse_fields(query.get("fieldSelector", ""), known)
    if call.name:
        fields += (selectors.FieldRequirement("metadata.name", True, call.name),)
    return selectors.Selector(labels, fields)


def _option_error(field: str, value: object, kind: str, detail: str) -> StatusError:
    return invalid("ListOptions", "meta.k8s.io", "", [FieldError(kind, field, value, detail)])


def parse_revision(text: str) -> int:
    """Read a resourceVersion.

    Raises:
        StatusError: 400/422 when it is not a number.
    """
    if not text.isdigit():
        raise bad_request(
            f'invalid resource version: resourceVersion: Invalid value: "{text}": {_unparsed("Uint", text)}'
        )
    return int(text)


def read_list_query(state: State, call: Call, query: dict[str, str]) -> ListQuery:
    """Check the options of a list.

    Raises:
        StatusError: as the real server refuses them.
    """
    version, match = query.get("resourceVersion", ""), query.get("resourceVersionMatch", "")
    token = query.get("continue", "")
    limit = _limit(query.get("limit", ""))
    _check_match(version, match, token)
    selector = read_selector(call, query)
    now = state.store.revision
    if token:
        found = _read_token(token)
        if found.rv < state.store.collection(call.storage).compacted:
            raise _expired_token()
        return ListQuery(selector, limit, found.start, found.rv, found.rv)
    if version in {"", "0"}:
        return ListQuery(selector, limit, "", None, now)
    revision = parse_revision(version)
    if revision > now:
        message = f"Timeout: Too large resource version: {revision}, current: {now}"
        cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
        raise StatusError(504, "Timeout", message, details={"causes": [cause]}, retry_after=1)
    if match == "Exact" or (limit and not match):
        if revision < state.store.collection(call.storage).compacted:
            raise gone("The resourceVersion for the provided list is too old.")
        return ListQuery(selector, limit, "", revision, revision)
    return ListQuery(selector, limit, "", None, now)


def _unparsed(kind: str, text: str) -> str:
    """Word a number that cannot be read as Go does."""
    return f'strconv.Parse{kind}: parsing "{text}": invalid syntax'


def _limit(text: str) -> int:
    if not text:
        return 0
    try:
        return max(int(text), 0)
    except ValueError:
        raise bad_request(_unparsed("Int", text)) from None


def _check_match(version: str, match: str, token: str) -> None:
    if not match:
        if token and version not in {"", "0"}:
            raise bad_request("specifying resource version is not allowed when using continue")
        return
    field = "resourceVersionMatch"
    if token:
        raise _option_error(field, match, "Forbidden", "resourceVersionMatch is forbidden when continue is provided")
    if not version:
        raise _option_error(
            field, match, "Forbidden", "resourceVersionMatch is forbidden unless resourceVersion is provided"
        )
    if match not in {"Exact", "NotOlderThan"}:
        raise _option_error(field, match, "NotSupported", 'supported values: "Exact", "NotOlderThan", ""')
    if match == "Exact" and version == "0":
        raise _option_error(
            field, match, "Forbidden", 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
        )


def _read_token(text: str) -> _Token:
    try:
        padded = text + "=" * (-len(text) % 4)
        return msgspec.json.decode(base64.urlsafe_b64decode(padded), type=_Token)
    except (ValueError, msgspec.DecodeError):
        raise bad_request("invalid continue token: continue key is not valid: this server did not issue it") from None


def _expired_token() -> StatusError:
    return gone(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list "
        "without the continue parameter, or use the continue token in this response to retrieve the remainder of the "
        "results. Continuing with the provided token results in an inconsistent list - objects that were created, "
        "modified, or deleted between the time the first chunk was returned and now may show up in the list."
    )


def list_page(state: State, call: Call, query: ListQuery) -> tuple[list[Entry], dict[str, object]]:
    """Return one page and the list's metadata."""
    collection = state.store.collection(call.storage)
    found = collection.select(call.namespace, query.selector, start=query.start, at=query.at)
    if not query.limit:
        return list(found), {"resourceVersion": str(query.revision)}
    page = list(islice(found, query.limit + 1))
    metadata: dict[str, object] = {"resourceVersion": str(query.revision)}
    if len(page) > query.limit:
        page = page[: query.limit]
        token = _Token("meta.k8s.io/v1", query.revision, page[-1].key)
        metadata["continue"] = base64.urlsafe_b64encode(msgspec.json.encode(token)).decode().rstrip("=")
        if not query.selector:
            metadata["remainingItemCount"] = 1 + sum(1 for _ in found)
    return page, metadata


def encode_list(resource: Resource, page: list[Entry], metadata: dict[str, object]) -> list[bytes]:
    """Assemble a list's bytes; items of built-in types carry no type meta, custom ones do."""
    head = b'{"kind":%s,"apiVersion":%s,"metadata":%s,"items":[' % (
        msgspec.json.encode(resource.list_name),
        msgspec.json.encode(resource.api_version),
        msgspec.json.encode(metadata),
    )
    if resource.custom:
        items = b",".join([resource.head + entry.tail for entry in page])
    else:
        items = b",".join([b"{" + eventviews.tail(resource, entry)[1:] for entry in page])
    return [head, items, b"]}"]
