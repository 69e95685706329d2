"""Events have two faces: core v1 and events.k8s.io v1. They are stored as core events.

Field mapping: k8s.io/kubernetes/pkg/apis/events/v1/conversion.go.
"""

import msgspec

from simulator.apiserver.failures import Object
from simulator.apiserver.resources import Resource
from simulator.apiserver.store import Entry

_CORE_TO_NEW = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_NEW_TO_CORE = {new: core for core, new in _CORE_TO_NEW.items()}
GROUP = "events.k8s.io"


def to_core(event: Object) -> Object:
    """Rename the fields of an events.k8s.io event to those of a core event."""
    return {_NEW_TO_CORE.get(key, key): value for key, value in event.items()}


def from_core(event: Object) -> Object:
    """Rename the fields of a core event to those of an events.k8s.io event."""
    return {_CORE_TO_NEW.get(key, key): value for key, value in event.items()}


def shown(resource: Resource, entry: Entry) -> Object:
    """Decode an entry as the type in the request path shows it, type meta included."""
    body = entry.decode()
    if resource.group == GROUP:
        body = from_core(body)
    return {"kind": resource.kind, "apiVersion": resource.api_version, **body}


def tail(resource: Resource, entry: Entry) -> bytes:
    """Return an entry's bytes as the type in the request path shows it: stored ones but for the second face."""
    if resource.group != GROUP:
        return entry.tail
    return b"," + msgspec.json.encode(from_core(entry.decode()))[1:]
