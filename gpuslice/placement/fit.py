"""Fit one pod on one node, in plain Python. The column scan must agree with this on every node."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from gpuslice.placement.combination import Allowance, Combination
from gpuslice.placement.fleet import UNKNOWN_NUMA, Fleet
from gpuslice.placement.rejection import Obstacle
from gpuslice.placement.room import Room, accepted, look_round, that_hold
from gpuslice.placement.shape import Block, PodShape
from gpuslice.placement.view import (
    Change,
    NodeView,
    apart_columns,
    numa_home,
    obstacle,
    planning_view,
    take,
    view_of,
)

if TYPE_CHECKING:
    from gpuslice.placement.policies.policy import Policy


class Fit(NamedTuple):
    """A plan on one node: columns for each block of the shape, and the node's score (higher is better)."""

    columns: tuple[tuple[int, ...], ...]
    score: float


Known = dict[tuple[tuple[Room, ...], int], Fit | Obstacle]
"""What was found for one shape and policy, by the state of a node's cards and its free CPU."""
_KEPT: Final = 256
"""States that are remembered for a class of pods; 400 bytes each on nodes of 8 cards."""


def fit_node(
    fleet: Fleet,
    row: int,
    shape: PodShape,
    policy: "Policy",
    changes: Sequence[Change] = (),
    *,
    allowance: Allowance | None = None,
) -> Fit | Obstacle:
    """Choose cards for every block of a pod, hardest block first, and score the node.

    Each block takes its best cards in turn. Where a later one then finds too few, other cards are tried for those
    before it (:mod:`gpuslice.placement.combination`): a pod is refused only if no choice at all holds it.

    Args:
        fleet: The columns.
        row: Row of the node.
        shape: What the pod wants.
        policy: Which cards and nodes are better.
        changes: Uses to count in or out first (what is reserved for this very pod, what a victim would free).
        allowance: Pays for the search, if there is one.
    """
    shut = _shut(fleet, row)
    if shut is not None:
        return shut
    view = view_of(fleet, row, shape, changes) if changes else planning_view(fleet, row, shape)
    if shape.is_one_slice:
        return fit_slice(view, shape, policy)
    return fit_blocks(view, shape, policy, afresh=partial(view_of, fleet, row, shape, changes), allowance=allowance)


def _shut(fleet: Fleet, row: int) -> Obstacle | None:
    """Return what keeps every pod from a node."""
    if not fleet.uuids(row):
        return Obstacle.UNKNOWN_NODE
    if not fleet.ready.item(row):
        return Obstacle.NOT_READY
    return Obstacle.UNCLEAR if fleet.unclear.item(row) else None


def fit_again(known: Known, fleet: Fleet, row: int, shape: PodShape, policy: "Policy") -> Fit | Obstacle:
    """Do what :func:`fit_node` does, and remember it for all nodes in the same state.

    Only for pods of one slice whose cards and nodes are ranked jointly: then nothing but the state counts, the first of
    equal cards is taken, and no name or link is looked at. ``known`` is for this shape and policy alone.
    """
    shut = _shut(fleet, row)
    if shut is not None:
        return shut
    if policy.joint is None or shape.selection is not None or not shape.is_one_slice:
        return fit_node(fleet, row, shape, policy)
    view = planning_view(fleet, row, shape)
    look_round(view)
    state = view.state, view.cpu_free
    found = known.get(state)
    if found is None:
        found = fit_slice(view, shape, policy)
        if view.facts.one_kind:
            if len(known) >= _KEPT:
                known.clear()
            known[state] = found
    return found


def fit_blocks(
    view: NodeView,
    shape: PodShape,
    policy: "Policy",
    *,
    afresh: Callable[[], NodeView],
    allowance: Allowance | None = None,
) -> Fit | Obstacle:
    """Choose cards for blocks of any number and kind; ``afresh`` returns the node once more, without a plan."""
    for position in range(len(shape.blocks)):
        found = choose(view, shape, position, policy)
        if isinstance(found, Obstacle):
            if not position:
                return found
            view = afresh()
            if not _combine(view, shape, policy, allowance):
                return Obstacle.COMBINATION
            break
        take(view, shape.blocks[position], found, exclusive=shape.blocks[position].exclusive or policy.idle_only)
    return Fit(tuple(view.chosen), policy.node.score(view, shape))


def fit_slice(view: NodeView, shape: PodShape, policy: "Policy") -> Fit | Obstacle:
    """Do what :func:`fit_blocks` does for a pod of one slice, in a third of the time: most pods are such."""
    look_round(view)
    block, selection = shape.blocks[0], shape.selection
    rooms = view.firsts if selection is None else accepted(view, selection)
    joint = policy.joint if view.facts.one_kind else None
    if joint is None and selection is None:
        rooms = list(enumerate(view.rooms))
    rooms = that_hold(rooms, block, idle_only=policy.idle_only)
    if not rooms:
        return _one_shortage(view, shape, policy)
    if joint is not None:
        column, score = joint.best(view, block, rooms)
        return Fit(((column,),), score)
    best = _ranked(view, block, [column for column, _ in rooms], policy)[:1]
    take(view, block, tuple(best), exclusive=block.exclusive or policy.idle_only)
    return Fit((tuple(best),), policy.node.score(view, shape))


def _one_shortage(view: NodeView, shape: PodShape, policy: "Policy") -> Obstacle:
    """Return the test after which no card was left: the one that the last of them fails."""
    columns = range(len(view.cards)) if shape.selection is not None else [column for column, _ in view.firsts]
    found = [
        obstacle(view.cards[column], shape.blocks[0], shape.selection, idle_only=policy.idle_only) for column in columns
    ]
    return max(found, default=Obstacle.TOO_FEW_CARDS)


def _combine(view: NodeView, shape: PodShape, policy: "Policy", allowance: Allowance | None) -> bool:
    """Plan all blocks on an empty plan, whatever it takes; False if they do not fit together."""
    orders = []
    for position, block in enumerate(shape.blocks):
        found = obstacles(view, shape, position, idle_only=policy.idle_only)
        usable = [column for column, what in enumerate(found) if what is Obstacle.NONE]
        if len(usable) < block.cards:
            return False
        orders.append(_ranked(view, block, usable, policy))
    return Combination(view, shape, orders, idle_only=policy.idle_only).search(allowance)


def obstacles(view: NodeView, shape: PodShape, position: int, *, idle_only: bool) -> list[Obstacle]:
    """Return what stands between each card of the node and one slice of a block."""
    block = shape.blocks[position]
    found = [obstacle(card, block, shape.selection, idle_only=idle_only) for card in view.cards]
    if block.apart:
        for column in apart_columns(view, shape, position):
            found[column] = found[column] or Obstacle.COMBINATION
    return found


def choose(view: NodeView, shape: PodShape, position: int, policy: "Policy") -> tuple[int, ...] | Obstacle:
    """Choose the cards of one block, best first; ties go to the lower UUID."""
    block = shape.blocks[position]
    found = obstacles(view, shape, position, idle_only=policy.idle_only)
    usable = [column for column, what in enumerate(found) if what is Obstacle.NONE]
    if len(usable) < block.cards:
        return _first_shortage(found, block.cards)
    numa_bound = shape.numa_groups[position] >= 0
    if numa_bound:
        home = numa_home(view, shape, position)
        usable = _on_big_enough_numa(view, usable, block.cards, home)
        if not usable:
            return Obstacle.NUMA
    ranked = _ranked(view, block, usable, policy)
    if numa_bound:
        home = view.cards[ranked[0]].numa
        ranked = [column for column in ranked if view.cards[column].numa == home]
    return tuple(ranked[: block.cards])


def _ranked(view: NodeView, block: Block, usable: Sequence[int], policy: "Policy") -> list[int]:
    order = list(range(len(usable)))
    for ranking in reversed(policy.cards):
        # Sorts are stable, in reverse as well: the first ranking comes last and decides.
        order.sort(key=ranking.keys(view, block, usable).__getitem__, reverse=True)
    return [usable[at] for at in order]


def _first_shortage(found: Sequence[Obstacle], wanted: int) -> Obstacle:
    """Return the first test after which too few cards were left."""
    for stage in sorted({Obstacle.TOO_FEW_CARDS, *found} - {Obstacle.NONE}):
        if sum(1 for what in found if what is Obstacle.NONE or what > stage) < wanted:
            return stage
    return Obstacle.TOO_FEW_CARDS


def _on_big_enough_numa(view: NodeView, usable: Sequence[int], wanted: int, home: int | None) -> list[int]:
    """Return the cards on NUMA nodes with enough of them; on one NUMA node alone if there is a home already."""
    sizes: dict[int, int] = {}
    for column in usable:
        numa = view.cards[column].numa
        if numa != UNKNOWN_NUMA and home in (None, numa):
            sizes[numa] = sizes.get(numa, 0) + 1
    return [column for column in usable if sizes.get(view.cards[column].numa, 0) >= wanted]
