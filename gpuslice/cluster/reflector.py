"""A local copy of a set of API objects: list once, follow the watch, list again when history is lost.

The copy may be a projection of what the API server sends: the reflector keeps what ``project`` returns, so that 20,000
pods cost what we need of them and no more.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec
import structlog

from gpuslice.cluster.backoff import Backoff
from gpuslice.cluster.client import KubeClient, Scope
from gpuslice.cluster.errors import ApiError, Expired, Unreachable
from gpuslice.cluster.timing import REAL_TIME, Timing
from gpuslice.devices.decoding import UNREADABLE
from gpuslice.devices.errors import GpusliceError
from gpuslice.devices.pods import Metadata

log = structlog.get_logger(__name__)


class HasMetadata(Protocol):
    """What a view must show to be followed."""

    @property
    def metadata(self) -> Metadata:
        """Name, namespace, uid, resourceVersion."""


V = TypeVar("V", bound=msgspec.Struct)
T = TypeVar("T")
Key = tuple[str, str]
"""Namespace ("" for cluster-wide kinds) and name."""


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """A complete list arrived: these exist, and nothing else does. ``gone`` are those we knew and it lacks."""

    items: Mapping[Key, T]
    gone: tuple[T, ...]


@dataclass(frozen=True, slots=True)
class Changed(Generic[T]):
    """One object was added or modified; ``before`` is what we knew of it."""

    item: T
    before: T | None


@dataclass(frozen=True, slots=True)
class Gone(Generic[T]):
    """One object was deleted, or replaced by another one of the same name."""

    item: T


Event = Listed[T] | Changed[T] | Gone[T]


class _OnlyMetadata(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()


class Reflector(Generic[T]):
    """Follows one scope and tells ``handle`` of every change, in order, from one task.

    ``handle`` runs synchronously between two reads; it must not raise. ``synced`` is set after the first list and stays
    set; :attr:`behind_seconds` tells how long ago the API server last spoke to us.
    """

    def __init__(
        self,
        client: KubeClient,
        scope: Scope,
        view: type[V],
        *,
        handle: Callable[[Event[T]], None],
        project: Callable[[V], T],
        timing: Timing = REAL_TIME,
    ) -> None:
        self._client = client
        self._scope = scope
        self._view: type[msgspec.Struct] = view
        self._handle = handle
        self._project: Callable[[msgspec.Struct], T] = project  # type: ignore[assignment]  # V is fixed by ``view``
        self._clock = timing.clock
        self._sleep = timing.sleep
        self._draw = timing.draw
        self._decoder: msgspec.json.Decoder[msgspec.Struct] = msgspec.json.Decoder(self._view)
        self._uids: dict[Key, str] = {}
        self._items: dict[Key, T] = {}
        self._resource_version = ""
        self._heard_at: float | None = None
        self._backoff = Backoff(0.1, 5.0, draw=timing.draw)
        self._following: asyncio.Task[None] | None = None
        self._asked_for = 0
        self.listed_for = 0
        """The youngest call of :meth:`relist` that has been answered."""
        self.synced = asyncio.Event()
        self.lists = 0
        """How many complete lists have been handled."""

    @property
    def items(self) -> Mapping[Key, T]:
        """What exists, as far as we know."""
        return self._items

    def get(self, namespace: str, name: str) -> T | None:
        """Look one object up."""
        return self._items.get((namespace, name))

    @property
    def behind_seconds(self) -> float:
        """Seconds since the API server last sent us anything (bookmarks count); infinite before the first list."""
        return float("inf") if self._heard_at is None else self._clock() - self._heard_at

    async def run(self) -> None:
        """Follow the scope until cancelled; failures of the API server are waited out."""
        while True:
            try:
                if not self._resource_version:
                    await self._list()
                while self.listed_for < self._asked_for:
                    await self._list()
                await self._follow_until_told()
            except Expired:
                log.info("watch_expired", resource=self._scope.resource.plural)
                self._resource_version = ""
                await self._sleep(self._backoff.next_seconds())
            except (ApiError, Unreachable, *UNREADABLE) as error:
                await self._wait_after(error)

    def relist(self) -> int:
        """Read everything again as soon as possible; done when :attr:`listed_for` reaches the number returned.

        A list that is under way does not count: it may show the time before the call.
        """
        self._asked_for += 1
        if self._following is not None:
            self._following.cancel()
        return self._asked_for

    async def _follow_until_told(self) -> None:
        """Follow the watch in a task of its own, which :meth:`relist` may cut short."""
        self._following = asyncio.create_task(self._follow())
        try:
            await asyncio.wait({self._following})
        finally:
            following, self._following = self._following, None
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        if not following.cancelled():
            following.result()

    async def _wait_after(self, error: Exception) -> None:
        if isinstance(error, UNREADABLE):
            self._resource_version = ""
        delay_seconds = self._backoff.next_seconds()
        if isinstance(error, ApiError) and error.retry_after_seconds is not None:
            delay_seconds = max(delay_seconds, min(error.retry_after_seconds, 30.0))
        log.warning(
            "watch_interrupted", resource=self._scope.resource.plural, error=str(error), retry_seconds=delay_seconds
        )
        await self._sleep(delay_seconds)

    async def _list(self) -> None:
        asked_for = self._asked_for
        items: dict[Key, T] = {}
        uids: dict[Key, str] = {}
        resource_version = ""
        # Page by page, so that only one page of full objects is ever in memory.
        async for page in self._client.pages(self._scope, self._view):
            resource_version = page.resource_version
            for view in page.items:
                metadata = _metadata(view)
                key = (metadata.namespace, metadata.name)
                items[key] = self._project(view)
                uids[key] = metadata.uid
        self.lists += 1
        self._heard_at = self._clock()
        gone = tuple(item for key, item in self._items.items() if uids.get(key) != self._uids[key])
        self._items, self._uids = items, uids
        self._resource_version = resource_version
        self.listed_for = asked_for
        self._handle(Listed(items, gone))
        self.synced.set()

    async def _follow(self) -> None:
        timeout_seconds = 240 + int(self._draw() * 240)
        heard = False
        watch = self._client.watch(self._scope, self._resource_version, timeout_seconds=timeout_seconds)
        async with aclosing(watch) as changes:
            async for line in changes:
                self._heard_at = self._clock()
                if not heard:
                    heard = True
                    self._backoff.reset()
                if line.type == "BOOKMARK":
                    view: object = msgspec.json.decode(line.object, type=_OnlyMetadata)
                else:
                    view = self._decoder.decode(line.object)
                    self._apply(line.type, view)
                self._resource_version = _metadata(view).resource_version or self._resource_version
        if not heard:
            # A server that ends watches at once must not be asked in a busy loop.
            await self._sleep(self._backoff.next_seconds())

    def _apply(self, kind: str, view: msgspec.Struct) -> None:
        metadata = _metadata(view)
        key = (metadata.namespace, metadata.name)
        item = self._project(view)
        before = self._items.get(key)
        if kind == "DELETED":
            self._items.pop(key, None)
            self._uids.pop(key, None)
            if before is not None:
                self._handle(Gone(item))
            return
        if before is not None and self._uids[key] != metadata.uid:
            self._handle(Gone(before))
            before = None
        self._items[key] = item
        self._uids[key] = metadata.uid
        self._handle(Changed(item, before))


def _metadata(view: object) -> Metadata:
    metadata = getattr(view, "metadata", None)
    if not isinstance(metadata, Metadata):
        raise GpusliceError(
            f"{type(view).__name__} has no metadata to follow it by; use a view from gpuslice.devices.pods"
        )
    return metadata
