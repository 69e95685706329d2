"""The questions of a scheduling cycle: which nodes, how good, and which slices exactly."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import structs

from gpuslice.devices.allocation import PodAllocation, SliceShare
from gpuslice.devices.inventory import slice_id
from gpuslice.devices.requests import ContainerRequest, PodRequest
from gpuslice.devices.value import Value
from gpuslice.placement.fit import Fit, fit_node
from gpuslice.placement.fleet import Codes, Floats, Ints
from gpuslice.placement.holding import Holding
from gpuslice.placement.ledger import Ledger
from gpuslice.placement.policies.policy import Policy
from gpuslice.placement.policies.registry import PolicyDefaults, resolve
from gpuslice.placement.rejection import TEXTS, Obstacle, Rejection
from gpuslice.placement.reservation import Reservation
from gpuslice.placement.shape import Block, PodShape, shape_of
from gpuslice.placement.view import Change

Names = np.ndarray[tuple[int], np.dtype[np.object_]]
BEST_SCORE: Final = 10
"""kube-scheduler's MaxExtenderPriority."""
_SAME_NODE: Final = 1e12
_SAME_DOMAIN: Final = 1e9


class Asker(Value, frozen=True):
    """What of a pod's identity matters to a decision."""

    uid: str = ""
    """What is reserved for this UID, or assumed for it already, is free to it."""
    cpu_milli: int = 0
    group: str = ""


NOBODY: Final = Asker()


class Candidates:
    """Node names with their rows, looked up once. Keep it as long as kube-scheduler sends the same names."""

    __slots__ = ("layout", "names", "rows")

    def __init__(self, ledger: Ledger, names: Iterable[str]) -> None:
        self.names = np.array(list(names), dtype=object)
        self._look_up(ledger)

    def fresh(self, ledger: Ledger) -> "Candidates":
        """Return itself with rows that are valid now."""
        if self.layout != ledger.fleet.layout:
            self._look_up(ledger)
        return self

    def _look_up(self, ledger: Ledger) -> None:
        row_of = ledger.fleet.row_of
        # map and repeat stay in C: a quarter of the time of a generator, for the longest loop of a /filter call.
        rows = np.fromiter(map(row_of.get, self.names, repeat(-1)), dtype=np.int64, count=len(self.names))
        self.rows: Ints = rows
        self.layout = ledger.fleet.layout


class Decision(Value, frozen=True):
    """Verdict and score of every candidate node for one pod."""

    request: PodRequest
    policy: str
    rows: Ints
    """Row of each candidate in the fleet, in the order asked; -1 for a node that the ledger does not know."""
    ledger_names: Sequence[str]
    """Names of the fleet's rows."""
    given_names: Names | None
    """Names as asked, when they were asked by name."""
    codes: Codes
    """Obstacle of each candidate; 0 where the pod fits."""
    scores: Floats
    """Higher is better; 0 where the pod does not fit."""
    rank_of_row: npt.NDArray[np.int32]
    """Tie-break by row of the fleet: lower is better."""
    fitting: Ints
    """Positions of the candidates that fit."""
    top: Ints
    """Those of them that share the best score."""

    def among(self, names: Sequence[str]) -> "Decision":
        """Return the same decision with all other candidates refused."""
        kept = np.isin(self.names.astype(str), list(names))
        codes = np.where(kept, self.codes, np.uint8(Obstacle.UNKNOWN_NODE))
        fitting, top = _fitting(codes, self.scores)
        return structs.replace(self, codes=codes, fitting=fitting, top=top)

    @property
    def names(self) -> Names:
        """Names of the candidates, in the order asked."""
        if self.given_names is not None:
            return self.given_names
        return np.array([self.ledger_names[row] if row >= 0 else "" for row in self.rows.tolist()], dtype=object)

    @property
    def ranks(self) -> Ints:
        """Tie-break of each candidate: lower is better; 0 for a node that the ledger does not know."""
        ranks: Ints = np.zeros(len(self.rows), dtype=np.int64)
        known = self.rows >= 0
        ranks[known] = self.rank_of_row[self.rows[known]]
        return ranks

    @property
    def feasible(self) -> list[str]:
        """Names of the nodes that fit, in the order asked."""
        names: list[str] = self.names[self.fitting].tolist()
        return names

    @property
    def fits_anywhere(self) -> bool:
        """Whether any node fits."""
        return len(self.fitting) > 0

    def refused(self) -> dict[str, str]:
        """Return the constant reason of every node that does not fit."""
        texts = [TEXTS[obstacle] for obstacle in Obstacle]
        at = np.flatnonzero(self.codes)
        return dict(zip(self.names[at].tolist(), [texts[code] for code in self.codes[at].tolist()], strict=True))

    def counts(self) -> dict[str, int]:
        """Return how many nodes each reason refuses."""
        numbers = np.bincount(self.codes, minlength=len(Obstacle))
        return {TEXTS[o]: int(numbers[o]) for o in Obstacle if o is not Obstacle.NONE and numbers[o]}

    def best_position(self) -> int:
        """Return the position of the best candidate, or -1 if none fits."""
        return self._lowest_ranks(1).item(0) if len(self.top) else -1

    def priorities(self) -> Codes:
        """Return scores 0..10 for kube-scheduler, for the candidates of ``fitting``.

        The best node alone has 10, the others 0..9 by their scores: kube-scheduler breaks ties at random, and that
        nobody ties with the best keeps the decision ours.
        """
        best = self.fitting.searchsorted(self.best_position())
        return priorities_of(self.scores.take(self.fitting), int(best))

    def ranking(self) -> list[tuple[str, float]]:
        """Return the nodes that fit with their scores, best first, ties by name."""
        order = self.fitting[np.lexsort((self.ranks[self.fitting], -self.scores[self.fitting]))]
        return list(zip(self.names[order].tolist(), self.scores[order].tolist(), strict=True))

    def best(self, at_most: int = 1) -> list[str]:
        """Return the best nodes, best first: the first alone, or all that share its score, up to ``at_most``."""
        names: list[str] = self.names[self._lowest_ranks(at_most)].tolist()
        return names

    def _lowest_ranks(self, at_most: int) -> Ints:
        """Return the first of the best, by rank."""
        top = self.top
        if len(top) < 2:
            return top
        ranks = self.rank_of_row.take(self.rows.take(top))
        order = ranks.argmin(axis=0, keepdims=True) if at_most == 1 else ranks.argsort()[:at_most]
        first: Ints = top.take(order)
        return first


def filter_nodes(
    ledger: Ledger,
    request: PodRequest,
    nodes: Sequence[str] | Candidates,
    defaults: PolicyDefaults,
    asker: Asker = NOBODY,
) -> Decision:
    """Judge every candidate node for a pod, by name. Changes nothing but caches."""
    candidates = nodes.fresh(ledger) if isinstance(nodes, Candidates) else Candidates(ledger, nodes)
    return filter_rows(ledger, request, candidates.rows, defaults, asker, names=candidates.names)


def filter_rows(
    ledger: Ledger,
    request: PodRequest,
    rows: Ints,
    defaults: PolicyDefaults,
    asker: Asker = NOBODY,
    *,
    names: Names | None = None,
) -> Decision:
    """Judge every candidate node for a pod, by row. Rows are valid as long as ``ledger.fleet.layout`` stays."""
    shape = shape_of(request, asker.cpu_milli)
    policy = resolve(request, defaults, ledger.outlook)
    fleet = ledger.fleet
    known = rows >= 0
    if np.count_nonzero(known) == len(rows):
        codes, scores = ledger.scores.verdicts(fleet, rows, shape, policy)
    else:
        codes = np.full(len(rows), Obstacle.UNKNOWN_NODE, dtype=np.uint8)
        scores = np.zeros(len(rows), dtype=np.float64)
        codes[known], scores[known] = ledger.scores.verdicts(fleet, rows[known], shape, policy)
    kept = _own_share(ledger, asker.uid)
    if kept is not None:
        _judge_own(ledger, kept, shape, policy, _Verdicts(rows, codes, scores))
    if policy.affine and asker.group:
        _add_affinity(ledger, asker.group, _Verdicts(rows, codes, scores))
    return Decision(request, policy.name, rows, fleet.names, names, codes, scores, fleet.rank, *_fitting(codes, scores))


def prioritize(decision: Decision, names: Sequence[str] | None = None) -> dict[str, int]:
    """Return :meth:`Decision.priorities` by name.

    Args:
        decision: What :func:`filter_nodes` answered.
        names: Nodes to score, when kube-scheduler has dropped some since; all feasible ones by default.
    """
    if names is not None:
        decision = decision.among(names)
    return dict(zip(decision.feasible, decision.priorities().tolist(), strict=True))


def _fitting(codes: Codes, scores: Floats) -> tuple[Ints, Ints]:
    """Return the positions that fit, and those of them with the best score.

    Finding one of the best and then its equals is quicker than ``max()``.
    """
    fitting: Ints = (codes == 0).nonzero()[0]
    if not len(fitting):
        return fitting, fitting
    scores = scores.take(fitting)
    return fitting, fitting.take((scores == scores[scores.argmax()]).nonzero()[0])


def priorities_of(scores: npt.NDArray[np.floating], best: int) -> Codes:
    """Return scores 0..10 of candidates that all fit, given their raw scores and the position of the best."""
    if not len(scores):
        return np.zeros(0, dtype=np.uint8)
    low, rest = scores[scores.argmin()], BEST_SCORE - 1
    span = scores[best] - low
    priorities = (rest * ((scores - low) / span)).astype(np.uint8) if span else np.full(len(scores), rest, np.uint8)
    priorities[best] = BEST_SCORE
    return priorities


def place(
    ledger: Ledger, request: PodRequest, node: str, defaults: PolicyDefaults, asker: Asker = NOBODY
) -> PodAllocation | Rejection:
    """Choose the exact slices of a pod on one node. Books nothing: the caller applies ``Assume`` next.

    A pod that already holds its share on that node gets the same answer again, if the node still has the cards.
    """
    held = ledger.holdings.get(asker.uid)
    if held is not None and held.node == node and held.allocation.containers and not ledger.lost_by(held):
        return held.allocation
    row = ledger.fleet.row_of.get(node)
    if row is None:
        return Rejection(Obstacle.UNKNOWN_NODE)
    shape = shape_of(request, asker.cpu_milli)
    policy = resolve(request, defaults, ledger.outlook)
    kept = kept_for(ledger, asker.uid, node)
    fit = fit_node(ledger.fleet, row, shape, policy, kept)
    if isinstance(fit, Obstacle):
        return Rejection(fit)
    return allocate(ledger, node, shape, fit, policy)


def allocate(ledger: Ledger, node: str, shape: PodShape, fit: Fit, policy: Policy) -> PodAllocation:
    """Name the slices of a plan: the lowest free numbers of each card."""
    return _Allocator(ledger, node, ledger.fleet.row_of[node]).allocation(shape, fit, policy)


def kept_for(ledger: Ledger, uid: str, node: str) -> tuple[Change, ...]:
    """Return what a pod itself occupies on a node, as changes that free it."""
    kept = _own_share(ledger, uid)
    if kept is None or kept.allocation.node != node:
        return ()
    return _freed(kept)


def _freed(kept: Holding | Reservation) -> tuple[Change, ...]:
    return tuple((-1, use) for use in kept.uses)


def _own_share(ledger: Ledger, uid: str) -> Holding | Reservation | None:
    """Return the share that is on record for a pod: reserved, or assumed by a binding whose end is not known yet."""
    return ledger.holdings.get(uid) or ledger.reservations.get(uid)


class _Allocator:
    """Names the slices of a plan: the lowest free numbers of each card."""

    def __init__(self, ledger: Ledger, node: str, row: int) -> None:
        book = ledger.book(node)
        self._node = node
        self._uuids = ledger.fleet.uuids(row)
        self._total_memory: list[int] = ledger.fleet.total_memory[row].tolist()
        self._masks = list(book.masks) if book is not None else []

    def allocation(self, shape: PodShape, fit: Fit, policy: Policy) -> PodAllocation:
        requests = {demand.name: demand.request for demand in shape.request.containers}
        shares: dict[str, tuple[SliceShare, ...]] = dict.fromkeys(requests, ())
        for block, columns in zip(shape.blocks, fit.columns, strict=True):
            for column in sorted(columns):
                number = self._next_slice(column)
                for name in block.users:
                    shares[name] += (self._share(requests[name], block, (column, number), policy),)
        return PodAllocation(self._node, shares)

    def _share(self, request: ContainerRequest, block: Block, place_: tuple[int, int], policy: Policy) -> SliceShare:
        column, number = place_
        return SliceShare(
            slice=slice_id(self._uuids[column], number),
            memory_mib=request.memory_on(self._total_memory[column]),
            core_percent=request.core_percent,
            family=block.family,
            exclusive=request.exclusive or policy.idle_only,
        )

    def _next_slice(self, column: int) -> int:
        mask = self._masks[column]
        number = (~mask & (mask + 1)).bit_length() - 1
        self._masks[column] = mask | 1 << number
        return number


@dataclass(frozen=True, slots=True)
class _Verdicts:
    """The arrays of a decision, while they are being filled in."""

    rows: Ints
    codes: Codes
    scores: Floats


def _judge_own(
    ledger: Ledger, kept: Holding | Reservation, shape: PodShape, policy: Policy, verdicts: _Verdicts
) -> None:
    """Judge anew the one node on which the asker has a share already: it must not stand in its own way."""
    node = kept.allocation.node
    row = ledger.fleet.row_of.get(node, -1)
    for at in np.flatnonzero((verdicts.rows == row) & (row >= 0)).tolist():
        fit = fit_node(ledger.fleet, row, shape, policy, _freed(kept))
        verdicts.codes[at] = fit if isinstance(fit, Obstacle) else 0
        verdicts.scores[at] = 0.0 if isinstance(fit, Obstacle) else fit.score


def _add_affinity(ledger: Ledger, group: str, verdicts: _Verdicts) -> None:
    """Prefer nodes, and then domains, that hold pods of the same group."""
    fleet, rows = ledger.fleet, verdicts.rows
    fits = verdicts.codes == 0
    members = {fleet.row_of[node]: count for node, count in ledger.group_nodes(group).items() if node in fleet.row_of}
    domains = {int(fleet.domain[row]) for row in members} - {0}
    verdicts.scores[np.isin(fleet.domain[rows], list(domains)) & (rows >= 0) & fits] += _SAME_DOMAIN
    for row, count in members.items():
        verdicts.scores[(rows == row) & fits] += _SAME_NODE * count
