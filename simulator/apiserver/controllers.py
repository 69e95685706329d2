"""The few controllers without which an API server is of no use alone: namespaces, CRDs, owners.

In a real cluster the first and last live in kube-controller-manager. Here they run inside the write that triggers
them: a namespace empties itself, a CRD is served at once, dependents of a deleted owner go with it.
"""

from simulator.apiserver import deletion, selectors
from simulator.apiserver.calls import Call, State
from simulator.apiserver.failures import Object, StatusError
from simulator.apiserver.identity import ADMIN
from simulator.apiserver.paths import Target
from simulator.apiserver.resources import Resource
from simulator.apiserver.store import Collection, Entry

_NAMESPACES = ("", "namespaces")
_CRDS = ("apiextensions.k8s.io", "customresourcedefinitions")
_USER = "system:serviceaccount:kube-system:embedded-controllers"


class Controllers:
    """Reacts to writes of one server."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def after_write(self, resource: Resource, new: Object | None, old: Object | None) -> None:
        """Look at one finished write (`new` is None after a deletion)."""
        if resource.storage == _CRDS:
            self._serve(new, old)
        elif resource.storage == _NAMESPACES and new is not None and _terminating(new):
            await self._empty(new["metadata"]["name"])
        if new is None and old is not None:
            await self._collect(old["metadata"]["uid"])
            if resource.namespaced:
                self._finish_namespace(old["metadata"]["namespace"])
        elif new is not None and new["metadata"].get("deletionTimestamp"):
            await self._orphan_or_wait(resource, new)

    def _serve(self, new: Object | None, old: Object | None) -> None:
        registry = self._state.registry
        if old is not None:
            registry.remove(old["spec"]["group"], old["spec"]["names"]["plural"])
        if new is not None:
            for resource in resources_of(new):
                registry.add(resource)

    def _call(self, resource: Resource, entry: Entry) -> Call:
        target = Target(resource.group, resource.version, resource.plural, entry.namespace, entry.name)
        return Call(resource, target, _USER, ADMIN.groups)

    def _resource(self, collection: Collection) -> Resource | None:
        return next((r for r in self._state.registry if r.storage == collection.storage), None)

    async def _empty(self, namespace: str) -> None:
        """Delete everything in a namespace; pods on nodes stay until their kubelet lets go."""
        for collection in self._state.store.collections():
            resource = self._resource(collection)
            if resource is None or not resource.namespaced:
                continue
            for entry in list(collection.select(namespace, selectors.EVERYTHING)):
                await self._delete(resource, entry, {"propagationPolicy": "Background"})
        self._finish_namespace(namespace)

    async def _delete(self, resource: Resource, entry: Entry, options: Object) -> None:
        try:
            await deletion.delete(self._state, self._call(resource, entry), options)
        except StatusError as error:
            if error.code not in {404, 409}:
                raise

    def _finish_namespace(self, namespace: str) -> None:
        entry = self._state.store.get(_NAMESPACES, "", namespace)
        if entry is None or entry.fields.get("status.phase") != "Terminating":
            return
        for collection in self._state.store.collections():
            if next(collection.select(namespace, selectors.EVERYTHING), None) is not None:
                return
        obj = entry.decode()
        obj.get("spec", {}).pop("finalizers", None)
        if obj["metadata"].get("finalizers"):
            self._state.store.put(_NAMESPACES, obj)
        else:
            self._state.store.remove(_NAMESPACES, obj)

    async def _collect(self, owner_uid: str) -> None:
        """Delete the dependents that had this owner and have no other."""
        for collection in self._state.store.collections():
            resource = self._resource(collection)
            if resource is None:
                continue
            for entry in collection.owned_by(owner_uid):
                owners = [o for o in entry.decode()["metadata"]["ownerReferences"] if o.get("uid") != owner_uid]
                if not owners:
                    await self._delete(resource, entry, {"propagationPolicy": "Background"})

    async def _orphan_or_wait(self, resource: Resource, obj: Object) -> None:
        """Carry out foreground and orphan deletion, then lift the finalizer."""
        meta = obj["metadata"]
        finalizers = meta.get("finalizers") or []
        if deletion.ORPHAN in finalizers:
            self._orphan(meta["uid"])
        elif deletion.FOREGROUND in finalizers:
            await self._collect(meta["uid"])
            if any(collection.owned_by(meta["uid"]) for collection in self._state.store.collections()):
                return
        else:
            return
        entry = self._state.store.get(resource.storage, meta.get("namespace", ""), meta["name"])
        if entry is None:
            return
        rest = [item for item in finalizers if item not in {deletion.ORPHAN, deletion.FOREGROUND}]
        current = entry.decode()
        current["metadata"]["finalizers"] = rest
        if rest:
            self._state.store.put(resource.storage, current)
        else:
            del current["metadata"]["finalizers"]
            self._state.store.remove(resource.storage, current)

    def _orphan(self, owner_uid: str) -> None:
        for collection in self._state.store.collections():
            for entry in collection.owned_by(owner_uid):
                obj = entry.decode()
                kept = [o for o in obj["metadata"]["ownerReferences"] if o.get("uid") != owner_uid]
                obj["metadata"]["ownerReferences"] = kept
                self._state.store.put(collection.storage, obj)


def _terminating(namespace: Object) -> bool:
    return bool(namespace["metadata"].get("deletionTimestamp"))


def resources_of(definition: Object) -> list[Resource]:
    """Return the types that a CustomResourceDefinition serves."""
    spec = definition["spec"]
    names = spec["names"]
    found = []
    for version in spec.get("versions") or []:
        if not version.get("served", True):
            continue
        subresources = tuple(sorted((version.get("subresources") or {}).keys()))
        found.append(
            Resource(
                spec["group"],
                version["name"],
                names["plural"],
                names["kind"],
                spec.get("scope") == "Namespaced",
                tuple(names.get("shortNames") or ()),
                subresources,
                tuple(names.get("categories") or ()),
                names.get("singular") or names["kind"].lower(),
                list_kind=names.get("listKind", ""),
                custom=True,
            )
        )
    return found
