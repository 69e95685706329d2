"""Which webhooks and policies a write concerns: rules and selectors."""

from dataclasses import dataclass

from simulator.apiserver import selectors
from simulator.apiserver.calls import Call, Operation, State
from simulator.apiserver.failures import Object

_SUBRESOURCE_KINDS: dict[str, tuple[str, str, str]] = {
    "binding": ("", "v1", "Binding"),
    "eviction": ("policy", "v1", "Eviction"),
    "scale": ("autoscaling", "v1", "Scale"),
}


@dataclass(frozen=True, slots=True)
class Write:
    """One write as admission sees it."""

    call: Call
    operation: Operation
    new: Object | None
    old: Object | None

    @property
    def kind(self) -> tuple[str, str, str]:
        """Group, version and kind of the object that is written."""
        resource = self.call.resource
        return _SUBRESOURCE_KINDS.get(self.call.target.subresource, (resource.group, resource.version, resource.kind))

    @property
    def name(self) -> str:
        """Name of the object; empty while it is not chosen."""
        obj = self.new or self.old or {}
        return self.call.name or str((obj.get("metadata") or {}).get("name", ""))


def _one_of(wanted: str, listed: list[str] | None) -> bool:
    return "*" in (listed or ()) or wanted in (listed or ())


def rule_matches(rule: Object, write: Write) -> bool:
    """Match one RuleWithOperations."""
    resource, subresource = write.call.resource, write.call.target.subresource
    scope = rule.get("scope", "*")
    if scope != "*" and (scope == "Namespaced") is not resource.namespaced:
        return False
    return (
        _one_of(write.operation, rule.get("operations"))
        and _one_of(resource.group, rule.get("apiGroups"))
        and _one_of(resource.version, rule.get("apiVersions"))
        and any(_resource_matches(text, resource.plural, subresource) for text in rule.get("resources") or ())
    )


def _resource_matches(text: str, plural: str, subresource: str) -> bool:
    wanted, slash, wanted_sub = text.partition("/")
    if wanted not in {"*", plural}:
        return False
    if not slash:
        return not subresource
    return wanted_sub in {"*", subresource} and (bool(subresource) or wanted_sub == "*")


def namespace_matches(state: State, selector: Object | None, write: Write) -> bool:
    """Match a namespaceSelector: cluster-scoped objects always match, a Namespace by its own labels."""
    if not selector:
        return True
    if write.call.storage == ("", "namespaces"):
        obj = write.new or write.old or {}
        labels = dict((obj.get("metadata") or {}).get("labels") or {})
        labels.setdefault("kubernetes.io/metadata.name", write.name)
        return selectors.labels_match(selector, labels)
    if not write.call.resource.namespaced:
        return True
    entry = state.store.get(("", "namespaces"), "", write.call.namespace)
    return selectors.labels_match(selector, entry.labels if entry else {})


def object_matches(selector: Object | None, write: Write) -> bool:
    """Match an objectSelector against the new or the old object."""
    if not selector:
        return True
    for obj in (write.new, write.old):
        if obj is not None and selectors.labels_match(selector, (obj.get("metadata") or {}).get("labels") or {}):
            return True
    return False


def request_variables(write: Write) -> Object:
    """Build the variables of match conditions and policies."""
    call = write.call
    group, version, kind = write.kind
    resource = {"group": call.resource.group, "version": call.resource.version, "resource": call.resource.plural}
    request: Object = {
        "kind": {"group": group, "version": version, "kind": kind},
        "resource": resource,
        "name": write.name,
        "namespace": call.namespace,
        "operation": write.operation,
        "userInfo": {"username": call.user, "groups": list(call.groups)},
        "dryRun": call.dry_run,
        "requestKind": {"group": group, "version": version, "kind": kind},
        "requestResource": resource,
    }
    if call.target.subresource:
        request["subResource"] = request["requestSubResource"] = call.target.subresource
    return {"object": write.new, "oldObject": write.old, "request": request}
