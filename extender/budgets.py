"""PodDisruptionBudgets: whom we may evict, and how many of them."""

from collections.abc import Iterable, Mapping

import msgspec

from gpuslice.devices.pods import Metadata
from gpuslice.placement.preempt import Budgets


class Expression(msgspec.Struct, frozen=True):
    """One matchExpressions entry of a label selector."""

    key: str
    operator: str
    values: tuple[str, ...] | None = None

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels satisfy it; an unknown operator matches, so that doubt protects the pod."""
        value, values = labels.get(self.key), self.values or ()
        match self.operator:
            case "In":
                return value is not None and value in values
            case "NotIn":
                return value is None or value not in values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case _:
                return True


class Selector(msgspec.Struct, frozen=True, rename="camel"):
    """metav1.LabelSelector; in policy/v1 an empty one matches every pod."""

    match_labels: dict[str, str] | None = None
    match_expressions: tuple[Expression, ...] | None = None

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether all its conditions hold."""
        wanted = self.match_labels or {}
        return all(labels.get(key) == value for key, value in wanted.items()) and all(
            expression.matches(labels) for expression in self.match_expressions or ()
        )


class BudgetSpec(msgspec.Struct, frozen=True):
    """PodDisruptionBudgetSpec; without a selector it covers nothing."""

    selector: Selector | None = None


class BudgetStatus(msgspec.Struct, frozen=True, rename="camel"):
    """PodDisruptionBudgetStatus."""

    disruptions_allowed: int = 0


class DisruptionBudget(msgspec.Struct, frozen=True):
    """policy/v1 PodDisruptionBudget."""

    metadata: Metadata = Metadata()
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()


def budgets_for(budgets: Iterable[DisruptionBudget], pods: Iterable[tuple[str, str, Mapping[str, str]]]) -> Budgets:
    """Match budgets and pods.

    Args:
        budgets: All budgets of the cluster.
        pods: UID, namespace and labels of each pod that might be evicted.
    """
    by_namespace: dict[str, list[DisruptionBudget]] = {}
    for budget in budgets:
        by_namespace.setdefault(budget.metadata.namespace, []).append(budget)
    if not by_namespace:
        return Budgets()
    covering: dict[str, tuple[str, ...]] = {}
    allowed: dict[str, int] = {}
    for uid, namespace, labels in pods:
        mine = [
            budget
            for budget in by_namespace.get(namespace, ())
            if budget.spec.selector is not None and budget.spec.selector.matches(labels)
        ]
        if mine:
            covering[uid] = tuple(f"{namespace}/{budget.metadata.name}" for budget in mine)
            allowed.update({f"{namespace}/{b.metadata.name}": max(0, b.status.disruptions_allowed) for b in mine})
    return Budgets(covering, allowed)
