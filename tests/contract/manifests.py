"""Objects the contract works with; keyword arguments go where the object needs them."""

from typing import Any

Manifest = dict[str, Any]


def _meta(name: str, extra: Manifest) -> Manifest:
    return {"name": name, **{key: value for key, value in extra.items() if value is not None}}


def pod(name: str, *, labels: Manifest | None = None, annotations: Manifest | None = None, **spec: Any) -> Manifest:
    """One container `c` of image x:1 unless `containers` says otherwise."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _meta(name, {"labels": labels, "annotations": annotations}),
        "spec": {"containers": [{"name": "c", "image": "x:1"}], **spec},
    }


def limited(name: str, limits: Manifest, requests: Manifest | None = None) -> Manifest:
    """A pod whose container has these resources."""
    resources = {"limits": limits} | ({"requests": requests} if requests else {})
    return pod(name, containers=[{"name": "c", "image": "x:1", "resources": resources}])


def config_map(name: str, data: Manifest | None = None, **meta: Any) -> Manifest:
    """A config map with data {"a": "1"}."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **meta}, "data": data or {"a": "1"}}


def node(name: str) -> Manifest:
    """A node with eight cards of ten slices."""
    capacity = {"cpu": "8000m", "nvidia.com/gpu": "80"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"capacity": capacity}}


def binding(pod_name: str, node_name: str, **meta: Any) -> Manifest:
    """Assign a pod to a node."""
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod_name, **meta},
        "target": {"kind": "Node", "name": node_name},
    }


def eviction(pod_name: str) -> Manifest:
    """Evict a pod."""
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod_name}}


def deployment(name: str) -> Manifest:
    """A deployment of one container."""
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "x:1"}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": template},
    }
