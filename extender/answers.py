"""Answers to /filter and /prioritize, cut from a decision."""

from collections import OrderedDict
from collections.abc import Sequence

import msgspec
import numpy as np

from extender.wire import FEW, NameTable, filter_answer, names_decoder
from gpuslice.placement.decide import Candidates, Decision, prioritize
from gpuslice.placement.ledger import Ledger
from gpuslice.placement.rejection import TEXTS, Obstacle

_KEPT_NAME_LISTS = 8
_REASONS = [b":" + msgspec.json.encode(TEXTS[obstacle]) for obstacle in Obstacle]
_COMMA = ord(",")


class NodeNames:
    """Rows of the node names that kube-scheduler sends: it sends the same list again and again."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._lists: OrderedDict[bytes, Candidates] = OrderedDict()
        self._latest: tuple[bytes, Candidates | None] = (b"null", None)
        self._table: NameTable | None = None

    def candidates(self, raw: bytes) -> Candidates | None:
        """Look the names up; None when there is no list.

        Raises:
            msgspec.MsgspecError: it is not a list of strings.
        """
        if raw == self._latest[0]:
            # 5,000 names take ten times as long to hash as to compare.
            return self._latest[1]
        known = self._lists.get(raw)
        if known is not None:
            self._lists.move_to_end(raw)
            self._latest = raw, known
            return known
        names = names_decoder.decode(raw)
        if names is None:
            return None
        found = self._lists[raw] = Candidates(self._ledger, names)
        self._latest = raw, found
        if len(self._lists) > _KEPT_NAME_LISTS:
            self._lists.popitem(last=False)
        return found

    def table(self) -> NameTable:
        """Name records of the fleet as it is now."""
        fleet = self._ledger.fleet
        if self._table is None or self._table.layout != fleet.layout:
            self._table = NameTable(fleet.names, fleet.layout)
        return self._table


def answer_filter(names: NodeNames, decision: Decision, asked: bytes, *, at_most: int | None) -> bytes:
    """Write an ExtenderFilterResult: every node that fits, or the best ``at_most``, and a reason for each other.

    Args:
        names: The name tables.
        decision: The verdicts.
        asked: The names that kube-scheduler has sent, as they came.
        at_most: How many of the best to offer; None for all that fit.
    """
    codes, rows, fitting = decision.codes, decision.rows, decision.fitting
    if at_most is None and len(fitting) == len(codes):
        return filter_answer(asked, b"")
    known = bool((rows >= 0).all())
    if known and at_most is None and len(rows) <= FEW:
        return filter_answer(*_one_by_one(names.table().encoded, rows.tolist(), codes.tolist()))
    if at_most is not None and decision.fits_anywhere:
        offered = msgspec.json.encode(decision.best(at_most))
    elif known:
        offered = names.table().name_list(rows.take(fitting))
    else:
        offered = msgspec.json.encode(decision.feasible)
    if len(fitting) == len(codes):
        return filter_answer(offered, b"")
    if not known:
        return filter_answer(offered, msgspec.json.encode(decision.refused())[1:-1])
    table = names.table()
    refused = codes.nonzero()[0]
    reasons = codes.take(refused)
    rows = rows.take(refused)
    kinds = np.bincount(reasons).nonzero()[0].tolist()
    parts = [table.reasons(rows[reasons == code], TEXTS[Obstacle(code)]) for code in kinds]
    return filter_answer(offered, b",".join(parts))


def _one_by_one(names: Sequence[bytes], rows: list[int], codes: list[int]) -> tuple[bytes, bytes]:
    """Return the names of the nodes that fit, and the reason for each other, without its braces."""
    fitting: list[bytes] = []
    refused: list[bytes] = []
    for row, code in zip(rows, codes, strict=True):
        if code:
            refused.append(names[row] + _REASONS[code])
        else:
            fitting.append(names[row])
    return b"[%b]" % b",".join(fitting), b",".join(refused)


def answer_prioritize(names: NodeNames, decision: Decision, layout: int, asked: bytes) -> bytes:
    """Write a HostPriorityList.

    Args:
        names: The name tables.
        decision: The verdicts that /filter gave.
        layout: Layout of the fleet when they were given.
        asked: The names that kube-scheduler sends now: those that fitted, less what other extenders refused.
    """
    count = len(decision.fitting)
    if count and _count(asked) == count and names.table().layout == layout and (decision.rows >= 0).all():
        return names.table().priorities(decision.rows.take(decision.fitting), decision.priorities())
    wanted = names_decoder.decode(asked)
    scores = prioritize(decision, wanted)
    return msgspec.json.encode([{"Host": name, "Score": score} for name, score in scores.items()])


def _count(raw: bytes) -> int:
    """Number of names in a JSON list of names; node names contain no commas."""
    return 0 if len(raw) < 4 else int(np.count_nonzero(np.frombuffer(raw, dtype=np.uint8) == _COMMA)) + 1
