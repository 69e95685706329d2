"""What is legal in a pod, and yet not what its author will expect."""

from collections.abc import Iterator

from gpuslice.devices.demands import ContainerRequest, PodRequest
from gpuslice.devices.families import Families
from gpuslice.devices.families.family import Family
from gpuslice.devices.requests import CARD_POLICY, NODE_POLICY
from webhook.pods import AdmittedPod

POLICY_NAMES = frozenset(
    {"affine", "balanced", "best-fit", "binpack", "fgd", "fgd-plus", "mutex", "numa", "spread", "topology-aware"}
)
"""Names that the scheduler knows (gpuslice.placement.policies.registry, which costs 30 MiB to import)."""


def surprises(pod: AdmittedPod, request: PodRequest, families: Families) -> Iterator[str]:
    """Yield one line for each."""
    for demand in request.containers:
        family = families.by_name[demand.request.family]
        where = f"container {demand.name}"
        yield from _whole_cards(where, demand.request, family)
        yield from _rounded(pod, demand.name, demand.request, family)
    for key in (NODE_POLICY, CARD_POLICY):
        for name in pod.metadata.annotations.get(key, "").split(","):
            if name.strip() and name.strip().lower() not in POLICY_NAMES:
                known = ", ".join(sorted(POLICY_NAMES))
                yield f"annotation {key}: {name.strip()!r} is no policy and is ignored; known are {known}"
    if any(container.env_from for _, containers in pod.groups() for container in containers):
        yield "envFrom may bring variables such as NVIDIA_VISIBLE_DEVICES; the node enforces the share all the same"


def _whole_cards(where: str, share: ContainerRequest, family: Family) -> Iterator[str]:
    if share.memory_percent == 100 and not share.exclusive and family.shared and family.resources.memory:
        cards = "the card" if share.cards == 1 else "each card"
        yield f"{where}: no {family.resources.memory} given: it gets all memory of {cards}, nobody else fits there"
    if share.exclusive and share.memory_mib:
        yield (
            f"{where}: {family.resources.cores}=100 takes the whole card, though only {share.memory_mib} MiB of it may "
            "be used"
        )
    if share.cards > 1 and share.memory_mib and family.memory.scope == "card":
        yield f"{where}: {share.memory_mib} MiB counts on each of {share.cards} different cards"


def _rounded(pod: AdmittedPod, name: str, share: ContainerRequest, family: Family) -> Iterator[str]:
    """Yield a line when a size on sale is larger than what was asked."""
    if not family.memory.sizes or family.resources.memory is None or family.memory.rounding == "exact":
        return
    for _, containers in pod.groups():
        for container in containers:
            if container.name != name or container.resources is None:
                continue
            written = str(container.resources.get(family.resources.memory) or "")
            given = str(share.memory_mib or family.memory.card_mib or "")
            if written and written != given:
                yield f"container {name}: {family.resources.memory}={written} is given as {given} MiB, the next size"
