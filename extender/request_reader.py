"""Reads the requests of pods, each class of them once.

Pods come in few classes: replicas and jobs differ in name, not in what they ask for. Equal requests become the same
object, which also makes every later look-up by request cheap.
"""

from collections import OrderedDict
from collections.abc import Hashable

from gpuslice.devices.demands import PodRequest, Problem
from gpuslice.devices.families import Families
from gpuslice.devices.pods import Container, Pod
from gpuslice.devices.requests import CARD_POLICY, NODE_POLICY, SCORING_WEIGHTS, read_request

_CAPACITY = 4096


class RequestReader:
    """Remembers what it has read."""

    def __init__(self, families: Families) -> None:
        self._families = families
        chosen = {key for family in families for key in family.selection.keys()}  # noqa: SIM118  a method of ours
        choices = {choice.key for family in families for choice in family.choices}
        exact = {family.memory.exact_when.partition("=")[0] for family in families}
        self._annotations = sorted(chosen | choices | exact | {NODE_POLICY, CARD_POLICY, SCORING_WEIGHTS} - {""})
        """Every annotation that the reading depends on."""
        self._known: OrderedDict[Hashable, PodRequest | tuple[Problem, ...]] = OrderedDict()

    def read(self, pod: Pod) -> PodRequest | tuple[Problem, ...]:
        """Give what the pod asks for, or every problem with it."""
        notes = pod.metadata.annotations
        key = (
            tuple(map(_container_key, pod.spec.init_containers or ())),
            tuple(map(_container_key, pod.spec.containers or ())),
            tuple((name, notes[name]) for name in self._annotations if name in notes) if notes else (),
        )
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = read_request(pod, self._families)
            if len(self._known) > _CAPACITY:
                self._known.popitem(last=False)
        return known


def _container_key(container: Container) -> Hashable:
    resources = container.resources
    if resources is None:
        return container.name, container.restart_policy
    return (
        container.name,
        container.restart_policy,
        tuple(sorted(resources.limits.items())),
        tuple(sorted(resources.requests.items())),
    )
