"""Pods that fit nowhere, and which of them a release may help.

kube-scheduler looks at a refused pod again when something about the pod changes. So when a share becomes free, the
ledger names the waiting pods that would fit into it, most urgent first, and only as many as fit together: everybody
else would be woken for nothing.

Not every pod that is named takes the room: others may refuse it there (kube-scheduler's own filters), it may be
deleted, its waking may be lost. Then the next one is named. A pod that came back and was refused is not named for that
node again until something else becomes free there; one that did not come back within ``RETRY_SECONDS`` is named again,
less and less often, and counts for nothing meanwhile.
"""

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from gpuslice.devices.requests import PodRequest
from gpuslice.placement.events import PodKey, Refused
from gpuslice.placement.fit import Fit, fit_node
from gpuslice.placement.holding import CardUse
from gpuslice.placement.policies.registry import MUTEX, PolicyDefaults, known_names, resolve
from gpuslice.placement.shape import shape_of
from gpuslice.placement.verdicts import scan_nodes
from gpuslice.placement.view import Change

if TYPE_CHECKING:
    from gpuslice.placement.ledger import Ledger

RETRY_SECONDS: Final = 5.0
_MOST_DOUBLINGS: Final = 6
_MOST_DECLINED: Final = 64
_ANY_FIT: Final = PolicyDefaults(node="binpack", card="binpack")
_SCAN_FROM: Final = 16
"""From so many nodes on, columns are quicker than one node after the other."""


class _Entry:
    __slots__ = ("created_at", "declined", "key", "misses", "priority", "request", "seen", "woken_at", "woken_for")

    def __init__(self, refused: Refused) -> None:
        self.key = refused.key
        self.request = refused.request
        self.priority = refused.priority
        self.created_at = refused.created_at
        self.seen = False
        self.woken_for = ""
        """Node whose release it was woken for; empty when it has not been woken since its last refusal."""
        self.woken_at = 0.0
        self.misses = 0
        """How often in a row it was woken and did not come."""
        self.declined: set[str] = set()
        """Nodes for which it was woken and on which it was refused all the same."""

    def urgency(self) -> tuple[int, str, str]:
        return (-self.priority, self.created_at, self.key.uid)


class WaitingPods:
    """Refused pods by UID."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._now = 0.0

    def __contains__(self, uid: object) -> bool:
        return uid in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def keys(self) -> tuple[PodKey, ...]:
        """Return the waiting pods, most urgent first."""
        return tuple(entry.key for entry in sorted(self._entries.values(), key=_Entry.urgency))

    def add(self, refused: Refused) -> str:
        """Remember a refused pod; return the node whose room it was woken for and did not take, if any."""
        before = self._entries.get(refused.key.uid)
        entry = self._entries[refused.key.uid] = _Entry(refused)
        if before is None:
            return ""
        entry.seen = before.seen
        if len(before.declined) < _MOST_DECLINED:
            entry.declined = before.declined
        if before.woken_for:
            entry.declined.add(before.woken_for)
        return before.woken_for

    def seen(self, uid: str) -> None:
        """Note that the API server has the pod: from now on its absence from a list means that it is gone."""
        entry = self._entries.get(uid)
        if entry is not None:
            entry.seen = True

    def discard(self, uid: str) -> str:
        """Forget a pod; return the node whose room it was woken for, if any."""
        entry = self._entries.pop(uid, None)
        return "" if entry is None else entry.woken_for

    def unlisted(self, listed: set[str]) -> list[str]:
        """Return pods that the API server had once and does not list now."""
        return [uid for uid, entry in self._entries.items() if entry.seen and uid not in listed]

    def tick(self, now: float) -> set[str]:
        """Advance the clock; return nodes whose woken pods have not come back in time."""
        self._now = now
        late = set()
        for entry in self._entries.values():
            if entry.woken_for and now - entry.woken_at >= RETRY_SECONDS * 2 ** min(entry.misses, _MOST_DOUBLINGS):
                late.add(entry.woken_for)
                entry.woken_for = ""
                entry.misses += 1
        return late

    def wake(self, ledger: "Ledger", grown: AbstractSet[str], left: AbstractSet[str]) -> tuple[PodKey, ...]:
        """Return the pods to wake.

        Args:
            ledger: Who holds what.
            grown: Nodes on which something became free.
            left: Nodes whose room was not taken by the pod that was woken for it.
        """
        if not self._entries or not (grown or left):
            return ()
        for entry in self._entries.values():
            if entry.declined:
                entry.declined -= grown
        return tuple(_Round(ledger, sorted(grown | left), self._entries.values(), self._now).run())


@lru_cache(maxsize=1024)
def _plain(request: PodRequest) -> PodRequest:
    """Return the request without wishes that change only which place is better, not whether there is one."""
    alone = MUTEX if MUTEX in (*known_names(request.card_policy), *known_names(request.node_policy)) else ""
    return replace(request, node_policy="", card_policy=alone, scoring_weights="")


class _Round:
    """One search: waiting pods against the nodes that have grown."""

    def __init__(self, ledger: "Ledger", nodes: Sequence[str], entries: Iterable[_Entry], now: float) -> None:
        self._ledger = ledger
        self._nodes = [node for node in nodes if node in ledger.fleet.row_of]
        self._entries = sorted(entries, key=_Entry.urgency)
        self._now = now
        self._open: dict[PodRequest, list[str]] = {}
        """Nodes that may still hold a pod of a class; only ever shrinks, as the promises only grow."""
        self._promised: dict[str, list[Change]] = {}

    def run(self) -> Iterable[PodKey]:
        for entry in self._entries:
            if entry.woken_for in self._nodes and not entry.misses:
                self._promise(entry, entry.woken_for)
        for entry in self._entries:
            if entry.woken_for:
                continue
            node = self._home(entry)
            if node:
                entry.woken_for = node
                entry.woken_at = self._now
                yield entry.key

    def _home(self, entry: _Entry) -> str:
        nodes = self._open.get(entry.request)
        if nodes is None:
            nodes = self._open[entry.request] = self._candidates(entry.request)
        for node in tuple(nodes):
            if node in entry.declined:
                continue
            if self._promise(entry, node):
                return node
            nodes.remove(node)
        return ""

    def _candidates(self, request: PodRequest) -> list[str]:
        if len(self._nodes) < _SCAN_FROM:
            return list(self._nodes)
        fleet = self._ledger.fleet
        rows = np.array([fleet.row_of[node] for node in self._nodes], dtype=np.int64)
        codes, _ = scan_nodes(fleet, rows, shape_of(request), resolve(_plain(request), _ANY_FIT))
        return [node for node, code in zip(self._nodes, codes.tolist(), strict=True) if code == 0]

    def _promise(self, entry: _Entry, node: str) -> bool:
        """Count the pod on the node if it fits beside those promised before; one that may not come does not count."""
        fleet = self._ledger.fleet
        row = fleet.row_of[node]
        shape = shape_of(entry.request)
        promised = self._promised.setdefault(node, [])
        fit = fit_node(fleet, row, shape, resolve(_plain(entry.request), _ANY_FIT), promised)
        if not isinstance(fit, Fit):
            return False
        if entry.misses:
            return True
        uuids = fleet.uuids(row)
        for block, columns in zip(shape.blocks, fit.columns, strict=True):
            for column in columns:
                total = int(fleet.total_memory[row, column])
                size = block.share_mib(total)
                use = CardUse(uuids[column], 1, size, block.core_percent, block.exclusive, share_mib=size)
                promised.append((+1, use))
        return True
