"""One node as plain numbers, and the plan that grows on it: the plain reference of the column scan."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gpuslice.devices.requests import CardSelection
from gpuslice.devices.value import Value
from gpuslice.placement.fleet import MIXED, UNKNOWN_CPU, Fleet
from gpuslice.placement.holding import CardUse
from gpuslice.placement.rejection import Obstacle
from gpuslice.placement.selection import card_accepted
from gpuslice.placement.shape import Block, PodShape

if TYPE_CHECKING:
    from gpuslice.placement.room import Room

Change = tuple[int, CardUse]
"""A use to count in (+1) or out (-1) before planning."""
_KEPT_VIEWS: Final = 2_048
"""A view of 8 cards takes 7 kB."""


@dataclass(slots=True)
class CardState:
    """One card: what it has, what is promised, and what the plan adds."""

    uuid: str
    model: str
    family: str
    mode: str
    numa: int
    healthy: bool
    cordoned: bool
    total_slots: int
    total_memory: int
    total_cores: int
    kind: int
    """Number of the family and model in the fleet's vocabulary."""
    equal_shares: bool
    used_slots: int
    used_memory: int
    used_cores: int
    exclusive: int
    """Holders that want the card alone."""
    share_mib: int
    """Size of the shares in use, where all must have the same."""
    planned_mib: int
    """The same for the shares of the plan."""
    extra_slots: int
    extra_exclusive: int
    extra_memory: list[int]
    """By step."""
    extra_cores: list[int]

    @property
    def slots_after(self) -> int:
        """Slots in use with the plan."""
        return self.used_slots + self.extra_slots

    @property
    def memory_after(self) -> int:
        """MiB in use with the plan, at its peak."""
        return self.used_memory + max(self.extra_memory)

    @property
    def cores_after(self) -> int:
        """Percent in use with the plan, at its peak."""
        return self.used_cores + max(self.extra_cores)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What of a node stays as it is while pods come and go; shared by all looks at it."""

    name: str
    columns: tuple[Sequence[Any], ...]
    """The fields of :class:`CardState` up to ``equal_shares``, each for all cards."""
    links: tuple[tuple[int, ...], ...]
    one_kind: bool
    """All cards are of one family and model."""


@dataclass(slots=True)
class NodeView:
    """One node and the plan so far."""

    facts: NodeFacts
    cards: list[CardState]
    cpu_free: int
    """Thousandths of a core; -1 when unknown."""
    cpu_wanted: int
    chosen: list[tuple[int, ...]] = field(default_factory=list)
    """Columns chosen for each block, in the order of the shape."""
    left_before: list[int] = field(default_factory=list)
    """Thousandths left of each card without the plan, once :mod:`fragments` was asked."""
    left: list[int] = field(default_factory=list)
    """Thousandths left of each card with the plan, as far as :mod:`fragments` was asked; see ``moved``."""
    moved: list[int] = field(default_factory=list)
    """Columns of ``left`` that the plan has changed since."""
    before: dict[object, Any] = field(default_factory=dict)
    """What rankings remember of the node without the plan, each under a key of its own."""
    rooms: list["Room"] = field(default_factory=list)
    """State of each card without the plan, once :mod:`gpuslice.placement.room` was asked."""
    state: tuple["Room", ...] = ()
    """The same as ``rooms``, as a key: the cards of nodes of equal state have the same left."""
    firsts: list[tuple[int, "Room"]] = field(default_factory=list)
    """Columns and states of the cards, of those in the same state only the first."""
    changed: set[int] = field(default_factory=set)
    """Columns of the cards whose books have changed since; kept by :class:`gpuslice.placement.books.Books`."""

    @property
    def name(self) -> str:
        """Name of the node."""
        return self.facts.name

    @property
    def links(self) -> tuple[tuple[int, ...], ...]:
        """Link values between the cards, in column order; empty when unknown."""
        return self.facts.links


class NodeRecord(Value, frozen=True):
    """A node as it was at some moment, in little space."""

    facts: NodeFacts
    usage: tuple[tuple[int, ...], ...]
    """For each card the fields of :class:`CardState` from ``used_slots`` to ``share_mib``."""
    cpu_free: int

    @classmethod
    def of(cls, view: NodeView) -> "NodeRecord":
        """Take down a node without the plan on it."""
        usage = [(c.used_slots, c.used_memory, c.used_cores, c.exclusive, c.share_mib) for c in view.cards]
        return cls(view.facts, tuple(usage), view.cpu_free)

    def view(self, shape: PodShape) -> NodeView:
        """Return the node as it was, with an empty plan."""
        usage = tuple(zip(*self.usage, strict=True)) or ((),) * 5
        return _view(self.facts, usage, self.cpu_free, shape)


def planning_view(fleet: Fleet, row: int, shape: PodShape) -> NodeView:
    """Return a node's state with an empty plan, to plan on: it is lent until the next call for the same node.

    Between two looks few nodes change, and pods of several classes look at each: so views are kept.
    """
    if shape.steps > 1:
        return view_of(fleet, row, shape)
    version, kept = fleet.version.item(row), fleet.views
    known = kept.get(row)
    if known is None:
        if len(kept) >= _KEPT_VIEWS:
            del kept[next(iter(kept))]
        view = view_of(fleet, row, shape)
        kept[row] = (version, view)
        return view
    view = known[1]
    view.cpu_wanted = shape.cpu_milli
    clear(view)
    if known[0] != version:
        _update(view, fleet, row)
        kept[row] = (version, view)
    return view


def clear(view: NodeView) -> None:
    """Take everything off the plan of a pod without init containers."""
    for columns in view.chosen:
        for column in columns:
            card = view.cards[column]
            card.extra_slots = card.extra_exclusive = card.planned_mib = 0
            card.extra_memory[0] = card.extra_cores[0] = 0
        view.moved += columns
    if not view.left or len(view.moved) > len(view.cards):
        # Nobody has asked for what is left, or not for long: it is worked out anew when somebody does.
        view.left.clear()
        view.moved.clear()
    view.chosen.clear()


def _update(view: NodeView, fleet: Fleet, row: int) -> None:
    """Bring a view with an empty plan up to date: its cards are the same, but others hold shares of them."""
    for column in view.changed:
        card = view.cards[column]
        card.used_slots = fleet.used_slots.item(row, column)
        card.used_memory = fleet.used_memory.item(row, column)
        card.used_cores = fleet.used_cores.item(row, column)
        card.exclusive = fleet.exclusive.item(row, column)
        card.share_mib = fleet.share_mib.item(row, column)
    view.cpu_free = _cpu_free(fleet, row)
    for kept in (view.left_before, view.left, view.moved, view.before):
        kept.clear()


def view_of(fleet: Fleet, row: int, shape: PodShape, changes: Sequence[Change] = ()) -> NodeView:
    """Return one node's state.

    Args:
        fleet: The columns.
        row: The node's row.
        shape: The pod that will be planned.
        changes: Uses to count in or out, on top of the books.
    """
    view = _view(_facts(fleet, row), _usage(fleet, row), _cpu_free(fleet, row), shape)
    for sign, use in changes:
        column = fleet.column(row, use.uuid)
        if column >= 0:
            _change(view.cards[column], sign, use)
    return view


def _facts(fleet: Fleet, row: int) -> NodeFacts:
    uuids = fleet.uuids(row)
    width = len(uuids)
    kinds = fleet.kind[row, :width].tolist()
    columns = (
        uuids,
        [fleet.models.words[number] for number in fleet.model[row, :width].tolist()],
        [fleet.families.words[number] for number in fleet.family[row, :width].tolist()],
        [fleet.modes.words[number] for number in fleet.mode[row, :width].tolist()],
        fleet.numa[row, :width].tolist(),
        fleet.healthy[row, :width].tolist(),
        fleet.cordoned[row, :width].tolist(),
        fleet.total_slots[row, :width].tolist(),
        fleet.total_memory[row, :width].tolist(),
        fleet.total_cores[row, :width].tolist(),
        kinds,
        fleet.equal_shares[row, :width].tolist(),
    )
    return NodeFacts(fleet.names[row], columns, fleet.links(row), len(set(kinds)) == 1)


def _usage(fleet: Fleet, row: int) -> tuple[Sequence[int], ...]:
    width = len(fleet.uuids(row))
    return (
        fleet.used_slots[row, :width].tolist(),
        fleet.used_memory[row, :width].tolist(),
        fleet.used_cores[row, :width].tolist(),
        fleet.exclusive[row, :width].tolist(),
        fleet.share_mib[row, :width].tolist(),
    )


def _cpu_free(fleet: Fleet, row: int) -> int:
    total = fleet.cpu_total.item(row)
    return UNKNOWN_CPU if total < 0 else total - fleet.cpu_used.item(row)


def _view(facts: NodeFacts, usage: tuple[Sequence[int], ...], cpu_free: int, shape: PodShape) -> NodeView:
    width = len(facts.columns[0])
    zeros = [[0] * width for _ in range(3)]
    by_step = [[[0] * shape.steps for _ in range(width)] for _ in range(2)]
    cards = list(map(CardState, *facts.columns, *usage, *zeros, *by_step))
    return NodeView(facts, cards, cpu_free, shape.cpu_milli)


def _change(card: CardState, sign: int, use: CardUse) -> None:
    if sign > 0:
        card.share_mib = use.share_mib if card.used_slots == 0 or card.share_mib == use.share_mib else MIXED
    card.used_slots += sign * use.slices.bit_count()
    card.used_memory += sign * use.memory_mib
    card.used_cores += sign * use.core_percent
    card.exclusive += sign * int(use.exclusive)


def obstacle(card: CardState, block: Block, selection: CardSelection | None, *, idle_only: bool) -> Obstacle:
    """Return the first thing that keeps a card from holding one slice of a block.

    The order is the order of :class:`Obstacle`; the column scan tests in the same order.
    """
    return (
        _unwanted(card, block, selection) or barred(card) or _full(card, block, idle_only=block.exclusive or idle_only)
    )


def _unwanted(card: CardState, block: Block, selection: CardSelection | None) -> Obstacle:
    if card.family != block.family:
        return Obstacle.TOO_FEW_CARDS
    if selection is not None and not card_accepted(selection, card.uuid, card.model, card.mode):
        return Obstacle.SELECTION
    return Obstacle.NONE


def barred(card: CardState) -> Obstacle:
    """Return what keeps a card from holding anything new, whatever is left of it."""
    if not card.healthy:
        return Obstacle.UNHEALTHY
    if card.cordoned:
        return Obstacle.CORDONED
    return Obstacle.EXCLUSIVE if card.exclusive + card.extra_exclusive else Obstacle.NONE


def _full(card: CardState, block: Block, *, idle_only: bool) -> Obstacle:
    slots = card.used_slots + card.extra_slots
    if idle_only and slots:
        return Obstacle.BUSY
    if slots >= card.total_slots:
        return Obstacle.SLOTS
    for step, request in block.wanted:
        if card.used_memory + card.extra_memory[step] + request.memory_on(card.total_memory) > card.total_memory:
            return Obstacle.MEMORY
    for step, request in block.wanted:
        # A card whose compute is promised to others in full has none to spare, not even for a container without a cap.
        wanted = card.extra_cores[step] + request.core_percent if request.core_percent else 1
        if card.used_cores + wanted > card.total_cores:
            return Obstacle.CORES
    return Obstacle.SHARE_SIZE if card.equal_shares and _of_another_size(card, block) else Obstacle.NONE


def _of_another_size(card: CardState, block: Block) -> bool:
    size = block.share_mib(card.total_memory)
    return bool((card.used_slots and card.share_mib != size) or (card.extra_slots and card.planned_mib != size))


def take(view: NodeView, block: Block, columns: tuple[int, ...], *, exclusive: bool) -> None:
    """Put a block on the chosen columns of the plan."""
    for column in columns:
        card = view.cards[column]
        card.extra_slots += 1
        card.planned_mib = block.share_mib(card.total_memory)
        card.extra_exclusive += int(exclusive)
        for step, request in block.wanted:
            card.extra_memory[step] += request.memory_on(card.total_memory)
            card.extra_cores[step] += request.core_percent
    view.moved += columns
    view.chosen.append(columns)


def take_back(view: NodeView, block: Block, *, exclusive: bool) -> None:
    """Undo the last :func:`take`, which put this block on the plan."""
    columns = view.chosen.pop()
    view.moved += columns
    for column in columns:
        card = view.cards[column]
        card.extra_slots -= 1
        card.extra_exclusive -= int(exclusive)
        for step, request in block.wanted:
            card.extra_memory[step] -= request.memory_on(card.total_memory)
            card.extra_cores[step] -= request.core_percent


def apart_columns(view: NodeView, shape: PodShape, position: int) -> set[int]:
    """Return columns that a block may not use, because a container of it has a slice there already."""
    taken: set[int] = set()
    for other in shape.blocks[position].apart:
        if other < len(view.chosen):
            taken.update(view.chosen[other])
    return taken


def numa_home(view: NodeView, shape: PodShape, position: int) -> int | None:
    """Return the NUMA node of the blocks in the plan with which a block must share it; None if there is no such."""
    group = shape.numa_groups[position]
    for other in range(position):
        if group >= 0 and shape.numa_groups[other] == group:
            return view.cards[view.chosen[other][0]].numa
    return None
