"""The shape of a pod's demand: which slices it needs at which step of its life.

A pod's regular init containers run one after the other, each together with the native sidecars started before it; then
the sidecars and the app containers run together. So a pod has one *step* for each regular init container that wants a
device, and one last step. What a card must hold is the maximum over the steps of the sum within a step
(https://kubernetes.io/docs/concepts/workloads/pods/init-containers/#resource-sharing-within-containers).

The kubelet hands the slices of a finished init container to the containers after it, before it takes any new one
(pkg/kubelet/cm/devicemanager, reusable devices). The plan walks the containers in the same order, so that the slices
which the kubelet passes on are the ones the plan expects.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from gpuslice.devices.requests import CardSelection, ContainerDemand, ContainerRequest, PodRequest, Role

_ANY_CARD: Final = CardSelection()


@dataclass(frozen=True, slots=True)
class Block:
    """Slices with the same users. They and those of the blocks in ``apart`` are on different cards."""

    cards: int
    steps: tuple[ContainerRequest | None, ...]
    """What uses each of the slices in each step of the pod's life."""
    users: tuple[str, ...]
    """Names of the containers that use these slices."""
    apart: frozenset[int] = frozenset()
    """Positions in :attr:`PodShape.blocks` of other blocks with a user in common."""
    wanted: tuple[tuple[int, ContainerRequest], ...] = field(init=False)
    """Number of each step with a demand, and the demand."""
    family: str = field(init=False)
    """Device family of the slices."""
    core_percent: int = field(init=False)
    """The most that any user wants of each card's compute."""
    exclusive: bool = field(init=False)
    """Whether any user wants the whole card."""

    def __post_init__(self) -> None:
        """Work out once what every look at a card asks for."""
        wanted = tuple((step, request) for step, request in enumerate(self.steps) if request is not None)
        object.__setattr__(self, "wanted", wanted)
        object.__setattr__(self, "family", wanted[0][1].family)
        object.__setattr__(self, "core_percent", max(request.core_percent for _, request in wanted))
        object.__setattr__(self, "exclusive", any(request.exclusive for _, request in wanted))

    def share_mib(self, card_memory_mib: int) -> int:
        """Return the size of each slice on a card with this much memory, MiB: the most that any of its users wants."""
        return max(request.memory_on(card_memory_mib) for _, request in self.wanted)

    @property
    def weight(self) -> tuple[int, int, int, int]:
        """Size for ordering: hardest first."""
        wanted = [request for _, request in self.wanted]
        return (
            int(self.exclusive),
            max(step.memory_percent * 1_000_000 if step.memory_percent else step.memory_mib for step in wanted),
            self.core_percent,
            self.cards,
        )


@dataclass(frozen=True, slots=True)
class PodShape:
    """Everything the fit needs to know of a request, hardest block first."""

    request: PodRequest
    blocks: tuple[Block, ...]
    steps: int
    cpu_milli: int = 0
    """CPU that the whole pod requests; 0 when unknown."""
    is_one_slice: bool = field(init=False, compare=False)
    """The pod wants one slice, once."""
    selection: CardSelection | None = field(init=False, compare=False)
    """Which cards it accepts; None for all."""

    numa_groups: tuple[int, ...] = field(init=False, compare=False)
    """For each block the first of those with which it shares a NUMA node; -1 for a block that may be anywhere.

    All cards of a container that is bound to a NUMA node are on the same one, whichever blocks they are in.
    """

    def __post_init__(self) -> None:
        """Work out once what every look at a node asks for."""
        object.__setattr__(self, "numa_groups", _numa_groups(self.request, self.blocks))
        one = len(self.blocks) == self.steps == 1 and self.blocks[0].cards == 1
        object.__setattr__(self, "is_one_slice", one)
        selection = self.request.selection
        object.__setattr__(self, "selection", None if selection == _ANY_CARD else selection)

    @property
    def families(self) -> frozenset[str]:
        """Device families the pod wants."""
        return frozenset(block.family for block in self.blocks)

    @property
    def cards(self) -> int:
        """Slices wanted in all."""
        return sum(block.cards for block in self.blocks)


class _Item:
    """One slice while the walk is under way."""

    __slots__ = ("steps", "users")

    def __init__(self, steps: int) -> None:
        self.steps: list[ContainerRequest | None] = [None] * steps
        self.users: list[str] = []

    def use(self, demand: ContainerDemand, steps: range) -> None:
        self.users.append(demand.name)
        for step in steps:
            self.steps[step] = demand.request


@lru_cache(maxsize=4096)
def shape_of(request: PodRequest, cpu_milli: int = 0) -> PodShape:
    """Return the shape of a request. Cached: pods come in few classes."""
    steps = 1 + sum(1 for demand in request.containers if demand.role is Role.INIT)
    blocks = _group(_walk(request.containers, steps))
    ordered = sorted(blocks, key=lambda block: block.weight, reverse=True)
    return PodShape(request, _set_apart(ordered), steps, cpu_milli)


def _walk(containers: Sequence[ContainerDemand], steps: int) -> list[_Item]:
    """Hand out slices in the kubelet's order: reusable ones first."""
    items: list[_Item] = []
    reusable: dict[str, list[_Item]] = {}
    past_inits = 0
    for demand in containers:
        pool = reusable.setdefault(demand.request.family, [])
        taken = pool[: demand.request.cards]
        fresh = [_Item(steps) for _ in range(demand.request.cards - len(taken))]
        items.extend(fresh)
        if demand.role is Role.INIT:
            pool.extend(fresh)
            alive = range(past_inits, past_inits + 1)
            past_inits += 1
        else:
            del pool[: len(taken)]
            alive = range(past_inits, steps) if demand.role is Role.SIDECAR else range(steps - 1, steps)
        for item in (*taken, *fresh):
            item.use(demand, alive)
    return items


def _group(items: Sequence[_Item]) -> list[Block]:
    counts: dict[tuple[tuple[str, ...], tuple[ContainerRequest | None, ...]], int] = {}
    for item in items:
        key = (tuple(item.users), tuple(item.steps))
        counts[key] = counts.get(key, 0) + 1
    return [Block(cards=count, steps=steps, users=users) for (users, steps), count in counts.items()]


def _set_apart(blocks: Sequence[Block]) -> tuple[Block, ...]:
    return tuple(
        Block(
            cards=block.cards,
            steps=block.steps,
            users=block.users,
            apart=frozenset(
                other for other, them in enumerate(blocks) if other != position and set(them.users) & set(block.users)
            ),
        )
        for position, block in enumerate(blocks)
    )


def _numa_groups(request: PodRequest, blocks: Sequence[Block]) -> tuple[int, ...]:
    groups = [-1] * len(blocks)
    if not request.selection.same_numa:
        return tuple(groups)
    for demand in request.containers:
        mine = [at for at, block in enumerate(blocks) if demand.name in block.users]
        if demand.request.cards > 1:
            joined = {groups[at] for at in mine} - {-1}
            first = min({*mine, *joined})
            groups = [first if at in mine or group in joined else group for at, group in enumerate(groups)]
    return tuple(groups)
