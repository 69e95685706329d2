"""The bodies of kube-scheduler's calls as JSON schema, for the published OpenAPI document."""

from typing import Any, Final

_OBJECT: Final = {"type": ["object", "null"]}
_TEXT: Final = {"type": "string"}
_RESOURCES: Final = {"type": ["object", "null"], "additionalProperties": {"type": ["string", "number"]}}
_CONTAINER: Final = {
    "type": "object",
    "properties": {
        "name": _TEXT,
        "resources": {"type": ["object", "null"], "properties": {"limits": _RESOURCES, "requests": _RESOURCES}},
    },
}
_CONTAINERS: Final = {"type": ["array", "null"], "items": _CONTAINER}
_POD: Final = {
    "type": ["object", "null"],
    "properties": {
        "metadata": {
            "type": "object",
            "properties": {
                "name": _TEXT,
                "namespace": _TEXT,
                "uid": _TEXT,
                "annotations": {"type": ["object", "null"], "additionalProperties": _TEXT},
            },
        },
        "spec": {"type": "object", "properties": {"containers": _CONTAINERS, "initContainers": _CONTAINERS}},
    },
}
_NODES: Final = {
    "type": ["object", "null"],
    "properties": {"items": {"type": ["array", "null"], "items": {"type": "object"}}},
}
_NAMES: Final = {"type": ["array", "null"], "items": _TEXT}
_META_VICTIMS: Final = {
    "type": "object",
    "properties": {
        "Pods": {"type": ["array", "null"], "items": {"type": "object", "properties": {"UID": _TEXT}}},
        "NumPDBViolations": {"type": "integer"},
    },
}

EXTENDER_ARGS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"Pod": _POD, "Nodes": _NODES, "NodeNames": _NAMES},
}
BINDING_ARGS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"PodName": _TEXT, "PodNamespace": _TEXT, "PodUID": _TEXT, "Node": _TEXT},
    "required": ["PodName", "PodNamespace", "PodUID", "Node"],
}
PREEMPTION_ARGS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "Pod": _POD,
        "NodeNameToVictims": _OBJECT,
        "NodeNameToMetaVictims": {"type": ["object", "null"], "additionalProperties": _META_VICTIMS},
    },
}


def body_of(schema: dict[str, Any]) -> dict[str, Any]:
    """Describe a route's JSON body."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
