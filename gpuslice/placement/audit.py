"""Check that the ledger's books agree with each other, and find cards with more on record than they have."""

from typing import TYPE_CHECKING

from gpuslice.devices.errors import GpusliceError
from gpuslice.placement.books import NodeBook
from gpuslice.placement.events import Conflict
from gpuslice.placement.fleet import MIXED, Fleet
from gpuslice.placement.holding import CardUse, uses_of

if TYPE_CHECKING:
    from gpuslice.placement.ledger import Ledger


class BrokenLedger(GpusliceError):
    """The books contradict each other: a bug of ours, never of the cluster."""


class Overcommitted(GpusliceError):
    """Somebody tried to assume a share that the card does not have. Decide again from the present state."""

    def __init__(self, node: str, uuid: str, problem: str) -> None:
        super().__init__(f"node {node}, card {uuid}: {problem}; filter and place the pod again")
        self.node = node
        self.uuid = uuid
        self.problem = problem


def shortage(fleet: Fleet, book: NodeBook, use: CardUse) -> str:
    """Return why a card cannot take a use, or an empty text if it can."""
    column = fleet.column(book.row, use.uuid) if book.row >= 0 else -1
    if column < 0:
        return "the node has no such card"
    at = (book.row, column)
    if book.masks[column] & use.slices:
        return "a slice is already held"
    if fleet.exclusive[at] or (use.exclusive and fleet.used_slots[at]):
        return "the card is in use and one of the pods wants it exclusively"
    if fleet.used_slots[at] + use.slices.bit_count() > fleet.total_slots[at]:
        return "no free slot"
    if fleet.used_memory[at] + use.memory_mib > fleet.total_memory[at]:
        return "not enough free memory"
    if fleet.used_cores[at] + use.core_percent > fleet.total_cores[at]:
        return "not enough free compute"
    if fleet.equal_shares[at] and (use.share_mib == MIXED or fleet.share_mib[at] not in (0, use.share_mib)):
        return "the card is cut into shares of another size"
    return ""


def conflicts(ledger: "Ledger", node: str) -> dict[tuple[str, str], Conflict]:
    """Return the conflicts on one node, by (node, UUID)."""
    book = ledger.book(node)
    if book is None or book.row < 0:
        return {}
    fleet, row = ledger.fleet, book.row
    width = len(book.masks)
    slots = fleet.used_slots[row, :width].tolist()
    columns = zip(
        book.masks,
        slots,
        fleet.total_slots[row, :width].tolist(),
        fleet.used_memory[row, :width].tolist(),
        fleet.total_memory[row, :width].tolist(),
        fleet.used_cores[row, :width].tolist(),
        fleet.total_cores[row, :width].tolist(),
        fleet.exclusive[row, :width].tolist(),
        fleet.share_mib[row, :width].tolist(),
        strict=True,
    )
    suspects = [
        column
        for column, (mask, used, total, memory, total_memory, cores, total_cores, exclusive, size) in enumerate(columns)
        if used > total
        or size == MIXED
        or memory > total_memory
        or cores > total_cores
        or used != mask.bit_count()
        or (exclusive and used > 1)
    ]
    found = {}
    for column in suspects:
        uuid = fleet.uuids(row)[column]
        problem = _problem(ledger, book, column)
        if problem:
            pods = sorted(str(h.key) for h in book.holders.values() if any(use.uuid == uuid for use in h.uses))
            found[node, uuid] = Conflict(node, uuid, problem, tuple(pods))
    return found


def _problem(ledger: "Ledger", book: NodeBook, column: int) -> str:
    """Judge one card by its holders alone: reservations are not facts."""
    fleet, at = ledger.fleet, (book.row, column)
    uuid = fleet.uuids(book.row)[column]
    held = [use for holding in book.holders.values() for use in holding.uses if use.uuid == uuid]
    if ledger.books.card_mask_conflicts(book, column):
        return "two pods have the same slice on record"
    if len(held) > 1 and any(use.exclusive for use in held):
        return "a card held exclusively has another holder"
    if fleet.equal_shares[at] and (len({use.share_mib for use in held}) > 1 or any(u.share_mib == MIXED for u in held)):
        return "shares of different sizes are on record, and the card can be cut into equal ones only"
    amounts = (
        ("slots", sum(use.slices.bit_count() for use in held), int(fleet.total_slots[at])),
        ("MiB of memory", sum(use.memory_mib for use in held), int(fleet.total_memory[at])),
        ("percent of compute", sum(use.core_percent for use in held), int(fleet.total_cores[at])),
    )
    over = [f"{used} of {total} {unit} are on record" for unit, used, total in amounts if used > total]
    return "; ".join(over)


def check(ledger: "Ledger") -> None:
    """Raise :class:`BrokenLedger` on the first contradiction."""
    for uid, holding in ledger.holdings.items():
        book = ledger.book(holding.node)
        _require(book is not None and book.holders.get(uid) is holding, f"pod {uid} is missing in its node's book")
        fresh = uses_of(holding.allocation, holding.roles, init_done=holding.init_done)
        _require(fresh == holding.uses, f"pod {uid}: uses are stale")
        _require(uid not in ledger.reservations, f"pod {uid} holds and reserves at once")
        _require(uid not in ledger.waiting, f"pod {uid} holds and waits at once")
    booked = sum(len(book.holders) for book in ledger.books.nodes.values())
    _require(booked == len(ledger.holdings), "a node's book has a pod that the ledger does not know")
    for name, book in ledger.books.nodes.items():
        _require(book.name == name, f"book of {name} has another name")
        if book.row >= 0:
            _check_node(ledger, book)
    known = {name for name, book in ledger.books.nodes.items() if book.row >= 0}
    _require(known == set(ledger.fleet.row_of), "the fleet and the books know different nodes")
    _check_groups(ledger)
    _check_usage(ledger)


def _check_node(ledger: "Ledger", book: NodeBook) -> None:
    fleet, row = ledger.fleet, book.row
    _require(fleet.names[row] == book.name, f"row {row} is not {book.name}")
    cpu = sum(holding.cpu_milli for holding in book.holders.values())
    _require(int(fleet.cpu_used[row]) == cpu, f"{book.name}: CPU in use is not the sum over its pods")
    unclear = sum(holding.is_unclear for holding in book.holders.values())
    _require(
        int(fleet.unclear[row]) == unclear, f"{book.name}: {unclear} pods without a readable record, not counted so"
    )
    for column, uuid in enumerate(fleet.uuids(row)):
        held = [use for holding in book.holders.values() for use in holding.uses if use.uuid == uuid]
        kept = [use for uses in book.reserved.values() for use in uses if use.uuid == uuid]
        where = f"{book.name} {uuid}"
        at = (row, column)
        sums = _sums([*held, *kept])
        columns = tuple(int(c[at]) for c in (fleet.used_slots, fleet.used_memory, fleet.used_cores, fleet.exclusive))
        _require(columns == sums, f"{where}: columns say {columns}, the books {sums}")
        size = ledger.books.share_mib(book, uuid) if fleet.equal_shares[at] else 0
        _require(int(fleet.share_mib[at]) == size, f"{where}: size of shares is {fleet.share_mib[at]}, not {size}")
        mask = 0
        for use in held:
            mask |= use.slices
        _require(book.masks[column] == mask, f"{where}: slices on record are not those of the holders")
        problem = _problem(ledger, book, column)
        recorded = ledger.conflicts.get((book.name, uuid))
        _require(
            (recorded.problem if recorded else "") == problem, f"{where}: {problem or 'no problem'} but {recorded}"
        )


def _check_groups(ledger: "Ledger") -> None:
    counted: dict[str, dict[str, int]] = {}
    for holding in ledger.holdings.values():
        if holding.group:
            nodes = counted.setdefault(holding.group, {})
            nodes[holding.node] = nodes.get(holding.node, 0) + 1
    for group, nodes in counted.items():
        _require(dict(ledger.group_nodes(group)) == nodes, f"group {group} is counted wrongly")


def _check_usage(ledger: "Ledger") -> None:
    for namespace in {holding.key.namespace for holding in ledger.holdings.values()}:
        held = [use for h in ledger.holdings.values() if h.key.namespace == namespace for use in h.uses]
        for family, (memory, cores) in ledger.used_in_namespace(namespace).items():
            mine = [use for use in held if use.family == family]
            sums = (sum(use.memory_mib for use in mine), sum(use.core_percent for use in mine))
            _require(
                (memory, cores) == sums, f"namespace {namespace}: {family} in use is {memory}, {cores}, not {sums}"
            )
        counted = set(ledger.used_in_namespace(namespace))
        some = {use.family for use in held if use.memory_mib or use.core_percent}
        _require(counted == some, f"namespace {namespace}: {counted} are counted, {some} are held")


def _sums(uses: list[CardUse]) -> tuple[int, int, int, int]:
    return (
        sum(use.slices.bit_count() for use in uses),
        sum(use.memory_mib for use in uses),
        sum(use.core_percent for use in uses),
        sum(int(use.exclusive) for use in uses),
    )


def _require(holds: object, story: str) -> None:
    if not holds:
        raise BrokenLedger(story)
