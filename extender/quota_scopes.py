"""Which pods a ResourceQuota is about: its scopes and scope selectors, as the API server reads them.

A quota with several of them is about the pods that match all. The rules are those of kube-apiserver's evaluator
(pkg/quota/v1/evaluator/core/pods.go); a test on the real one holds the two equal.
"""

from dataclasses import dataclass

import msgspec

from gpuslice.devices.traits import PodTraits


class ScopeExpression(msgspec.Struct, frozen=True, rename="camel"):
    """v1.ScopedResourceSelectorRequirement."""

    scope_name: str = ""
    operator: str = "Exists"
    values: tuple[str, ...] | None = None


class ScopeSelector(msgspec.Struct, frozen=True, rename="camel"):
    """v1.ScopeSelector."""

    match_expressions: tuple[ScopeExpression, ...] | None = None


@dataclass(frozen=True, slots=True)
class Scopes:
    """All conditions of one quota object; without any it is about every pod."""

    conditions: tuple[ScopeExpression, ...] = ()

    def include(self, traits: PodTraits) -> bool:
        """Tell whether the quota is about a pod."""
        return all(_holds(condition, traits) for condition in self.conditions)

    def __bool__(self) -> bool:
        """Whether there is any condition."""
        return bool(self.conditions)


EVERY_POD = Scopes()


def scopes_of(names: tuple[str, ...] | None, selector: ScopeSelector | None) -> Scopes:
    """Put ``scopes`` and ``scopeSelector`` of a quota together."""
    listed = tuple(ScopeExpression(name) for name in names or ())
    return Scopes((*listed, *((selector.match_expressions or ()) if selector is not None else ())))


def _holds(condition: ScopeExpression, traits: PodTraits) -> bool:
    match condition.scope_name:
        case "Terminating":
            return traits.has_deadline
        case "NotTerminating":
            return not traits.has_deadline
        case "BestEffort":
            return traits.best_effort
        case "NotBestEffort":
            return not traits.best_effort
        case "CrossNamespacePodAffinity":
            return traits.crosses_namespaces
        case "PriorityClass":
            return _class_matches(condition, traits.priority_class)
        case _:
            # A scope of other objects (VolumeAttributesClass): the quota is about no pod at all.
            return False


def _class_matches(condition: ScopeExpression, name: str) -> bool:
    """Match as a label selector does over a label that is absent when the pod has no class."""
    match condition.operator:
        case "In":
            return bool(name) and name in (condition.values or ())
        case "NotIn":
            return name not in (condition.values or ())
        case "DoesNotExist":
            return not name
        case _:
            return bool(name)
