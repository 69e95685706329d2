"""What the scopes of a ResourceQuota look at in a pod."""

from collections.abc import Iterator
from functools import lru_cache

from gpuslice.devices.errors import BadQuantity
from gpuslice.devices.pods import Affinity, AffinityTerm, Pod, Resources
from gpuslice.devices.quantity import parse_quantity
from gpuslice.devices.requests import containers_of
from gpuslice.devices.value import Value

_COMPUTE = ("cpu", "memory")


class PodTraits(Value, frozen=True):
    """The four properties by which a quota may choose its pods."""

    has_deadline: bool = False
    """It sets ``activeDeadlineSeconds``: the scope Terminating."""
    best_effort: bool = False
    """Its quality of service is BestEffort: no container asks for CPU or memory."""
    crosses_namespaces: bool = False
    """A pod (anti-)affinity term of it names other namespaces."""
    priority_class: str = ""


PLAIN = PodTraits()


def traits_of(pod: Pod) -> PodTraits:
    """Return the traits of a pod. Equal ones are one object: pods come in few kinds."""
    spec = pod.spec
    return _traits(
        spec.active_deadline_seconds is not None and spec.active_deadline_seconds >= 0,
        pod.status.qos_class == "BestEffort" if pod.status.qos_class else _asks_for_no_compute(pod),
        spec.affinity is not None and _crosses_namespaces(spec.affinity),
        spec.priority_class_name,
    )


@lru_cache(maxsize=1024)
def _traits(has_deadline: bool, best_effort: bool, crosses_namespaces: bool, priority_class: str) -> PodTraits:
    return PodTraits(has_deadline, best_effort, crosses_namespaces, priority_class)


def _crosses_namespaces(affinity: Affinity) -> bool:
    return any(term.namespaces or term.namespace_selector is not None for term in _terms(affinity))


def _terms(affinity: Affinity) -> Iterator[AffinityTerm]:
    for half in (affinity.pod_affinity, affinity.pod_anti_affinity):
        if half is not None:
            yield from half.required or ()
            yield from (weighted.pod_affinity_term for weighted in half.preferred or ())


def _asks_for_no_compute(pod: Pod) -> bool:
    """Tell whether the pod is BestEffort by itself; the API server writes the class into the status of every pod."""
    if pod.spec.resources is not None:
        return not _any_compute(pod.spec.resources)
    return not any(_any_compute(container.resources) for container, _ in containers_of(pod))


def _any_compute(resources: Resources | None) -> bool:
    if resources is None:
        return False
    return any(
        _is_positive(amounts.get(name)) for amounts in (resources.requests, resources.limits) for name in _COMPUTE
    )


def _is_positive(quantity: str | float | None) -> bool:
    try:
        return quantity is not None and parse_quantity(quantity) > 0
    except BadQuantity:
        return True
