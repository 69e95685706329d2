"""What clients ask first: versions, groups, resources, health."""

import msgspec

from simulator.apiserver.failures import Object
from simulator.apiserver.resources import Registry, Resource
from simulator.apiserver.wire import Request, Response

HEALTH_PATHS = frozenset({"/livez", "/readyz", "/healthz"})

VERSION: Object = {
    "major": "1",
    "minor": "34",
    "gitVersion": "v1.34.4+gpuslice-embedded",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "linux/amd64",
}


def answer(registry: Registry, request: Request) -> Response:
    """Answer a request for a path that names no resource."""
    found = _document(registry, request.path) if request.method in {"GET", "HEAD"} else None
    return page_not_found() if found is None else Response(200, (msgspec.json.encode(found),))


def _document(registry: Registry, path: str) -> Object | None:
    parts = [part for part in path.split("/") if part]
    match parts:
        case []:
            return {"paths": ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/openapi/v2", "/readyz", "/version"]}
        case ["version"]:
            return VERSION
        case ["api"]:
            return {
                "kind": "APIVersions",
                "versions": ["v1"],
                "serverAddressByClientCIDRs": [],
            }
        case ["apis"]:
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": _groups(registry)}
        case ["apis", group]:
            return _group(registry, group)
        case ["api", "v1"]:
            return _resources(registry, "", "v1")
        case ["apis", group, version]:
            return _resources(registry, group, version)
    return None


def _versions(registry: Registry, group: str) -> list[str]:
    return list(dict.fromkeys(r.version for r in registry if r.group == group))


def _group_entry(registry: Registry, group: str) -> Object:
    rows = [{"groupVersion": f"{group}/{version}", "version": version} for version in _versions(registry, group)]
    return {"name": group, "versions": rows, "preferredVersion": rows[0]}


def _groups(registry: Registry) -> list[Object]:
    names = dict.fromkeys(r.group for r in registry if r.group)
    return [_group_entry(registry, name) for name in names]


def _group(registry: Registry, group: str) -> Object | None:
    if not group or not _versions(registry, group):
        return None
    return {"kind": "APIGroup", "apiVersion": "v1", **_group_entry(registry, group)}


_SUBRESOURCE_KINDS: dict[str, tuple[str, str, str]] = {
    "scale": ("autoscaling", "v1", "Scale"),
    "eviction": ("policy", "v1", "Eviction"),
    "binding": ("", "v1", "Binding"),
    "token": ("authentication.k8s.io", "v1", "TokenRequest"),
}
_SUBRESOURCE_VERBS = {"binding": ["create"], "eviction": ["create"], "token": ["create"]}


def _resources(registry: Registry, group: str, version: str) -> Object | None:
    found = [r for r in registry if r.group == group and r.version == version]
    if not found:
        return None
    rows: list[Object] = []
    for resource in sorted(found, key=lambda r: r.plural):
        rows.append(_row(resource))
        rows += [_subresource_row(resource, name) for name in resource.subresources]
    name = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": rows}


def _row(resource: Resource) -> Object:
    row: Object = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
    }
    if resource.short:
        row["shortNames"] = list(resource.short)
    if resource.categories:
        row["categories"] = list(resource.categories)
    return row


def _subresource_row(resource: Resource, name: str) -> Object:
    row: Object = {"name": f"{resource.plural}/{name}", "singularName": "", "namespaced": resource.namespaced}
    if name in _SUBRESOURCE_KINDS:
        group, version, kind = _SUBRESOURCE_KINDS[name]
        row |= {"group": group, "version": version, "kind": kind}
    else:
        row["kind"] = resource.kind
    row["verbs"] = _SUBRESOURCE_VERBS.get(name, ["get", "patch", "update"])
    return row


def page_not_found() -> Response:
    """404 in plain text, as the real server answers outside its API groups."""
    return Response(404, (b"404 page not found\n",), "text/plain; charset=utf-8")
