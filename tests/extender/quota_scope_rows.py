"""Pods, quotas with scopes, and which is about which: held against our code and against the real API server."""

from typing import Any

_GPU = {"nvidia.com/gpu": "1"}


def _container(**limits: str) -> dict[str, Any]:
    return {"name": "main", "image": "example.org/cuda", "resources": {"limits": {**_GPU, **limits}}}


def _affinity(kind: str, **term: Any) -> dict[str, Any]:
    full = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}, **term}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [full]}}


def _preferred(**term: Any) -> dict[str, Any]:
    full = {"weight": 1, "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}, **term}}
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [full]}}


PODS: dict[str, dict[str, Any]] = {
    "plain": {"containers": [_container()]},
    "with cpu": {"containers": [_container(cpu="1")]},
    "with memory": {"containers": [_container(memory="1Mi")]},
    "with cpu 0": {"containers": [_container(cpu="0")]},
    "cpu in an init container": {
        "containers": [_container()],
        "initContainers": [{"name": "init", "image": "example.org/x", "resources": {"requests": {"cpu": "1m"}}}],
    },
    "with a deadline": {"containers": [_container()], "activeDeadlineSeconds": 60},
    "of class high": {"containers": [_container()], "priorityClassName": "high"},
    "of class low": {"containers": [_container(cpu="1")], "priorityClassName": "low", "activeDeadlineSeconds": 1},
    "near pods of its namespace": {"containers": [_container()], "affinity": _affinity("podAffinity")},
    "near pods of others": {"containers": [_container()], "affinity": _affinity("podAffinity", namespaces=["other"])},
    "away from pods of all": {
        "containers": [_container()],
        "affinity": _affinity("podAntiAffinity", namespaceSelector={}),
    },
    "rather away from others": {"containers": [_container()], "affinity": _preferred(namespaces=["other"])},
}


def _class(operator: str, *values: str) -> dict[str, Any]:
    expression = {"scopeName": "PriorityClass", "operator": operator, **({"values": list(values)} if values else {})}
    return {"scopeSelector": {"matchExpressions": [expression]}}


QUOTAS: dict[str, dict[str, Any]] = {
    "no scope": {},
    "Terminating": {"scopes": ["Terminating"]},
    "NotTerminating": {"scopes": ["NotTerminating"]},
    "BestEffort": {"scopes": ["BestEffort"]},
    "NotBestEffort": {"scopes": ["NotBestEffort"]},
    "CrossNamespacePodAffinity": {"scopes": ["CrossNamespacePodAffinity"]},
    "any class": {"scopes": ["PriorityClass"]},
    "NotTerminating and BestEffort": {"scopes": ["NotTerminating", "BestEffort"]},
    "class high": _class("In", "high"),
    "class high or low": _class("In", "high", "low"),
    "class not high": _class("NotIn", "high"),
    "class exists": _class("Exists"),
    "no class": _class("DoesNotExist"),
    "class low and NotBestEffort": {**_class("In", "low"), "scopes": ["NotBestEffort"]},
}

_DEADLINE = {"with a deadline", "of class low"}
_COMPUTE = {"with cpu", "with memory", "cpu in an init container", "of class low"}
_CROSSING = {"near pods of others", "away from pods of all", "rather away from others"}
_HIGH, _LOW = {"of class high"}, {"of class low"}
_ALL = set(PODS)
ABOUT: dict[str, set[str]] = {
    "no scope": _ALL,
    "Terminating": _DEADLINE,
    "NotTerminating": _ALL - _DEADLINE,
    "BestEffort": _ALL - _COMPUTE,
    "NotBestEffort": _COMPUTE,
    "CrossNamespacePodAffinity": _CROSSING,
    "any class": _HIGH | _LOW,
    "NotTerminating and BestEffort": _ALL - _DEADLINE - _COMPUTE,
    "class high": _HIGH,
    "class high or low": _HIGH | _LOW,
    "class not high": _ALL - _HIGH,
    "class exists": _HIGH | _LOW,
    "no class": _ALL - _HIGH - _LOW,
    "class low and NotBestEffort": _LOW,
}
