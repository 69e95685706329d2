"""Calls on API objects, decoded into the slim views of the caller."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from gpuslice.cluster.errors import error_from_answer
from gpuslice.cluster.resources import PODS, Resource
from gpuslice.cluster.wire import JSON, MERGE_PATCH, ApiTransport

V = TypeVar("V", bound=msgspec.Struct)

PAGE_SIZE = 500
"""Objects asked for at once when listing: 5,000 full nodes in one body cost 150 MiB of memory, in pages 15."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Which objects of a resource: one namespace (None: all) and the API server's own selectors."""

    resource: Resource
    namespace: str | None = None
    field_selector: str = ""
    label_selector: str = ""

    def query(self) -> dict[str, str]:
        """Query parameters of the selectors."""
        pairs = {"fieldSelector": self.field_selector, "labelSelector": self.label_selector}
        return {key: value for key, value in pairs.items() if value}


class ListMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """metadata of a list: the point in time it shows, and the token of the next page."""

    resource_version: str = ""
    continue_token: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct, Generic[V], frozen=True):
    metadata: ListMetadata = ListMetadata()
    items: list[V] | None = None


@dataclass(frozen=True, slots=True)
class Listing(Generic[V]):
    """All objects in scope as of ``resource_version``."""

    items: list[V]
    resource_version: str


class WatchLine(msgspec.Struct, frozen=True):
    """One line of a watch: ADDED, MODIFIED, DELETED or BOOKMARK, and the object still undecoded."""

    type: str
    object: msgspec.Raw = msgspec.Raw(b"{}")


class ErrorObject(msgspec.Struct, frozen=True):
    """The Status that an ERROR line carries."""

    code: int = 0


class KubeClient:
    """The calls our daemons make. Every method raises ApiError or Unreachable, see gpuslice.cluster.errors."""

    def __init__(self, transport: ApiTransport) -> None:
        self.transport = transport

    async def get(self, resource: Resource, name: str, view: type[V], *, namespace: str | None = None) -> V:
        """Read one object."""
        return msgspec.json.decode(await self.transport.request("GET", resource.path(namespace, name)), type=view)

    async def list_all(self, scope: Scope, view: type[V], *, page_size: int = PAGE_SIZE) -> Listing[V]:
        """Read every object in scope, as of one moment."""
        items: list[V] = []
        resource_version = ""
        async for page in self.pages(scope, view, page_size=page_size):
            items += page.items
            resource_version = page.resource_version
        return Listing(items, resource_version)

    async def pages(self, scope: Scope, view: type[V], *, page_size: int = PAGE_SIZE) -> AsyncIterator[Listing[V]]:
        """Yield every object in scope page by page, all as of the moment of the first page."""
        decoder = msgspec.json.Decoder(_Page[view])  # type: ignore[valid-type]  # the view is known at run time only
        token = ""
        while True:
            query = scope.query() | {"limit": str(page_size)} | ({"continue": token} if token else {})
            path = scope.resource.path(scope.namespace)
            page = decoder.decode(await self.transport.request("GET", path, query=query, timeout_seconds=60.0))
            yield Listing(page.items or [], page.metadata.resource_version)
            token = page.metadata.continue_token
            if not token:
                return

    async def watch(
        self, scope: Scope, resource_version: str, *, timeout_seconds: int
    ) -> AsyncGenerator[WatchLine, None]:
        """Yield changes after ``resource_version`` until the API server ends the watch; an ERROR line is raised."""
        query = scope.query() | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_seconds),
        }
        path = scope.resource.path(scope.namespace)
        decoder = msgspec.json.Decoder(WatchLine)
        async with aclosing(self.transport.stream(path, query=query)) as lines:
            async for line in lines:
                event = decoder.decode(line)
                if event.type == "ERROR":
                    status = msgspec.json.decode(event.object, type=ErrorObject).code or 500
                    raise error_from_answer(f"WATCH {path}", status, bytes(event.object))
                yield event

    async def create(self, resource: Resource, body: object, *, namespace: str | None = None) -> bytes:
        """Create an object; gives the raw answer."""
        return await self.transport.request("POST", resource.path(namespace), body=msgspec.json.encode(body))

    async def replace(self, resource: Resource, name: str, body: object, *, namespace: str | None = None) -> bytes:
        """Write a whole object; ``body`` carries the resourceVersion that was read."""
        return await self.transport.request("PUT", resource.path(namespace, name), body=msgspec.json.encode(body))

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: object,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        content_type: str = MERGE_PATCH,
    ) -> bytes:
        """Patch an object or its subresource; a merge patch unless told otherwise."""
        path = resource.path(namespace, name, subresource)
        return await self.transport.request("PATCH", path, body=msgspec.json.encode(body), content_type=content_type)

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        grace_seconds: int | None = None,
    ) -> bytes:
        """Delete an object; with ``uid`` only if it is still that one (409 otherwise)."""
        options: dict[str, object] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        return await self.transport.request("DELETE", resource.path(namespace, name), body=msgspec.json.encode(options))

    async def bind_pod(
        self,
        namespace: str,
        name: str,
        *,
        uid: str,
        node: str,
        annotations: Mapping[str, str],
        timeout_seconds: float = 5.0,
    ) -> None:
        """Bind a pod to a node; the API server merges ``annotations`` into the pod in the same write.

        Raises:
            Conflict: the pod is bound already, or is another pod of the same name.
            Unreachable: it may have been bound; read the pod.
        """
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": uid, "annotations": dict(annotations)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = PODS.path(namespace, name, "binding")
        await self.transport.request(
            "POST", path, body=msgspec.json.encode(body), content_type=JSON, timeout_seconds=timeout_seconds
        )

    async def evict_pod(self, namespace: str, name: str, *, uid: str) -> None:
        """Ask for a pod's eviction.

        Raises:
            Throttled: a disruption budget does not allow it now.
            NotFound, Conflict: it is gone already, or is another pod by now.
        """
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        await self.transport.request("POST", PODS.path(namespace, name, "eviction"), body=msgspec.json.encode(body))
