"""OpenAPI documents: enough for kubectl to learn that every type exists and that the server checks fields itself.

kubectl asks for /openapi/v3 to see whether PATCH takes `fieldValidation`; where it does, kubectl leaves validation to
the server. The schemas say `object` and no more, except for the keys by which kubectl merges lists.
"""

import hashlib

import msgspec

from simulator.apiserver.failures import Object, no_such_path
from simulator.apiserver.resources import Registry, Resource
from simulator.apiserver.wire import Request, Response


def answer(registry: Registry, request: Request) -> Response:
    """Answer a GET below /openapi.

    Raises:
        StatusError: 404.
    """
    if request.path == "/openapi/v2":
        return _json(_v2(registry))
    prefix = "/openapi/v3"
    if request.path == prefix:
        return _json(_index(registry))
    group, version = _parse(request.path.removeprefix(prefix))
    found = [r for r in registry if r.group == group and r.version == version]
    if not found:
        raise no_such_path()
    return _json(_document(found))


def _json(body: Object) -> Response:
    return Response(200, (msgspec.json.encode(body),))


def _parse(path: str) -> tuple[str, str]:
    parts = [part for part in path.split("/") if part]
    if len(parts) == 2 and parts[0] == "api":
        return "", parts[1]
    return (parts[1], parts[2]) if len(parts) == 3 and parts[0] == "apis" else ("", "")


def _index(registry: Registry) -> Object:
    versions = dict.fromkeys((r.group, r.version) for r in registry)
    paths = {}
    for group, version in versions:
        path = f"apis/{group}/{version}" if group else f"api/{version}"
        names = ",".join(sorted(r.plural for r in registry if (r.group, r.version) == (group, version)))
        digest = hashlib.sha256(names.encode()).hexdigest().upper()
        paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
    return {"paths": paths}


def _schema_name(resource: Resource) -> str:
    group = resource.group or "core"
    return f"io.k8s.api.{group.partition('.')[0]}.{resource.version}.{resource.kind}"


def _kind(resource: Resource) -> Object:
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


def _schema(resource: Resource) -> Object:
    return {
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        },
        "x-kubernetes-preserve-unknown-fields": True,
        "x-kubernetes-group-version-kind": [_kind(resource)],
    }


def _query(name: str) -> Object:
    return {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}


_PATCH_TYPES = (
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
)


def _document(found: list[Resource]) -> Object:
    paths: Object = {}
    for resource in found:
        base = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
        where = f"{base}/namespaces/{{namespace}}" if resource.namespaced else base
        parameters = [_query(name) for name in ("dryRun", "fieldManager", "fieldValidation")]
        common = {"x-kubernetes-group-version-kind": _kind(resource), "responses": {"200": {"description": "OK"}}}
        content = {kind: {"schema": {"type": "object"}} for kind in _PATCH_TYPES}
        patch = {"x-kubernetes-action": "patch", "parameters": [*parameters, _query("force")]}
        paths[f"{where}/{resource.plural}"] = {
            "post": common | {"x-kubernetes-action": "post", "parameters": parameters}
        }
        paths[f"{where}/{resource.plural}/{{name}}"] = {
            "get": common | {"x-kubernetes-action": "get"},
            "patch": common | patch | {"requestBody": {"content": content}},
            "put": common | {"x-kubernetes-action": "put", "parameters": parameters},
        }
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.34.4"},
        "paths": paths,
        "components": {"schemas": {_schema_name(resource): _schema(resource) for resource in found}},
    }


def _v2(registry: Registry) -> Object:
    return {
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": "v1.34.4"},
        "paths": {},
        "definitions": {_schema_name(resource): _schema(resource) for resource in registry},
    }
