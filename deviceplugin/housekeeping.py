"""Ending grants: a share is free when its container has ended, not when an object is deleted."""

import asyncio
from collections.abc import Callable, Mapping

import structlog

from deviceplugin.book import Book
from deviceplugin.node import Node

log = structlog.get_logger(__name__)

_EVERY_SECONDS = 1.0


class Housekeeper:
    """Forgets pods that have neither an object nor a process, and removes their grants' files."""

    def __init__(self, node: Node, books: Mapping[str, Book], freed: Callable[[], None]) -> None:
        self._node = node
        self._books = books
        self._freed = freed

    async def run(self) -> None:
        """Look around every second, until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            self.look()

    def look(self) -> int:
        """End the grants of pods that are gone; return how many ended."""
        if not self._node.follows_pods:
            return 0
        uids = {uid for book in self._books.values() for uid in (*book.tenants, *(g.uid for g in book.grants.values()))}
        ended = sum(self._end(uid) for uid in uids if uid not in self._node.tenants and not self._node.guard.lives(uid))
        if ended:
            self._freed()
        return ended

    def _end(self, uid: str) -> int:
        if not uid:
            return 0
        grants = [grant for book in self._books.values() for grant in book.forget(uid)]
        self._node.discard(grant.id for grant in grants)
        self._node.guard.ended(uid)
        if grants:
            log.info("grants_ended", pod=grants[0].pod, grants=[grant.id for grant in grants])
        return len(grants)
