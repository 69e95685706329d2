"""The verbs of kube-scheduler on raw bytes: decode, ask, encode; whatever goes wrong is an answer, too.

Bodies are decoded by msgspec from raw bytes: pydantic models of thousands of node names would cost 40 ms at the 99th
percentile.
"""

import asyncio
import time
import uuid
from collections.abc import Callable
from typing import Protocol

import msgspec
import structlog

from extender.binding import Outcome
from extender.metrics import Metrics
from extender.wire import (
    ArgsReader,
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderBindingResult,
    ExtenderPreemptionArgs,
    binding_decoder,
    preemption_decoder,
)
from gpuslice.service.direct import Direct, Handler, Reply

log = structlog.get_logger(__name__)


class Judge(Protocol):
    """Answers all but /bind."""

    def filter(self, args: ExtenderArgs) -> bytes:
        """Give an ExtenderFilterResult."""

    def prioritize(self, args: ExtenderArgs) -> bytes:
        """Give a HostPriorityList."""

    def preempt(self, args: ExtenderPreemptionArgs) -> bytes:
        """Give an ExtenderPreemptionResult."""

    def explain(self, namespace: str, name: str) -> bytes | None:
        """Give the last decision on a pod as JSON, or None if there is none."""


class Binds(Protocol):
    """Answers /bind."""

    async def bind(self, args: ExtenderBindingArgs) -> Outcome:
        """Bind, or say why not."""


class Verbs:
    """Calls by path. ``not_ready`` gives the reason for a 503, or None."""

    def __init__(self, judge: Judge, binder: Binds, metrics: Metrics, *, not_ready: Callable[[], str | None]) -> None:
        self.judge = judge
        self._binder = binder
        self._not_ready = not_ready
        self._ended = {outcome: metrics.attempts.labels("bind", outcome).inc for outcome in ("bound", "refused")}
        self._took = {
            verb: metrics.seconds.labels(verb).observe for verb in ("filter", "prioritize", "bind", "preempt")
        }
        to_filter, to_prioritize = ArgsReader(), ArgsReader()
        handlers: dict[bytes, Handler] = {
            b"/filter": self._at_once("filter", lambda body: self.judge.filter(to_filter.read(body))),
            b"/prioritize": self._at_once("prioritize", lambda body: self.judge.prioritize(to_prioritize.read(body))),
            b"/preempt": self._at_once("preempt", lambda body: self.judge.preempt(preemption_decoder.decode(body))),
            b"/bind": self._bind,
        }
        self.direct = Direct(handlers)
        """The verbs. None of them raises: a bug becomes a 500 whose id the log has, too."""

    async def call(self, path: str, body: bytes) -> Reply:
        """Carry out one verb."""
        found = self.direct.handlers[path.encode()](body)
        return found if isinstance(found, Reply) else await asyncio.shield(self.direct.start(found))

    def _at_once(self, verb: str, answer: Callable[[bytes], bytes]) -> Callable[[bytes], Reply]:
        observe = self._took[verb]

        def handle(body: bytes) -> Reply:
            started = time.perf_counter()
            try:
                return self._unavailable() or Reply(200, answer(body))
            except Exception as error:  # noqa: BLE001  whatever it is, the process goes on and the caller hears of it
                return _failure(verb, error)
            finally:
                observe(time.perf_counter() - started)

        return handle

    async def _bind(self, body: bytes) -> Reply:
        started = time.perf_counter()
        try:
            return self._unavailable() or await self._bound(body)
        except Exception as error:  # noqa: BLE001  as above
            return _failure("bind", error)
        finally:
            self._took["bind"](time.perf_counter() - started)

    async def _bound(self, body: bytes) -> Reply:
        outcome = await self._binder.bind(binding_decoder.decode(body))
        self._ended["refused" if outcome.error else "bound"]()
        timing = b"api;dur=%.3f" % (outcome.api_seconds * 1000)
        result = msgspec.json.encode(ExtenderBindingResult(outcome.error))
        return Reply(200, result, ((b"server-timing", timing),))

    def _unavailable(self) -> Reply | None:
        """Answer 503 while we cannot know: kube-scheduler retries, and no pod is told that nothing fits."""
        reason = self._not_ready()
        return None if reason is None else problem(503, reason)


def _failure(verb: str, error: Exception) -> Reply:
    if isinstance(error, msgspec.ValidationError):
        return problem(422, f"the body is not of the expected shape: {error}")
    if isinstance(error, (msgspec.DecodeError, UnicodeDecodeError)):
        return problem(400, f"the body is not JSON: {error}")
    request_id = uuid.uuid4().hex
    log.error("request_failed", verb=verb, request_id=request_id, exc_info=error)
    return problem(500, f"internal error; request id {request_id}")


def problem(status: int, text: str) -> Reply:
    """Answer a failure; the text stands where kube-scheduler looks for it, too."""
    return Reply(status, msgspec.json.encode({"Error": text}))
