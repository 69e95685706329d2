"""The one place that knows who holds what: a state machine without I/O.

Events in (:mod:`gpuslice.placement.events`), commands out. All quantities are integers: slots, memory in MiB, compute
in percent. A share is keyed by pod UID and container name, and made of slices with an identity.

    pending ──Assume──▶ assumed ──Confirm or PodSeen(bound)──▶ bound ──PodGone / terminal / Relist──▶ (gone)
                           └──Forget, or Tick past the deadline──▶ (gone)

Facts win over decisions: what the API server records of a bound pod is booked even where it exceeds a card. Such a card
is reported as a conflict and takes no new pod. Decisions of our own never exceed a card; :func:`audit.check` proves it.
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeVar, cast

from gpuslice.devices.allocation import PodAllocation
from gpuslice.devices.traits import PodTraits
from gpuslice.placement import audit, events
from gpuslice.placement.books import Books, NodeBook
from gpuslice.placement.events import Command, Conflict, Event, Expired, PodSeen, Wake
from gpuslice.placement.fleet import MAX_CARDS, Fleet
from gpuslice.placement.holding import Holding, Phase, uses_of
from gpuslice.placement.mix import task_of
from gpuslice.placement.outlook import Observer, Outlook
from gpuslice.placement.reservation import Reservation
from gpuslice.placement.score_cache import ScoreCache
from gpuslice.placement.waiting import WaitingPods

ASSUME_SECONDS: Final = 30.0
RESERVE_SECONDS: Final = 600.0
Amount = tuple[int, int]
"""MiB x cards, percent x cards."""
_NOTHING: Final = (0, 0)
_E = TypeVar("_E")


class Ledger:
    """Who holds what of which card."""

    def __init__(self, *, assume_seconds: float = ASSUME_SECONDS, reserve_seconds: float = RESERVE_SECONDS) -> None:
        self.fleet = Fleet()
        self.books = Books(self.fleet)
        self.holdings: dict[str, Holding] = {}
        self.reservations: dict[str, Reservation] = {}
        self.waiting = WaitingPods()
        self.conflicts: dict[tuple[str, str], Conflict] = {}
        """Cards with more on record than they have, by (node, UUID)."""
        self._assume_seconds = assume_seconds
        self._reserve_seconds = reserve_seconds
        self.scores = ScoreCache()
        self.observer = Observer()
        self._groups: dict[str, dict[str, int]] = {}
        self._usage: dict[str, dict[PodTraits, dict[str, Amount]]] = {}
        """What is held by namespace, kind of pod and device family; nothing that is zero."""
        self._grown: set[str] = set()
        """Nodes on which something became free since the event began."""
        self._left: set[str] = set()
        """Nodes with room that the pod woken for it has not taken."""
        self._out: list[Command] = []
        self._handlers: Mapping[type, Callable[[Event], None]] = {
            events.NodeSeen: _typed(self._node_seen),
            events.NodeGone: _typed(self._node_gone),
            events.PodSeen: _typed(self._pod_seen),
            events.PodGone: _typed(self._pod_gone),
            events.Assume: _typed(self._assume),
            events.Confirm: _typed(self._confirm),
            events.Forget: _typed(self._forget),
            events.Refused: _typed(self._refused),
            events.Reserve: _typed(self._reserve),
            events.Unreserve: _typed(self._unreserve),
            events.Tick: _typed(self._tick),
            events.Relist: _typed(self._relist),
        }

    # -- the one door ------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> list[Command]:
        """Take one event; return what the owner should do, in order."""
        self._out = []
        self._grown.clear()
        self._left.clear()
        self._handlers[type(event)](event)
        woken = self.waiting.wake(self, self._grown, self._left)
        if woken:
            self._out.append(Wake(woken))
        return self._out

    # -- what others may read ----------------------------------------------------------------------------------------

    @property
    def outlook(self) -> Outlook:
        """The mix of requests and the kinds of cards that fragmentation policies reckon with."""
        return self.observer.outlook(self.fleet)

    def book(self, node: str) -> NodeBook | None:
        """Return a node's book, or None if nothing is known of it."""
        return self.books.nodes.get(node)

    def lost_by(self, holding: Holding) -> tuple[str, ...]:
        """Return the cards on a pod's record that its node does not have, or not any more."""
        return self.books.lost(self.books.nodes[holding.node], holding)

    def group_nodes(self, group: str) -> Mapping[str, int]:
        """Return how many pods of a group each node holds."""
        return self._groups.get(group, {})

    def used_in_namespace(self, namespace: str, counts: Callable[[PodTraits], bool] | None = None) -> dict[str, Amount]:
        """Return what the pods of a namespace hold, by device family: MiB x cards, and percent x cards.

        With ``counts`` only pods with such traits count.
        """
        used: dict[str, Amount] = {}
        for traits, amounts in self._usage.get(namespace, {}).items():
            if counts is None or counts(traits):
                for family, (memory, cores) in amounts.items():
                    before = used.get(family, _NOTHING)
                    used[family] = (before[0] + memory, before[1] + cores)
        return used

    def lost_cards(self) -> dict[str, tuple[str, ...]]:
        """Return pods (by UID) whose record names cards that their node does not have, and those cards."""
        found = ((uid, self.lost_by(holding)) for uid, holding in self.holdings.items())
        return {uid: lost for uid, lost in found if lost}

    def check_invariants(self) -> None:
        """Raise :class:`audit.BrokenLedger` if the books contradict each other or a card is overcommitted."""
        audit.check(self)

    # -- nodes -------------------------------------------------------------------------------------------------------

    def _node_seen(self, event: events.NodeSeen) -> None:
        name = event.cards.node
        fleet = self.fleet
        book = self.book(name)
        known = book is not None and book.row >= 0
        if book is None or not known or book.cards != event.cards:
            self.books.describe(name, event.cards)
            self._grown.add(name)
            self._judge_node(name)
            if len(event.cards.cards) > MAX_CARDS:
                problem = f"{len(event.cards.cards)} cards are registered, only the first {MAX_CARDS} are used"
                self._out.append(Conflict(name, "", problem))
        row = self.books.nodes[name].row
        state = (event.ready, event.cpu_milli, fleet.domains.number(event.domain))
        if state != (bool(fleet.ready[row]), int(fleet.cpu_total[row]), int(fleet.domain[row])):
            fleet.ready[row], fleet.cpu_total[row], fleet.domain[row] = state
            fleet.touch(row)
            self._grown.add(name)

    def _node_gone(self, event: events.NodeGone) -> None:
        book = self.book(event.name)
        if book is None or book.row < 0:
            return
        for uid in list(book.reserved):
            self._lose_reservation(uid, "its node is gone")
        self.books.close(event.name)
        for key in [key for key in self.conflicts if key[0] == event.name]:
            del self.conflicts[key]

    # -- pods --------------------------------------------------------------------------------------------------------

    def _pod_seen(self, event: PodSeen) -> None:
        uid = event.key.uid
        if event.terminal:
            self._end(uid)
        elif not event.node:
            self.waiting.seen(uid)
        elif event.allocation is None:
            self._record_without_share(event, self.holdings.get(uid))
        else:
            self._record(event, event.allocation)

    def _record_without_share(self, event: PodSeen, known: Holding | None) -> None:
        """A pod runs without a record of ours: somebody else placed it. Only its CPU counts.

        Unless there is a record that cannot be read. Then what was known of the pod goes on to count; where nothing
        was, its node takes nobody until it has ended.
        """
        self._stop_waiting(event.key.uid)
        if event.unreadable and known is not None and known.node == event.node:
            self._record(event, known.allocation)
        elif event.cpu_milli or event.unreadable:
            self._record(event, PodAllocation(event.node, {}))
        else:
            self._release(event.key.uid)
            self._drop_reservation(event.key.uid)

    def _record(self, event: PodSeen, allocation: PodAllocation) -> None:
        uid = event.key.uid
        self._stop_waiting(uid)
        self._drop_reservation(uid)
        old = self.holdings.get(uid)
        same = (
            old is not None
            and old.node == event.node
            and old.allocation == allocation
            and old.init_done == event.init_done
            and old.cpu_milli == event.cpu_milli
            and old.unreadable == event.unreadable
        )
        if old is None or not same:
            holding = Holding(event.key, event.node, allocation)
            holding.roles = event.roles
            holding.init_done = event.init_done
            holding.cpu_milli = event.cpu_milli
            holding.unreadable = event.unreadable
            holding.traits = event.traits
            self._replace(holding, event.models)
        else:
            holding = old
        holding.phase = Phase.BOUND
        holding.expires_at = None
        holding.seen = True
        holding.terminating = event.terminating
        holding.priority = event.priority
        holding.created_at = event.created_at
        if holding.traits != event.traits:
            self._count_usage(holding, -1)
            holding.traits = event.traits
            self._count_usage(holding, +1)
        self._set_group(holding, event.group)

    def _pod_gone(self, event: events.PodGone) -> None:
        self._end(event.uid)

    def _end(self, uid: str) -> None:
        self._stop_waiting(uid)
        self._drop_reservation(uid)
        self._release(uid)

    def _stop_waiting(self, uid: str) -> None:
        node = self.waiting.discard(uid)
        if node:
            self._left.add(node)

    def _assume(self, event: events.Assume) -> None:
        uid = event.key.uid
        known = self.holdings.get(uid)
        if known is not None and known.seen:
            return
        self._stop_waiting(uid)
        self._drop_reservation(uid)
        holding = Holding(event.key, event.allocation.node, event.allocation)
        holding.roles = event.roles
        holding.phase = Phase.ASSUMED
        holding.expires_at = event.now + self._assume_seconds
        holding.priority = event.priority
        holding.cpu_milli = event.cpu_milli
        holding.created_at = event.created_at
        holding.traits = event.traits
        self._refuse_overcommitment(holding)
        self._book(holding)
        self._learn(holding, event.models)
        if self.conflicts:
            # The share was free, so it makes no conflict, but its card may have one that names all its pods.
            self._judge_node(holding.node)
        self._set_group(holding, event.group)

    def _refuse_overcommitment(self, holding: Holding) -> None:
        """Take back what the pod assumed before, then make sure that the new share is free.

        Raises:
            audit.Overcommitted: It is not. Nothing is booked.
        """
        self._release(holding.key.uid)
        holding.uses = uses_of(holding.allocation, holding.roles, init_done=False)
        book = self.book(holding.node)
        for use in holding.uses:
            problem = audit.shortage(self.fleet, book, use) if book is not None else "the node is unknown"
            if problem:
                raise audit.Overcommitted(holding.node, use.uuid, problem)

    def _confirm(self, event: events.Confirm) -> None:
        holding = self.holdings.get(event.uid)
        if holding is not None:
            holding.phase = Phase.BOUND
            holding.expires_at = None

    def _forget(self, event: events.Forget) -> None:
        holding = self.holdings.get(event.uid)
        if holding is not None and holding.phase is Phase.ASSUMED:
            self._release(event.uid)

    def _refused(self, event: events.Refused) -> None:
        if event.key.uid not in self.holdings:
            node = self.waiting.add(event)
            if node:
                self._left.add(node)

    def _tick(self, event: events.Tick) -> None:
        self._left |= self.waiting.tick(event.now)
        late = [h for h in self.holdings.values() if h.expires_at is not None and h.expires_at <= event.now]
        for holding in late:
            self._release(holding.key.uid)
            self._out.append(Expired(holding.key, holding.node))
        for uid in [uid for uid, kept in self.reservations.items() if kept.expires_at <= event.now]:
            self._lose_reservation(uid, "its victims did not end in time")

    def _relist(self, event: events.Relist) -> None:
        nodes = {seen.cards.node for seen in event.nodes}
        for name in [name for name, book in self.books.nodes.items() if book.row >= 0 and name not in nodes]:
            self._node_gone(events.NodeGone(name))
        for node in event.nodes:
            self._node_seen(node)
        pods = {seen.key.uid for seen in event.pods}
        for uid in [uid for uid, holding in self.holdings.items() if holding.seen and uid not in pods]:
            self._end(uid)
        for uid in self.waiting.unlisted(pods):
            self._end(uid)
        self._doubt_unseen(pods, event.now)
        for pod in event.pods:
            self._pod_seen(pod)
        self.scores.look_round(self.fleet)

    def _doubt_unseen(self, listed: set[str], now: float) -> None:
        """A share that was confirmed but never seen may belong to a pod younger than the list: give it a deadline."""
        for uid, holding in self.holdings.items():
            if not holding.seen and uid not in listed and holding.expires_at is None:
                holding.phase = Phase.ASSUMED
                holding.expires_at = now + self._assume_seconds

    # -- reservations ------------------------------------------------------------------------------------------------

    def _reserve(self, event: events.Reserve) -> None:
        uid = event.key.uid
        self._drop_reservation(uid)
        uses = uses_of(event.allocation, event.roles, init_done=False)
        victims = frozenset(victim for victim in event.victims if victim in self.holdings)
        self.reservations[uid] = Reservation(
            event.key, event.allocation, uses, victims, event.now + self._reserve_seconds, event.priority
        )
        self.books.reserve(event.allocation.node, uid, uses)
        if not victims:
            self._out.append(events.ReservationReady(event.key, event.allocation.node))

    def _unreserve(self, event: events.Unreserve) -> None:
        self._drop_reservation(event.uid)

    def _drop_reservation(self, uid: str) -> None:
        kept = self.reservations.pop(uid, None)
        if kept is not None:
            self.books.unreserve(kept.allocation.node, uid)
            self._grown.add(kept.allocation.node)

    def _lose_reservation(self, uid: str, reason: str) -> None:
        kept = self.reservations[uid]
        self._drop_reservation(uid)
        self._out.append(events.ReservationLost(kept.key, kept.allocation.node, reason))

    def _victim_ended(self, uid: str) -> None:
        for owner, kept in self.reservations.items():
            if uid in kept.victims:
                left = kept.victims - {uid}
                self.reservations[owner] = Reservation(
                    kept.key, kept.allocation, kept.uses, left, kept.expires_at, kept.priority
                )
                if not left:
                    self._out.append(events.ReservationReady(kept.key, kept.allocation.node))

    # -- booking -----------------------------------------------------------------------------------------------------

    def _replace(self, holding: Holding, models: tuple[str, ...]) -> None:
        """Book a holding in place of the pod's earlier one, if any."""
        uid = holding.key.uid
        old = self.holdings.pop(uid, None)
        if old is not None:
            self._set_group(old, "")
            self._count_usage(old, -1)
            self.books.leave(old)
            self._grown.add(old.node)
        holding.uses = uses_of(holding.allocation, holding.roles, init_done=holding.init_done)
        self._book(holding)
        if old is not None:
            self._judge_node(old.node)
        else:
            self._learn(holding, models)
        self._judge_node(holding.node)

    def _book(self, holding: Holding) -> None:
        self.holdings[holding.key.uid] = holding
        self._count_usage(holding, +1)
        self.books.enter(holding)

    def _learn(self, holding: Holding, models: tuple[str, ...]) -> None:
        """Count the pod in the mix of requests."""
        book = self.books.nodes[holding.node]
        if book.row >= 0 and holding.allocation.containers:
            totals = self.fleet.total_memory
            memory = {use.uuid: totals.item(book.row, at) for at, use in self.books.present(book, holding.uses)}
            self.observer.see(task_of(holding.allocation, memory, holding.cpu_milli, models))

    def _release(self, uid: str) -> None:
        holding = self.holdings.pop(uid, None)
        if holding is None:
            return
        self._set_group(holding, "")
        self._count_usage(holding, -1)
        self.books.leave(holding)
        self._grown.add(holding.node)
        if self.conflicts:
            # Nothing that ends makes a conflict.
            self._judge_node(holding.node)
        self._victim_ended(uid)

    def _count_usage(self, holding: Holding, sign: int) -> None:
        """Add what a pod holds to its namespace's sums, or take it out."""
        namespace = holding.key.namespace
        here = self._usage.setdefault(namespace, {})
        amounts = here.setdefault(holding.traits, {})
        for use in holding.uses:
            memory, cores = amounts.get(use.family, _NOTHING)
            amounts[use.family] = (memory + sign * use.memory_mib, cores + sign * use.core_percent)
            if amounts[use.family] == _NOTHING:
                del amounts[use.family]
        if not amounts:
            del here[holding.traits]
        if not here:
            del self._usage[namespace]

    def _set_group(self, holding: Holding, group: str) -> None:
        if group == holding.group:
            return
        if holding.group:
            nodes = self._groups[holding.group]
            nodes[holding.node] -= 1
            if not nodes[holding.node]:
                del nodes[holding.node]
            if not nodes:
                del self._groups[holding.group]
        if group:
            nodes = self._groups.setdefault(group, {})
            nodes[holding.node] = nodes.get(holding.node, 0) + 1
        holding.group = group

    def _judge_node(self, name: str) -> None:
        """Bring the record of conflicts on a node up to date; report new ones."""
        found = audit.conflicts(self, name)
        for key in [key for key in self.conflicts if key[0] == name and key not in found]:
            del self.conflicts[key]
        for key, conflict in found.items():
            if self.conflicts.get(key) != conflict:
                self.conflicts[key] = conflict
                self._out.append(conflict)


def _typed(handler: Callable[[_E], None]) -> Callable[[Event], None]:
    """Forget the handler's parameter type: the table is keyed by it."""
    return cast("Callable[[Event], None]", handler)
