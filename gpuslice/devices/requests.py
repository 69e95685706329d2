"""What a pod asks for, read from its containers and annotations.

One reader serves the webhook (which turns problems into a denial) and the scheduler (which trusts nothing and reads
again). Containers are addressed by name, never by position.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from gpuslice.devices.errors import BadQuantity
from gpuslice.devices.families.family import Family
from gpuslice.devices.pods import Container, Pod, Quantity
from gpuslice.devices.quantity import mebibytes, whole_number

NODE_POLICY = "hami.io/node-scheduler-policy"
CARD_POLICY = "hami.io/gpu-scheduler-policy"
SCORING_WEIGHTS = "hami.io/device-scoring-weights"
MAX_CARDS = 1024


class Role(Enum):
    """How a container's share counts: by maximum (INIT) or by sum (SIDECAR, APP)."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """Share that a container wants of *each* of its cards, which are distinct physical cards."""

    cards: int
    memory_mib: int = 0
    """MiB per card; 0 when ``memory_percent`` speaks."""
    core_percent: int = 0
    """Compute cap, percent of a card; 0 means no cap."""
    memory_percent: int = 0
    """Percent of the card's memory; 0 when ``memory_mib`` speaks."""
    exclusive: bool = False
    """The whole card, shared with nobody."""
    family: str = "nvidia"

    def memory_on(self, card_memory_mib: int) -> int:
        """Return the MiB wanted of a card with this much memory (percentages round down)."""
        if self.memory_percent:
            return card_memory_mib * self.memory_percent // 100
        return self.memory_mib


@dataclass(frozen=True, slots=True)
class ContainerDemand:
    """One container's name, role and request."""

    name: str
    role: Role
    request: ContainerRequest


@dataclass(frozen=True, slots=True)
class CardSelection:
    """Which cards a pod accepts. Empty tuples mean no constraint."""

    use_uuids: tuple[str, ...] = ()
    refuse_uuids: tuple[str, ...] = ()
    use_types: tuple[str, ...] = ()
    """Model names, matched by whole tokens without regard to case: "A10" does not match "A100"."""
    refuse_types: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    same_numa: bool = False


@dataclass(frozen=True, slots=True)
class PodRequest:
    """Everything a pod asks of the placement. Hashable: equal requests are one class and share cached scores."""

    containers: tuple[ContainerDemand, ...]
    selection: CardSelection = CardSelection()
    node_policy: str = ""
    """Policy names as the user wrote them; empty means the cluster's default."""
    card_policy: str = ""
    scoring_weights: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether the pod wants no device at all."""
        return not self.containers


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a pod, in words for the person who wrote it."""

    where: str
    """``container main`` or ``annotation nvidia.com/use-gputype``"""
    field: str
    value: str
    remedy: str

    def __str__(self) -> str:
        """Return the one line that a person reads."""
        return f"{self.where}: {self.field}={self.value!r}: {self.remedy}"


def read_request(pod: Pod, families: Sequence[Family]) -> PodRequest | tuple[Problem, ...]:
    """Read what the pod asks for, or every problem with it."""
    demands: list[ContainerDemand] = []
    problems: list[Problem] = []
    for container, role in _containers(pod):
        match _read_container(container, families):
            case None:
                continue
            case ContainerRequest() as request:
                demands.append(ContainerDemand(container.name, role, request))
            case found:
                problems.extend(found)
    if problems:
        return tuple(problems)
    annotations = pod.metadata.annotations
    prefixes = [
        family.annotation_prefix for family in families if any(d.request.family == family.name for d in demands)
    ]
    return PodRequest(
        containers=tuple(demands),
        selection=_read_selection(annotations, prefixes),
        node_policy=annotations.get(NODE_POLICY, "").strip(),
        card_policy=annotations.get(CARD_POLICY, "").strip(),
        scoring_weights=annotations.get(SCORING_WEIGHTS, "").strip(),
    )


def _containers(pod: Pod) -> Iterable[tuple[Container, Role]]:
    """Yield init containers then app containers, the order in which the kubelet admits them."""
    for container in pod.spec.init_containers or ():
        yield container, Role.SIDECAR if container.restart_policy == "Always" else Role.INIT
    for container in pod.spec.containers or ():
        yield container, Role.APP


def _read_container(container: Container, families: Sequence[Family]) -> ContainerRequest | tuple[Problem, ...] | None:
    asked = [family for family in families if _asks(container, family)]
    if not asked:
        return None
    if len(asked) > 1:
        names = " and ".join(family.count for family in asked)
        return (_problem(container, "resources", names, "ask for one device family in each container"),)
    return _FamilyReader(container, asked[0]).read()


def _asks(container: Container, family: Family) -> bool:
    resources = container.resources
    return resources is not None and any(resources.get(name) is not None for name in family.resources)


def _problem(container: Container, field: str, value: str, remedy: str) -> Problem:
    return Problem(f"container {container.name}", field, value, remedy)


class _FamilyReader:
    """Reads one container's request for one family and collects what is wrong with it."""

    def __init__(self, container: Container, family: Family) -> None:
        self._container = container
        self._family = family
        self._problems: list[Problem] = []

    def read(self) -> ContainerRequest | tuple[Problem, ...] | None:
        family = self._family
        count = self._number(family.count, default=1, maximum=MAX_CARDS)
        memory = self._memory()
        percent = self._number(family.memory_percent, default=0, maximum=100)
        cores = self._number(family.cores, default=family.default_core_percent, maximum=100)
        if count == 0:
            others = [name for name in family.resources if name != family.count and self._quantity(name) is not None]
            if not others and not self._problems:
                return None
            self._complain(family.count, "0", "ask for at least 1 card, or remove the other device resources")
        if memory and percent:
            self._complain(str(family.memory_percent), str(percent), f"give either this or {family.memory}, not both")
        if self._problems:
            return tuple(self._problems)
        if not memory and not percent:
            memory, percent = (family.default_memory_mib, 0) if family.default_memory_mib else (0, 100)
        return ContainerRequest(
            cards=count,
            memory_mib=memory,
            memory_percent=percent,
            core_percent=cores,
            exclusive=cores == 100,
            family=family.name,
        )

    def _quantity(self, name: str | None) -> Quantity | None:
        resources = self._container.resources
        return resources.get(name) if resources is not None and name is not None else None

    def _complain(self, field: str, value: str, remedy: str) -> None:
        self._problems.append(_problem(self._container, field, value, remedy))

    def _number(self, name: str | None, *, default: int, maximum: int) -> int:
        quantity = self._quantity(name)
        if quantity is None:
            return default
        try:
            return whole_number(quantity, maximum=maximum)
        except BadQuantity as error:
            self._complain(str(name), str(quantity), f"{error.problem}; {error.remedy}")
            return default

    def _memory(self) -> int:
        quantity = self._quantity(self._family.memory)
        if quantity is None:
            return 0
        try:
            return mebibytes(quantity, factor=self._family.memory_unit_mib)
        except BadQuantity as error:
            self._complain(str(self._family.memory), str(quantity), f"{error.problem}; {error.remedy}")
            return 0


def _read_selection(annotations: Mapping[str, str], prefixes: Iterable[str]) -> CardSelection:
    def listed(suffix: str) -> tuple[str, ...]:
        values = (annotations.get(f"{prefix}/{suffix}", "") for prefix in prefixes)
        return tuple(word.strip() for value in values for word in value.split(",") if word.strip())

    numa = listed("numa-bind")
    return CardSelection(
        use_uuids=listed("use-gpuuuid"),
        refuse_uuids=listed("nouse-gpuuuid"),
        use_types=listed("use-gputype"),
        refuse_types=listed("nouse-gputype"),
        modes=listed("vgpu-mode"),
        same_numa=bool(numa) and numa[0].lower() in {"1", "t", "true"},
    )
