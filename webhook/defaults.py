"""Fill what a container leaves open with its namespace's defaults."""

from collections.abc import Mapping

import msgspec

from gpuslice.devices.families import Families
from gpuslice.devices.families.family import Family
from gpuslice.devices.pods import Resources
from webhook.namespaces import NamespacePolicy
from webhook.pods import AdmittedContainer, AdmittedPod

Filled = Mapping[str, Mapping[str, str]]
"""Container name to the resources that were added."""
NOTHING_FILLED: Filled = {}


def fill_defaults(pod: AdmittedPod, families: Families, rules: NamespacePolicy) -> tuple[AdmittedPod, Filled]:
    """Return the pod as it will be with the defaults in it, and what was added."""
    if not rules.defaults:
        return pod, NOTHING_FILLED
    filled: dict[str, Mapping[str, str]] = {}

    def complete(containers: tuple[AdmittedContainer, ...] | None) -> tuple[AdmittedContainer, ...] | None:
        return None if containers is None else tuple(_complete(each, families, rules, filled) for each in containers)

    spec = msgspec.structs.replace(
        pod.spec, containers=complete(pod.spec.containers), init_containers=complete(pod.spec.init_containers)
    )
    return msgspec.structs.replace(pod, spec=spec), filled


def _complete(
    container: AdmittedContainer, families: Families, rules: NamespacePolicy, filled: dict[str, Mapping[str, str]]
) -> AdmittedContainer:
    resources = container.resources
    family = None if resources is None else _family_of(resources, families)
    if resources is None or family is None:
        return container
    defaults = rules.defaults.get(family.name) or rules.defaults.get(family.vendor)
    if defaults is None:
        return container
    names = family.resources
    added: dict[str, str] = {}
    sized = any(resources.get(name) is not None for name in (names.memory, names.memory_percentage) if name)
    if names.memory and defaults.memory is not None and not sized:
        added[names.memory] = str(defaults.memory)
    if names.cores and defaults.cores is not None and resources.get(names.cores) is None:
        added[names.cores] = str(defaults.cores)
    if not added:
        return container
    filled[container.name] = added
    return msgspec.structs.replace(
        container, resources=msgspec.structs.replace(resources, raw_limits={**resources.limits, **added})
    )


def _family_of(resources: Resources, families: Families) -> Family | None:
    """Return the family whose cards the container asks for; None for 0 cards, which is no request."""
    for name in (*resources.limits, *resources.requests):
        family = families.by_resource.get(name)
        if family is not None:
            return None if str(resources.get(family.resources.count)) == "0" else family
    return None
