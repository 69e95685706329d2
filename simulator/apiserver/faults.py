"""Faults that tests switch on: slow answers, refusals, dropped watches, forgotten history, partitions.

A fault is chosen by a predicate on the request; the first rule that matches acts. All calls come from the server's
event loop (`ServerThread.call` brings them there from other threads).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from simulator.apiserver.failures import StatusError
from simulator.apiserver.wire import Request

Predicate = Callable[[Request], bool]


def everything(_: Request) -> bool:
    """Match every request."""
    return True


def matching(*, method: str = "", path: str = "", user: str = "") -> Predicate:
    """Match requests by exact method, a part of the path, exact user; an empty argument matches all."""

    def match(request: Request) -> bool:
        return (not method or request.method == method) and path in request.path and (not user or request.user == user)

    return match


@dataclass(slots=True, eq=False)
class _Rule:
    when: Predicate
    remaining: int
    """How often it still acts; negative: for ever."""
    latency_seconds: float = 0.0
    failure: StatusError | None = None
    failure_after: bool = False
    cut: bool = False
    held: "Held | None" = None


class Held:
    """Requests that wait at the door."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        """One of them is there."""
        self._let_in = asyncio.Event()

    def let_in(self) -> None:
        """Carry them out."""
        self._let_in.set()

    async def wait(self) -> None:
        """Be one of them."""
        self.arrived.set()
        await self._let_in.wait()


class Disconnect(Exception):
    """The connection is to be cut without an answer."""


class Faults:
    """The faults in force."""

    def __init__(self) -> None:
        self._rules: list[_Rule] = []

    def delay(self, seconds: float, when: Predicate = everything, *, times: int = -1) -> None:
        """Answer later."""
        self._rules.append(_Rule(when, times, latency_seconds=seconds))

    def hold(self, when: Predicate = everything, *, times: int = -1) -> Held:
        """Carry out nothing until told."""
        held = Held()
        self._rules.append(_Rule(when, times, held=held))
        return held

    def fail(
        self,
        code: int,
        when: Predicate = everything,
        *,
        times: int = -1,
        reason: str = "",
        retry_after: int | None = None,
    ) -> None:
        """Answer with a failure instead of doing what was asked."""
        words = reason or {429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}.get(
            code, ""
        )
        self._rules.append(
            _Rule(when, times, failure=StatusError(code, words, f"injected {code}", retry_after=retry_after))
        )

    def lose_answer(self, when: Predicate = everything, *, times: int = -1) -> None:
        """Do what was asked, then answer 504: the client cannot know that it happened."""
        failure = StatusError(504, "Timeout", "injected: the request was carried out but its answer was lost")
        self._rules.append(_Rule(when, times, failure=failure, failure_after=True))

    def partition(self, when: Predicate = everything, *, times: int = -1) -> None:
        """Cut the connection of each matching request, unanswered."""
        self._rules.append(_Rule(when, times, cut=True))

    def clear(self) -> None:
        """Heal everything."""
        self._rules.clear()

    def _matching(self, request: Request, *, after: bool) -> _Rule | None:
        for rule in self._rules:
            if rule.failure_after is after and rule.remaining != 0 and rule.when(request):
                rule.remaining -= 1
                return rule
        return None

    async def before(self, request: Request) -> None:
        """Act on a request that arrived.

        Raises:
            StatusError: The injected failure.
            Disconnect: The client is to be cut off.
        """
        rule = self._matching(request, after=False) if self._rules else None
        if rule is None:
            return
        if rule.latency_seconds:
            await asyncio.sleep(rule.latency_seconds)
        if rule.held is not None:
            await rule.held.wait()
        if rule.cut:
            raise Disconnect
        if rule.failure is not None:
            raise rule.failure

    def after(self, request: Request) -> None:
        """Act on a request that was carried out.

        Raises:
            StatusError: The injected failure.
        """
        rule = self._matching(request, after=True) if self._rules else None
        if rule is not None and rule.failure is not None:
            raise rule.failure
