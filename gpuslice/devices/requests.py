"""Read what a pod asks for from its containers and annotations.

One reader serves the webhook (which turns problems into a denial) and the scheduler (which trusts nothing and reads
again). Containers are addressed by name, never by position.
"""

from collections.abc import Iterable, Iterator, Mapping

from gpuslice.devices.container_reader import ContainerReader
from gpuslice.devices.demands import CardSelection, ContainerDemand, ContainerRequest, PodRequest, Problem, Role
from gpuslice.devices.families import Families
from gpuslice.devices.families.family import Family
from gpuslice.devices.pods import Container, Pod

__all__ = [
    "CARD_POLICY",
    "NODE_POLICY",
    "SCORING_WEIGHTS",
    "CardSelection",
    "ContainerDemand",
    "ContainerRequest",
    "PodRequest",
    "Problem",
    "Role",
    "containers_of",
    "models_wanted",
    "read_request",
]

NODE_POLICY = "hami.io/node-scheduler-policy"
CARD_POLICY = "hami.io/gpu-scheduler-policy"
SCORING_WEIGHTS = "hami.io/device-scoring-weights"

_WEIGHT_NAMES = {"slot", "core", "memory"}
_TRUE = {"1", "t", "T", "true", "TRUE", "True"}
_FALSE = {"0", "f", "F", "false", "FALSE", "False", ""}


def read_request(pod: Pod, families: Families) -> PodRequest | tuple[Problem, ...]:
    """Read what the pod asks for, or every problem with it."""
    demands: list[ContainerDemand] = []
    problems: list[Problem] = []
    annotations = pod.metadata.annotations
    asked: dict[str, Family] = {}
    for container, role in containers_of(pod):
        kinds = _families_asked(container, families)
        match _read_container(container, kinds, annotations):
            case None:
                continue
            case ContainerRequest() as request:
                asked[request.family] = kinds[0]
                demands.append(ContainerDemand(container.name, role, request))
            case found:
                asked |= {kind.name: kind for kind in kinds}
                problems.extend(found)
    if not demands and not problems:
        return PodRequest(())
    wanted = list(asked.values())
    selection = _read_selection(annotations, wanted, problems)
    _check_choices(annotations, wanted, problems)
    _check_weights(annotations.get(SCORING_WEIGHTS, ""), problems)
    if problems:
        return tuple(problems)
    return PodRequest(
        containers=tuple(demands),
        selection=selection,
        node_policy=annotations.get(NODE_POLICY, "").strip(),
        card_policy=annotations.get(CARD_POLICY, "").strip() or _policy_of_kind(demands, asked),
        scoring_weights=annotations.get(SCORING_WEIGHTS, "").strip(),
    )


def _policy_of_kind(demands: list[ContainerDemand], asked: Mapping[str, Family]) -> str:
    """Return ``topology-aware`` where several cards of the kind only work well, or at all, in certain sets."""
    bound = any(d.request.cards > 1 and asked[d.request.family].topology in ("ring", "group") for d in demands)
    return "topology-aware" if bound else ""


def containers_of(pod: Pod) -> Iterator[tuple[Container, Role]]:
    """Yield init containers then app containers, the order in which the kubelet admits them."""
    for container in pod.spec.init_containers or ():
        yield container, Role.SIDECAR if container.restart_policy == "Always" else Role.INIT
    for container in pod.spec.containers or ():
        yield container, Role.APP


def _read_container(
    container: Container, asked: list[Family], annotations: Mapping[str, str]
) -> ContainerRequest | tuple[Problem, ...] | None:
    if not asked:
        return None
    if len(asked) > 1:
        names = " and ".join(family.resources.count for family in asked)
        where = f"container {container.name}"
        return (Problem(where, "resources", names, "ask for one kind of device in each container"),)
    return ContainerReader(container, asked[0], annotations).read()


def _families_asked(container: Container, families: Families) -> list[Family]:
    resources = container.resources
    if resources is None:
        return []
    found: dict[str, Family] = {}
    for name in (*resources.limits, *resources.requests):
        family = families.by_resource.get(name)
        if family is not None:
            found[family.name] = family
    return list(found.values())


def _read_selection(annotations: Mapping[str, str], wanted: list[Family], problems: list[Problem]) -> CardSelection:
    present = [family for family in wanted if family.selection.keys() & annotations.keys()]
    if len(wanted) > 1 and present:
        key = min(present[0].selection.keys() & annotations.keys())
        remedy = "remove it: cards cannot be picked by annotation in a pod with several kinds of device"
        problems.append(Problem("pod", f"annotation {key}", annotations[key], remedy))
    if not present:
        return CardSelection()
    chosen = present[0].selection
    return CardSelection(
        use_uuids=_listed(annotations, chosen.use_uuid),
        refuse_uuids=_listed(annotations, chosen.nouse_uuid),
        use_types=_listed(annotations, chosen.use_type),
        refuse_types=_listed(annotations, chosen.nouse_type),
        modes=_listed(annotations, chosen.mode),
        same_numa=_read_bool(annotations, chosen.numa_bind, problems),
    )


def models_wanted(annotations: Mapping[str, str], family: Family) -> tuple[str, ...]:
    """Return the card models that a pod insists on; the same words as in :attr:`CardSelection.use_types`."""
    return _listed(annotations, family.selection.use_type)


def _listed(annotations: Mapping[str, str], keys: Iterable[str]) -> tuple[str, ...]:
    words = (word.strip() for key in keys for word in annotations.get(key, "").split(","))
    return tuple(dict.fromkeys(word for word in words if word))


def _read_bool(annotations: Mapping[str, str], keys: Iterable[str], problems: list[Problem]) -> bool:
    for key in keys:
        text = annotations.get(key, "").strip()
        if text in _TRUE:
            return True
        if text not in _FALSE:
            problems.append(Problem("pod", f"annotation {key}", text, "write true or false"))
    return False


def _check_choices(annotations: Mapping[str, str], wanted: list[Family], problems: list[Problem]) -> None:
    for family in wanted:
        for choice in family.choices:
            text = annotations.get(choice.key)
            if text is not None and text not in choice.values:
                remedy = f"write one of {', '.join(choice.values)}"
                problems.append(Problem("pod", f"annotation {choice.key}", text, remedy))


def _check_weights(text: str, problems: list[Problem]) -> None:
    if not text.strip():
        return
    pairs = [part.strip().partition("=") for part in text.split(",")]
    names = [name.strip() for name, _, _ in pairs]
    values = [value.strip() for _, _, value in pairs]
    valid = set(names) == _WEIGHT_NAMES and len(names) == len(_WEIGHT_NAMES)
    digits = all(value.isascii() and value.isdecimal() for value in values)
    if not (valid and digits and any(int(value) for value in values)):
        remedy = "write slot=a,core=b,memory=c with whole numbers of which one is above 0"
        problems.append(Problem("pod", f"annotation {SCORING_WEIGHTS}", text, remedy))
