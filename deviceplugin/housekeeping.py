"""Ending grants: a share is free when its container has ended, not when an object is deleted."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping

import structlog

from deviceplugin.book import Book
from deviceplugin.node import Node

log = structlog.get_logger(__name__)

_EVERY_SECONDS = 1.0
_ANYWAY_SECONDS = 30.0


class Housekeeper:
    """Forgets pods that have neither an object nor a process, and removes their grants' files."""

    def __init__(self, node: Node, books: Mapping[str, Book], freed: Callable[[], None]) -> None:
        self._node = node
        self._books = books
        self._freed = freed

    async def run(self) -> None:
        """Look around when pods have changed, and every second while one that is gone still runs; until cancelled."""
        while True:
            before = self._node.pods_changed
            self.look()
            if not self.gone():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_ANYWAY_SECONDS):
                        await self._node.wait_for_pods(before)
            await asyncio.sleep(_EVERY_SECONDS)

    def gone(self) -> set[str]:
        """Return the pods (UIDs) in our books that have no object any more."""
        if not self._node.follows_pods:
            return set()
        uids = {uid for book in self._books.values() for uid in (*book.tenants, *(g.uid for g in book.grants.values()))}
        return uids.difference(self._node.tenants, [""])

    def look(self) -> int:
        """End the grants of pods that are gone; return how many ended."""
        ended = sum(self._end(uid) for uid in self.gone() if not self._node.guard.lives(uid))
        if ended:
            self._freed()
        return ended

    def _end(self, uid: str) -> int:
        grants = [grant for book in self._books.values() for grant in book.forget(uid)]
        self._node.discard(grant.id for grant in grants)
        self._node.guard.ended(uid)
        if grants:
            log.info("grants_ended", pod=grants[0].pod, grants=[grant.id for grant in grants])
        return len(grants)
