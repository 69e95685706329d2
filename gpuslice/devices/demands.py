"""What a pod asks for, as values. :mod:`gpuslice.devices.requests` reads them from a pod."""

from dataclasses import dataclass, field
from enum import Enum


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
    """Model names, matched by :func:`gpuslice.devices.models.model_matches`."""
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
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Hash once: every decision looks up by request several times."""
        values = (self.containers, self.selection, self.node_policy, self.card_policy, self.scoring_weights)
        object.__setattr__(self, "_hash", hash(values))

    def __hash__(self) -> int:
        """Return the same for equal requests."""
        return self._hash

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
    """What is wrong and what to write instead."""

    def __str__(self) -> str:
        """Return the one line that a person reads."""
        return f"{self.where}: {self.field}={self.value!r}: {self.remedy}"
