"""Why a node takes a pod, or does not, in a sentence with the figures: for Events and people.

kube-scheduler gets constant texts (:mod:`gpuslice.placement.rejection`); these may change with every attempt.
"""

from collections.abc import Sequence

from gpuslice.devices.allocation import PodAllocation
from gpuslice.devices.requests import PodRequest
from gpuslice.placement.decide import NOBODY, Asker, kept_for
from gpuslice.placement.explain import Record
from gpuslice.placement.fit import fit_node, obstacles
from gpuslice.placement.fleet import UNKNOWN_NUMA
from gpuslice.placement.ledger import Ledger
from gpuslice.placement.policies.registry import PolicyDefaults, resolve
from gpuslice.placement.rejection import TEXTS, Obstacle
from gpuslice.placement.shape import Block, PodShape, shape_of
from gpuslice.placement.view import CardState, NodeView, view_of

_MOST_LISTED = 8


def why_not(ledger: Ledger, request: PodRequest, node: str, defaults: PolicyDefaults, asker: Asker = NOBODY) -> str:
    """Say why a node does not take a pod; an empty text if it does."""
    row = ledger.fleet.row_of.get(node)
    if row is None:
        return f"node {node} is not known, or has registered no cards: does the node daemon run there?"
    shape = shape_of(request, asker.cpu_milli)
    policy = resolve(request, defaults, ledger.outlook)
    kept = kept_for(ledger, asker.uid, node)
    found = fit_node(ledger.fleet, row, shape, policy, kept)
    if not isinstance(found, Obstacle):
        return ""
    if found is Obstacle.UNCLEAR:
        return f"node {node}: {_unclear(ledger, node)}"
    return _Node(view_of(ledger.fleet, row, shape, kept), shape, idle_only=policy.idle_only).sentence(found)


def why_here(record: Record | None, allocation: PodAllocation) -> str:
    """Say where a pod was placed, on which cards, and among how many nodes, as far as that was recorded."""
    cards = [f"{share.card} ({_given(share.memory_mib, share.core_percent)})" for _, share in allocation.shares()]
    where = f"{_list(cards)} on node {allocation.node}"
    if record is None:
        return where
    fitting, asked = int((record.codes == 0).sum()), len(record.codes)
    among = f"{fitting} of {asked} nodes fit" if asked > 1 else "one node was offered"
    return f"{where}: {among}, best by policy {record.policy}"


def _given(memory_mib: int, core_percent: int) -> str:
    return f"{memory_mib} MiB" + (f", {core_percent} % of compute" if core_percent else "")


def _unclear(ledger: Ledger, node: str) -> str:
    book = ledger.book(node)
    names = sorted(str(held.key) for held in book.holders.values() if held.is_unclear) if book is not None else []
    return f"the record of devices of {_list(names)} cannot be read, so nobody knows which cards are free"


def _list(words: Sequence[str]) -> str:
    return ", ".join(words[:_MOST_LISTED]) + (" …" if len(words) > _MOST_LISTED else "")


class _Node:
    """One refusal: the node as it is, and the first block of the pod, which is the hardest to place."""

    def __init__(self, view: NodeView, shape: PodShape, *, idle_only: bool) -> None:
        self._view = view
        self._shape = shape
        self._idle_only = idle_only
        self._block = shape.blocks[0]
        self._found = obstacles(view, shape, 0, idle_only=idle_only)
        self._cards = [card for card in view.cards if card.family == self._block.family]

    def sentence(self, why: Obstacle) -> str:
        """Say all of it."""
        name = f"node {self._view.name}"
        match why:
            case Obstacle.UNKNOWN_NODE:
                return f"{name} has registered no cards: does the node daemon run there?"
            case Obstacle.NOT_READY:
                return (
                    f"{name} has {_cards(len(self._view.cards))}, but the kubelet offers none: its plugin is not ready"
                )
            case Obstacle.COMBINATION:
                return f"{name}: {self._together()}"
            case _:
                return f"{name}: the pod wants {_wanted(self._block, self._largest())}; {self._why(why)}"

    def _why(self, why: Obstacle) -> str:
        total, passed = len(self._cards), self._beyond(why)
        of_them = f"{len(passed)} of {total} cards"
        match why:
            case Obstacle.TOO_FEW_CARDS:
                return f"it has {_cards(total) if total else 'no card'} of kind {self._block.family}"
            case Obstacle.MEMORY:
                return self._shortage("MiB free", [c.total_memory - c.used_memory for c in self._tested(why)], passed)
            case Obstacle.CORES:
                left = [c.total_cores - c.used_cores for c in self._tested(why)]
                return self._shortage("% of compute left", left, passed)
            case Obstacle.SHARE_SIZE:
                sizes = sorted({card.share_mib for card in self._tested(why) if card.share_mib > 0})
                return f"its cards are cut into equal shares, those in use of {_list([str(s) for s in sizes])} MiB"
            case Obstacle.NUMA:
                return f"of its {_cards(total)} at most {self._on_one_numa_node()} that would do are on one NUMA node"
            case Obstacle.SLOTS:
                most = max((card.total_slots for card in self._tested(why)), default=0)
                return f"{of_them} {_have(passed)} a free slot (a card takes at most {most} containers)"
            case _:
                return f"{of_them} {_STATES[why].format(are=_are(passed))}"

    def _shortage(self, unit: str, left: Sequence[int], enough: Sequence[CardState]) -> str:
        total = len(self._cards)
        subject = "its only card" if total == 1 else f"the freest of its {total} cards"
        if len(left) < total:
            subject = f"the freest of the {len(left)} of {total} cards that may be used"
        text = f"{subject} has {max(max(left, default=0), 0)} {unit}"
        return text if self._block.cards == 1 else f"{text}, and {len(enough)} {_have(enough)} as much as is wanted"

    def _tested(self, why: Obstacle) -> list[CardState]:
        """Return the cards that came as far as this test."""
        return [
            card
            for card, what in zip(self._view.cards, self._found, strict=True)
            if what is Obstacle.NONE or what >= why
        ]

    def _beyond(self, why: Obstacle) -> list[CardState]:
        """Return the cards that passed it."""
        return [
            card
            for card, what in zip(self._view.cards, self._found, strict=True)
            if what is Obstacle.NONE or what > why
        ]

    def _largest(self) -> int:
        return max((card.total_memory for card in self._cards), default=0)

    def _on_one_numa_node(self) -> int:
        homes = [card.numa for card in self._beyond(Obstacle.NUMA) if card.numa != UNKNOWN_NUMA]
        return max((homes.count(home) for home in homes), default=0)

    def _together(self) -> str:
        largest = self._largest()
        wishes = [f"{', '.join(block.users)} {_wanted(block, largest)}" for block in self._shape.blocks]
        tested = self._tested(Obstacle.BUSY)
        free = [
            f"{max(c.total_memory - c.used_memory, 0)} MiB/{max(c.total_cores - c.used_cores, 0)} %" for c in tested
        ]
        left = f"what its cards have left is {_list(free)}" if free else TEXTS[Obstacle.COMBINATION]
        return f"the containers do not fit together ({'; '.join(wishes[:_MOST_LISTED])}); {left}"


_STATES = {
    Obstacle.SELECTION: "{are} what the pod's annotations allow (model, UUID, mode)",
    Obstacle.UNHEALTHY: "{are} allowed and healthy",
    Obstacle.CORDONED: "{are} in service; the others are cordoned",
    Obstacle.EXCLUSIVE: "{are} not held by a pod that wants it alone",
    Obstacle.BUSY: "{are} idle, and the pod shares with nobody",
}


def _wanted(block: Block, largest_mib: int) -> str:
    """Say what a block wants of each card, at its peak."""
    memory, cores = block.share_mib(largest_mib), block.core_percent
    whole = " alone" if block.exclusive else ""
    share = _given(memory, cores) if memory or cores else "a slot"
    return f"{share} on {'one card' if block.cards == 1 else f'each of {block.cards} cards'}{whole}"


def _cards(count: int) -> str:
    return f"{count} card{'' if count == 1 else 's'}"


def _are(cards: Sequence[CardState]) -> str:
    return "is" if len(cards) == 1 else "are"


def _have(cards: Sequence[CardState]) -> str:
    return "has" if len(cards) == 1 else "have"
