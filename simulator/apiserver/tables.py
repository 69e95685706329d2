"""Tables: the server-side columns of `kubectl get`."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from simulator.apiserver.failures import Object
from simulator.apiserver.resources import Resource
from simulator.apiserver.store import Entry
from simulator.apiserver.wire import Request

Columns = tuple[tuple[str, str, int], ...]
"""Name, type and priority (0: always shown, 1: `-o wide`)."""


def wanted(request: Request) -> bool:
    """Tell whether the client would rather have a table."""
    accept = request.headers.get("accept", "")
    return "as=Table" in accept and "g=meta.k8s.io" in accept


def age(text: str | None, now: datetime) -> str:
    """Write the time since a timestamp as kubectl does: the largest one or two units."""
    if not text:
        return "<unknown>"
    seconds = int((now - datetime.fromisoformat(text).astimezone(UTC)).total_seconds())
    if seconds < 120:
        return f"{max(seconds, 0)}s"
    minutes = seconds // 60
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    hours = minutes // 60
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    days = hours // 24
    return f"{days}d{hours % 24}h" if days < 8 and hours % 24 else f"{days}d"


def _pod_status(pod: Object) -> str:
    meta, status = pod["metadata"], pod.get("status") or {}
    if meta.get("deletionTimestamp"):
        return "Terminating"
    for container in status.get("containerStatuses") or []:
        state = container.get("state") or {}
        for name in ("waiting", "terminated"):
            if (state.get(name) or {}).get("reason"):
                return str(state[name]["reason"])
    if any(c.get("reason") == "SchedulingGated" for c in status.get("conditions") or []):
        return "SchedulingGated"
    return str(status.get("reason") or status.get("phase") or "Unknown")


def _pod_cells(pod: Object, now: datetime) -> list[Any]:
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    statuses = status.get("containerStatuses") or []
    ready = sum(1 for item in statuses if item.get("ready"))
    restarts = sum(item.get("restartCount", 0) for item in statuses)
    return [
        pod["metadata"]["name"],
        f"{ready}/{len(spec.get('containers') or [])}",
        _pod_status(pod),
        str(restarts),
        age(pod["metadata"].get("creationTimestamp"), now),
        status.get("podIP") or "<none>",
        spec.get("nodeName") or "<none>",
        status.get("nominatedNodeName") or "<none>",
        "<none>",
    ]


def _node_cells(node: Object, now: datetime) -> list[Any]:
    conditions = {c.get("type"): c.get("status") for c in (node.get("status") or {}).get("conditions") or []}
    state = {"True": "Ready", None: "Unknown"}.get(conditions.get("Ready"), "NotReady")
    if (node.get("spec") or {}).get("unschedulable"):
        state += ",SchedulingDisabled"
    prefix = "node-role.kubernetes.io/"
    roles = sorted(k[len(prefix) :] for k in node["metadata"].get("labels") or {} if k.startswith(prefix))
    info = (node.get("status") or {}).get("nodeInfo") or {}
    version = info.get("kubeletVersion", "")
    return [
        node["metadata"]["name"],
        state,
        ",".join(roles) or "<none>",
        age(node["metadata"].get("creationTimestamp"), now),
        version,
    ]


def _deployment_cells(deployment: Object, now: datetime) -> list[Any]:
    spec, status = deployment.get("spec") or {}, deployment.get("status") or {}
    return [
        deployment["metadata"]["name"],
        f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 0)}",
        status.get("updatedReplicas", 0),
        status.get("availableReplicas", 0),
        age(deployment["metadata"].get("creationTimestamp"), now),
    ]


def _event_cells(event: Object, now: datetime) -> list[Any]:
    subject = event.get("involvedObject") or {}
    last = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp")
    return [
        age(last, now),
        event.get("type", ""),
        event.get("reason", ""),
        f"{str(subject.get('kind', '')).lower()}/{subject.get('name', '')}",
        event.get("message", ""),
    ]


def _lease_cells(lease: Object, now: datetime) -> list[Any]:
    holder = (lease.get("spec") or {}).get("holderIdentity") or ""
    return [lease["metadata"]["name"], holder, age(lease["metadata"].get("creationTimestamp"), now)]


def _plain_cells(obj: Object, now: datetime) -> list[Any]:
    return [obj["metadata"]["name"], age(obj["metadata"].get("creationTimestamp"), now)]


def _namespace_cells(obj: Object, now: datetime) -> list[Any]:
    phase = (obj.get("status") or {}).get("phase", "")
    return [obj["metadata"]["name"], phase, age(obj["metadata"].get("creationTimestamp"), now)]


_NAME, _AGE = ("Name", "string", 0), ("Age", "string", 0)
_TABLES: dict[tuple[str, str], tuple[Columns, Callable[[Object, datetime], list[Any]]]] = {
    ("", "pods"): (
        (
            _NAME,
            ("Ready", "string", 0),
            ("Status", "string", 0),
            ("Restarts", "string", 0),
            _AGE,
            ("IP", "string", 1),
            ("Node", "string", 1),
            ("Nominated Node", "string", 1),
            ("Readiness Gates", "string", 1),
        ),
        _pod_cells,
    ),
    ("", "nodes"): (
        (_NAME, ("Status", "string", 0), ("Roles", "string", 0), _AGE, ("Version", "string", 0)),
        _node_cells,
    ),
    ("", "namespaces"): ((_NAME, ("Status", "string", 0), _AGE), _namespace_cells),
    ("apps", "deployments"): (
        (_NAME, ("Ready", "string", 0), ("Up-to-date", "integer", 0), ("Available", "integer", 0), _AGE),
        _deployment_cells,
    ),
    ("", "events"): (
        (
            ("Last Seen", "string", 0),
            ("Type", "string", 0),
            ("Reason", "string", 0),
            ("Object", "string", 0),
            ("Message", "string", 0),
        ),
        _event_cells,
    ),
    ("coordination.k8s.io", "leases"): ((_NAME, ("Holder", "string", 0), _AGE), _lease_cells),
}
_PLAIN: tuple[Columns, Callable[[Object, datetime], list[Any]]] = ((_NAME, _AGE), _plain_cells)


def render(resource: Resource, page: list[Entry], metadata: dict[str, object], now: datetime) -> Object:
    """Render a page of objects as a meta.k8s.io/v1 Table with their metadata in each row."""
    columns, cells = _TABLES.get(resource.storage, _PLAIN)
    rows = []
    for entry in page:
        obj = entry.decode()
        partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
        rows.append({"cells": cells(obj, now), "object": partial})
    definitions = [
        {
            "name": name,
            "type": type_,
            "format": "name" if name == "Name" else "",
            "description": name,
            "priority": priority,
        }
        for name, type_, priority in columns
    ]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": definitions,
        "rows": rows,
    }
