"""The memory of the API server: collections of encoded objects, one revision counter, and the history watches need.

Each version of an object is encoded once, when it is written; reads, lists and watches hand out those bytes. Decoded
objects are not kept: 20,000 pods as Python dictionaries cost ten times their bytes and seconds of garbage collection.

All calls come from the server's event loop; there are no locks.
"""

import bisect
import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from simulator.apiserver import selectors
from simulator.apiserver.failures import Object, gone

EventType = Literal["ADDED", "MODIFIED", "DELETED"]
Storage = tuple[str, str]

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(dict[str, object])


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One version of one object.

    `tail` is the JSON text after the type meta, beginning with a comma: any served version of the type can put its
    own `kind` and `apiVersion` in front.
    """

    namespace: str
    name: str
    revision: int
    tail: bytes
    labels: Mapping[str, str]
    fields: Mapping[str, str]
    owners: tuple[str, ...] = ()
    """UIDs in metadata.ownerReferences."""

    @property
    def key(self) -> str:
        """Sort key: etcd's order."""
        return f"{self.namespace}/{self.name}"

    def decode(self) -> Object:
        """Build the object without kind and apiVersion; the caller owns the copy."""
        return _decoder.decode(b"{" + self.tail[1:])


def encode_entry(storage: Storage, obj: Object, revision: int) -> Entry:
    """Encode an object at a revision; stamps metadata.resourceVersion into `obj`."""
    meta = obj["metadata"]
    meta["resourceVersion"] = str(revision)
    body = {key: value for key, value in obj.items() if key not in {"kind", "apiVersion"}}
    return Entry(
        namespace=meta.get("namespace", ""),
        name=meta["name"],
        revision=revision,
        tail=b"," + _encoder.encode(body)[1:],
        labels=meta.get("labels") or {},
        fields=selectors.field_values(storage, obj),
        owners=tuple(owner.get("uid", "") for owner in meta.get("ownerReferences") or ()),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """One write, as watches see it. `entry` of a deletion is the last state at the deletion's revision."""

    type: EventType
    entry: Entry
    previous: Entry | None

    @property
    def revision(self) -> int:
        """Revision of the write."""
        return self.entry.revision


@dataclass(eq=False, slots=True)
class Subscription:
    """A watch's interest in one collection; `deliver` is called for each change inside the write itself."""

    namespace: str
    selector: selectors.Selector
    deliver: Callable[[EventType, Entry, Change], None]
    pin: tuple[str, str] | None = None

    def offer(self, change: Change) -> None:
        """Translate a change into this watch's view: entering the selection is ADDED, leaving it DELETED."""
        entry = change.entry
        if self.namespace and entry.namespace != self.namespace:
            return
        if not self.selector:
            self.deliver(change.type, entry, change)
            return
        matches = self.selector.matches
        previous = change.previous
        before = previous is not None and matches(previous.labels, previous.fields)
        now = change.type != "DELETED" and matches(entry.labels, entry.fields)
        if now:
            self.deliver("MODIFIED" if before else "ADDED", entry, change)
        elif before and previous is not None:
            left = entry if change.type == "DELETED" else _at_revision(previous, entry.revision)
            self.deliver("DELETED", left, change)


def _at_revision(entry: Entry, revision: int) -> Entry:
    """Show an older state under a newer resourceVersion, so that a client can resume after it."""
    obj = entry.decode()
    obj["metadata"]["resourceVersion"] = str(revision)
    return Entry(entry.namespace, entry.name, revision, b"," + _encoder.encode(obj)[1:], entry.labels, entry.fields)


_PINNED_FIELDS = ("metadata.name", "spec.nodeName")


class Collection:
    """All objects of one type, ordered by namespace and name, with a bounded history of changes."""

    def __init__(self, storage: Storage, history: int, born: int) -> None:
        self.storage = storage
        self.entries: dict[str, Entry] = {}
        self.compacted = born
        """Changes up to and including this revision are no longer in the history."""
        self._keys: list[str] = []
        self._history: collections.deque[Change] = collections.deque()
        self._history_limit = history
        self._owned: dict[str, set[str]] = {}
        self._on_node: dict[str, set[str]] = {}
        self._watchers: dict[Subscription, None] = {}
        self._pinned: dict[tuple[str, str], dict[Subscription, None]] = {}

    def record(self, change: Change) -> None:
        """Apply a change, remember it, tell the watchers."""
        key = change.entry.key
        if change.type == "DELETED":
            del self.entries[key]
            del self._keys[bisect.bisect_left(self._keys, key)]
        else:
            if change.previous is None:
                bisect.insort(self._keys, key)
            self.entries[key] = change.entry
        self._note_owners(change)
        if self.storage == ("", "pods"):
            self._note_node(change)
        self._history.append(change)
        if len(self._history) > self._history_limit:
            self.compacted = self._history.popleft().revision
        for watcher in self._interested(change):
            watcher.offer(change)

    def _note_owners(self, change: Change) -> None:
        key = change.entry.key
        for uid in change.previous.owners if change.previous else ():
            self._owned[uid].discard(key)
            if not self._owned[uid]:
                del self._owned[uid]
        if change.type != "DELETED":
            for uid in change.entry.owners:
                self._owned.setdefault(uid, set()).add(key)

    def _note_node(self, change: Change) -> None:
        key = change.entry.key
        if change.previous is not None:
            node = change.previous.fields["spec.nodeName"]
            self._on_node[node].discard(key)
            if not self._on_node[node]:
                del self._on_node[node]
        if change.type != "DELETED":
            self._on_node.setdefault(change.entry.fields["spec.nodeName"], set()).add(key)

    def owned_by(self, uid: str) -> list[Entry]:
        """Return the objects that name an owner, in key order."""
        return [self.entries[key] for key in sorted(self._owned.get(uid, ()))]

    def _interested(self, change: Change) -> list[Subscription]:
        found = list(self._watchers)
        if self._pinned:
            pins = {(field, change.entry.fields.get(field, "")) for field in _PINNED_FIELDS}
            if change.previous is not None:
                pins |= {(field, change.previous.fields.get(field, "")) for field in _PINNED_FIELDS}
            for pin in pins:
                found += self._pinned.get(pin, ())
        return found

    def subscribe(self, subscription: Subscription) -> None:
        """Deliver changes from now on; one pinned to a name or node costs nothing for the others' changes."""
        for field in _PINNED_FIELDS:
            value = subscription.selector.pinned(field)
            if value is not None:
                subscription.pin = (field, value)
                self._pinned.setdefault(subscription.pin, {})[subscription] = None
                return
        self._watchers[subscription] = None

    def unsubscribe(self, subscription: Subscription) -> None:
        """Stop delivering; harmless when already stopped."""
        self._watchers.pop(subscription, None)
        if subscription.pin is not None:
            pinned = self._pinned.get(subscription.pin, {})
            pinned.pop(subscription, None)
            if not pinned:
                self._pinned.pop(subscription.pin, None)

    def compact(self, revision: int) -> None:
        """Forget changes up to a revision; watches and exact lists from before it get 410."""
        while self._history and self._history[0].revision <= revision:
            self._history.popleft()
        self.compacted = max(self.compacted, revision)

    def since(self, revision: int) -> Iterator[Change]:
        """Replay changes after a revision.

        Raises:
            StatusError: 410 when some of them are forgotten.
        """
        if revision < self.compacted:
            raise gone(f"too old resource version: {revision} ({self.compacted})")
        return iter([change for change in self._history if change.revision > revision])

    def select(
        self, namespace: str, selector: selectors.Selector, *, start: str = "", at: int | None = None
    ) -> Iterator[Entry]:
        """List entries in key order.

        Args:
            namespace: Empty for all.
            selector: What to keep.
            start: Begin after this key (`namespace/name`).
            at: Show the state at this past revision instead of the present.

        Raises:
            StatusError: 410 when `at` is forgotten.
        """
        keys, entries = self._keys, self.entries
        node = selector.pinned("spec.nodeName")
        if node is not None and at is None:
            keys = sorted(self._on_node.get(node, ()))
        if at is not None:
            entries = self._entries_at(at)
            keys = sorted(entries)
        first = bisect.bisect_left(keys, f"{namespace}/") if namespace else 0
        last = bisect.bisect_left(keys, f"{namespace}0") if namespace else len(keys)
        if start:
            first = max(first, bisect.bisect_right(keys, start))
        chosen: Sequence[str] = keys[first:last]
        if not selector:
            return (entries[key] for key in chosen)
        found = (entries[key] for key in chosen)
        return (entry for entry in found if selector.matches(entry.labels, entry.fields))

    def _entries_at(self, revision: int) -> dict[str, Entry]:
        entries = dict(self.entries)
        for change in reversed(list(self.since(revision))):
            if change.previous is None:
                entries.pop(change.entry.key, None)
            else:
                entries[change.previous.key] = change.previous
        return entries


class Store:
    """All collections and the revision counter that every write advances by one."""

    def __init__(self, *, history: int = 20_000) -> None:
        self.revision = 1
        self._history = history
        self._collections: dict[Storage, Collection] = {}

    def collection(self, storage: Storage) -> Collection:
        """Return a type's collection, empty at first."""
        found = self._collections.get(storage)
        if found is None:
            found = self._collections[storage] = Collection(storage, self._history, 0)
        return found

    def collections(self) -> list[Collection]:
        """Return every collection that was ever touched."""
        return list(self._collections.values())

    def get(self, storage: Storage, namespace: str, name: str) -> Entry | None:
        """Return the present version of an object."""
        return self.collection(storage).entries.get(f"{namespace}/{name}")

    def put(self, storage: Storage, obj: Object) -> Entry:
        """Write an object (new or not) at the next revision and tell the watchers."""
        self.revision += 1
        entry = encode_entry(storage, obj, self.revision)
        collection = self.collection(storage)
        previous = collection.entries.get(entry.key)
        collection.record(Change("ADDED" if previous is None else "MODIFIED", entry, previous))
        return entry

    def remove(self, storage: Storage, obj: Object) -> Entry:
        """Delete an object; `obj` is its last state, stamped with the deletion's revision."""
        self.revision += 1
        entry = encode_entry(storage, obj, self.revision)
        collection = self.collection(storage)
        collection.record(Change("DELETED", entry, collection.entries[entry.key]))
        return entry
