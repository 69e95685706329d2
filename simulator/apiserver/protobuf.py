r"""Protobuf request bodies of the few types that Go clients insist on sending that way.

kubectl and Helm send typed built-in objects as `application/vnd.kubernetes.protobuf` whatever the server prefers;
answers may be JSON. The envelope is `k8s\0` and a runtime.Unknown. Field numbers are those of the published .proto
files of Kubernetes 1.34; other types are refused with 415.
"""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from simulator.apiserver.failures import Json, Object, bad_request, unsupported_media

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"

Kind = Literal["text", "bytes", "number", "flag", "message", "map", "bytesmap", "skip"]


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    kind: Kind = "text"
    message: str = ""
    repeated: bool = False


_META: dict[int, _Field] = {
    1: _Field("name"),
    2: _Field("generateName"),
    3: _Field("namespace"),
    5: _Field("uid"),
    6: _Field("resourceVersion"),
    7: _Field("generation", "number"),
    11: _Field("labels", "map"),
    12: _Field("annotations", "map"),
    13: _Field("ownerReferences", "message", "OwnerReference", repeated=True),
    14: _Field("finalizers", repeated=True),
}
_METADATA = _Field("metadata", "message", "ObjectMeta")

_MESSAGES: dict[str, dict[int, _Field]] = {
    "ObjectMeta": _META,
    "OwnerReference": {
        1: _Field("kind"),
        3: _Field("name"),
        4: _Field("uid"),
        5: _Field("apiVersion"),
        6: _Field("controller", "flag"),
        7: _Field("blockOwnerDeletion", "flag"),
    },
    "Namespace": {1: _METADATA},
    "ConfigMap": {
        1: _METADATA,
        2: _Field("data", "map"),
        3: _Field("binaryData", "bytesmap"),
        4: _Field("immutable", "flag"),
    },
    "Secret": {
        1: _METADATA,
        2: _Field("data", "bytesmap"),
        3: _Field("type"),
        4: _Field("stringData", "map"),
        5: _Field("immutable", "flag"),
    },
    "ServiceAccount": {1: _METADATA},
    "Eviction": {1: _METADATA, 2: _Field("deleteOptions", "message", "DeleteOptions")},
    "DeleteOptions": {
        1: _Field("gracePeriodSeconds", "number"),
        2: _Field("preconditions", "message", "Preconditions"),
        3: _Field("orphanDependents", "flag"),
        4: _Field("propagationPolicy"),
        5: _Field("dryRun", repeated=True),
    },
    "Preconditions": {1: _Field("uid"), 2: _Field("resourceVersion")},
    "TokenRequest": {1: _METADATA, 2: _Field("spec", "message", "TokenRequestSpec")},
    "TokenRequestSpec": {1: _Field("audiences", repeated=True), 4: _Field("expirationSeconds", "number")},
    "SelfSubjectReview": {1: _METADATA},
    "SelfSubjectAccessReview": {1: _METADATA, 2: _Field("spec", "message", "SelfSubjectAccessReviewSpec")},
    "SelfSubjectAccessReviewSpec": {1: _Field("resourceAttributes", "message", "ResourceAttributes")},
    "ResourceAttributes": {
        1: _Field("namespace"),
        2: _Field("verb"),
        3: _Field("group"),
        4: _Field("version"),
        5: _Field("resource"),
        6: _Field("subresource"),
        7: _Field("name"),
    },
}
_TOP = frozenset(
    {"Namespace", "ConfigMap", "Secret", "ServiceAccount", "Eviction", "DeleteOptions", "TokenRequest",
     "SelfSubjectReview", "SelfSubjectAccessReview"}
)  # fmt: skip


def decode(body: bytes) -> Object:
    """Read a protobuf request body as the object that its JSON would be.

    Raises:
        StatusError: 415 for a type that is not in the table, 400 for bytes that are no message.
    """
    if not body.startswith(_MAGIC):
        raise bad_request("the body does not begin with the protobuf envelope of Kubernetes")
    try:
        envelope = dict(_fields(body[len(_MAGIC) :]))
        type_meta = {number: _text(value) for number, value in _fields(_bytes(envelope.get(1, b"")))}
        kind = type_meta.get(2, "")
        if kind not in _TOP:
            known = ", ".join(sorted(_TOP))
            raise unsupported_media(f"this server reads protobuf of {known}, not of {kind or 'nothing'}; send JSON")
        found = _message(kind, _bytes(envelope.get(2, b"")))
    except (ValueError, IndexError) as error:
        raise bad_request(f"the protobuf body cannot be read: {error}") from error
    return {"apiVersion": type_meta.get(1, ""), "kind": kind, **found}


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (field number, value): integers for varints, bytes for the rest."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
        elif wire == 2:
            size, at = _varint(data, at)
            if at + size > len(data):
                raise ValueError("a field is cut off")
            yield number, data[at : at + size]
            at += size
        elif wire in {1, 5}:
            at += 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire}")


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where bytes belong")
    return value


def _text(value: int | bytes) -> str:
    return _bytes(value).decode()


def _message(name: str, data: bytes) -> Object:
    table = _MESSAGES[name]
    result: Object = {}
    for number, value in _fields(data):
        field = table.get(number)
        if field is None:
            continue
        if field.kind in {"map", "bytesmap"}:
            entry = dict(_fields(_bytes(value)))
            raw = _bytes(entry.get(2, b""))
            item = base64.b64encode(raw).decode() if field.kind == "bytesmap" else raw.decode()
            result.setdefault(field.name, {})[_text(entry.get(1, b""))] = item
        elif field.repeated:
            result.setdefault(field.name, []).append(_single(field, value))
        else:
            result[field.name] = _single(field, value)
    return {key: value for key, value in result.items() if value not in ("", {})}


def _single(field: _Field, value: int | bytes) -> Json:
    if field.kind == "message":
        return _message(field.message, _bytes(value))
    if field.kind in {"number", "flag"}:
        if isinstance(value, bytes):
            raise ValueError("bytes where a number belongs")
        signed = value - (1 << 64) if value >= 1 << 63 else value
        return bool(value) if field.kind == "flag" else signed
    return _text(value)
