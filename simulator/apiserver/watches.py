"""Watch: history first, then live changes, bookmarks in between, and a clean end.

Options and error events follow k8s.io/apiserver/pkg/endpoints/handlers/get.go and pkg/storage/cacher.
"""

import asyncio
from collections.abc import Iterable

import msgspec

from simulator.apiserver import eventviews, reads, selectors
from simulator.apiserver.calls import Call, State
from simulator.apiserver.failures import FieldError, Object, StatusError, invalid
from simulator.apiserver.resources import Resource
from simulator.apiserver.store import Change, Collection, Entry, EventType, Subscription
from simulator.apiserver.wire import Request, Stream

BOOKMARK_SECONDS = 60.0
_DEFAULT_TIMEOUT_SECONDS = 30 * 60.0


def event_line(resource: Resource, type_: str, entry: Entry) -> bytes:
    """Encode one event from stored bytes."""
    return b'{"type":"%b","object":%b%b}\n' % (type_.encode(), resource.head, eventviews.tail(resource, entry))


def bookmark_line(resource: Resource, revision: int, *, initial_events_end: bool = False) -> bytes:
    """Encode a bookmark: an empty object that carries a resourceVersion."""
    meta: Object = {"resourceVersion": str(revision), "creationTimestamp": None}
    if initial_events_end:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    obj = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}
    return msgspec.json.encode({"type": "BOOKMARK", "object": obj}) + b"\n"


def error_line(error: StatusError) -> bytes:
    """Encode the event that ends a failed watch."""
    return msgspec.json.encode({"type": "ERROR", "object": error.status()}) + b"\n"


class Watch:
    """One open watch."""

    def __init__(self, resource: Resource, collection: Collection, stream: Stream, lines: dict[object, bytes]) -> None:
        self.resource = resource
        self.storage = collection.storage
        self._collection = collection
        self._stream = stream
        self._lines = lines
        self.subscription: Subscription | None = None

    def deliver(self, type_: EventType, entry: Entry, change: Change) -> None:
        """Send one live event; watches of the same type share the encoded line."""
        if entry is not change.entry:
            self._stream.send(event_line(self.resource, type_, entry))
            return
        key = (change, type_, self.resource)
        line = self._lines.get(key)
        if line is None:
            self._lines.clear()
            line = self._lines[key] = event_line(self.resource, type_, entry)
        self._stream.send(line)

    def send(self, line: bytes) -> None:
        """Send a finished line."""
        self._stream.send(line)

    def fail(self, error: StatusError) -> None:
        """End with an ERROR event."""
        self._stream.send(error_line(error))
        self.finish()

    def finish(self) -> None:
        """End cleanly."""
        self.detach()
        self._stream.finish()

    def abort(self) -> None:
        """Cut the connection."""
        self.detach()
        self._stream.abort()

    def detach(self) -> None:
        """Receive no more changes."""
        if self.subscription is not None:
            self._collection.unsubscribe(self.subscription)


class Watches:
    """All open watches of a server."""

    def __init__(self, state: State, *, bookmark_seconds: float = BOOKMARK_SECONDS) -> None:
        self._state = state
        self._bookmark_seconds = bookmark_seconds
        self._open: set[Watch] = set()
        self._lines: dict[object, bytes] = {}

    def open(self) -> list[Watch]:
        """Return the watches open now."""
        return list(self._open)

    async def serve(self, call: Call, request: Request) -> None:
        """Answer a watch request until its client, its timeout or a fault ends it."""
        options = read_watch_options(call, request.query, self._state.store.revision)
        collection = self._state.store.collection(call.storage)
        headers = [("Content-Type", "application/json"), ("Cache-Control", "no-cache, private")]
        stream = request.connection.start_stream(200, headers)
        watch = Watch(call.resource, collection, stream, self._lines)
        self._open.add(watch)
        try:
            self._begin(watch, call, options)
            await self._live(watch, stream, options)
        finally:
            watch.detach()
            self._open.discard(watch)

    def _begin(self, watch: Watch, call: Call, options: "WatchOptions") -> None:
        collection = self._state.store.collection(call.storage)
        watch.subscription = Subscription(call.namespace, options.selector, watch.deliver)
        if options.initial:
            for entry in collection.select(call.namespace, options.selector):
                watch.send(event_line(call.resource, "ADDED", entry))
            if options.send_initial_events:
                watch.send(bookmark_line(call.resource, self._state.store.revision, initial_events_end=True))
        elif options.revision is not None:
            try:
                missed: Iterable[Change] = collection.since(options.revision)
            except StatusError as error:
                watch.subscription = None
                watch.fail(error)
                return
            for change in missed:
                watch.subscription.offer(change)
        collection.subscribe(watch.subscription)

    async def _live(self, watch: Watch, stream: Stream, options: "WatchOptions") -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + options.timeout_seconds
        pause = self._bookmark_seconds if options.bookmarks else options.timeout_seconds
        while not stream.closed.done():
            left = deadline - loop.time()
            if left <= 0:
                if options.bookmarks:
                    watch.send(bookmark_line(watch.resource, self._state.store.revision))
                watch.finish()
                return
            await asyncio.wait([stream.closed], timeout=min(left, pause))
            if options.bookmarks and not stream.closed.done() and deadline > loop.time():
                watch.send(bookmark_line(watch.resource, self._state.store.revision))


class WatchOptions(msgspec.Struct):
    """The query of a watch, checked."""

    selector: selectors.Selector
    revision: int | None
    """Send changes after this; None from now on."""
    initial: bool
    """Begin with what exists, as ADDED events."""
    send_initial_events: bool
    bookmarks: bool
    timeout_seconds: float


def read_watch_options(call: Call, query: dict[str, str], now: int) -> WatchOptions:
    """Check the options of a watch.

    Raises:
        StatusError: 422 for combinations that the real server forbids, 400 for unreadable values.
    """
    version, match = query.get("resourceVersion", ""), query.get("resourceVersionMatch", "")
    initial_events = query.get("sendInitialEvents")
    bookmarks = query.get("allowWatchBookmarks", "") in {"true", "1"}
    _check_initial_events(initial_events, match)
    selector = reads.read_selector(call, query)
    revision = None if version in {"", "0"} else _parse_revision(version)
    wanted = initial_events in {"true", "1"}
    seconds = query.get("timeoutSeconds", "")
    timeout = float(seconds) if seconds.isdigit() and int(seconds) > 0 else _DEFAULT_TIMEOUT_SECONDS
    initial = wanted if initial_events is not None else revision is None
    if revision is None and not initial:
        revision = now
    return WatchOptions(selector, revision, initial, wanted, bookmarks, timeout)


def _parse_revision(text: str) -> int:
    """Read a watch's resourceVersion; the real server answers a bad one with 500 and no reason."""
    try:
        return reads.parse_revision(text)
    except StatusError as error:
        raise StatusError(500, "", error.message.removeprefix("invalid resource version: ")) from error


def _check_initial_events(initial_events: str | None, match: str) -> None:
    problems = []
    if initial_events is None and match:
        detail = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        problems.append(FieldError("Forbidden", "resourceVersionMatch", None, detail))
    elif initial_events is not None and match != "NotOlderThan":
        detail = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        problems.append(FieldError("Forbidden", "resourceVersionMatch", None, detail))
        if match:
            detail = 'supported values: "NotOlderThan"'
            problems.append(FieldError("NotSupported", "resourceVersionMatch", match, detail))
    if problems:
        raise invalid("ListOptions", "meta.k8s.io", "", problems)
