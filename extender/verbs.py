"""The verbs of kube-scheduler on raw bytes: decode, ask, encode; whatever goes wrong is an answer, too.

Bodies are decoded by msgspec from raw bytes: pydantic models of thousands of node names would cost 40 ms at the 99th
percentile.
"""

import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec
import structlog

from extender.binding import Outcome
from extender.metrics import Metrics
from extender.wire import (
    ExtenderArgs,
    ExtenderBindingArgs,
    ExtenderBindingResult,
    ExtenderPreemptionArgs,
    args_decoder,
    binding_decoder,
    preemption_decoder,
)

log = structlog.get_logger(__name__)

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """An HTTP answer with a JSON body."""

    status: int
    body: bytes
    headers: Headers = ()


class TooLarge(Exception):
    """The body is larger than we read."""

    def __init__(self, size: str) -> None:
        super().__init__(f"the body has {size} bytes; at most {MAX_BODY_BYTES} are read")


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
        self._metrics = metrics
        self._not_ready = not_ready
        self._verbs: dict[str, Callable[[bytes], Awaitable[Reply]]] = {
            "/filter": self._filter,
            "/prioritize": self._prioritize,
            "/bind": self._bind,
            "/preempt": self._preempt,
        }
        self._seconds = {path: metrics.seconds.labels(path[1:]) for path in self._verbs}

    def __contains__(self, path: object) -> bool:
        return path in self._verbs

    async def call(self, path: str, body: bytes) -> Reply:
        """Carry out one verb. A bug becomes a 500 whose id the log has, too; the process goes on."""
        started = time.perf_counter()
        try:
            return await self._verbs[path](body)
        except msgspec.ValidationError as error:
            return problem(422, f"the body is not of the expected shape: {error}")
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return problem(400, f"the body is not JSON: {error}")
        except Exception:
            request_id = uuid.uuid4().hex
            log.exception("request_failed", path=path, request_id=request_id)
            return problem(500, f"internal error; request id {request_id}")
        finally:
            self._seconds[path].observe(time.perf_counter() - started)

    async def _filter(self, body: bytes) -> Reply:
        args = args_decoder.decode(body)
        return self._unavailable() or Reply(200, self.judge.filter(args))

    async def _prioritize(self, body: bytes) -> Reply:
        args = args_decoder.decode(body)
        return self._unavailable() or Reply(200, self.judge.prioritize(args))

    async def _preempt(self, body: bytes) -> Reply:
        args = preemption_decoder.decode(body)
        return self._unavailable() or Reply(200, self.judge.preempt(args))

    async def _bind(self, body: bytes) -> Reply:
        args = binding_decoder.decode(body)
        if (refusal := self._unavailable()) is not None:
            return refusal
        outcome = await self._binder.bind(args)
        self._metrics.attempts.labels("bind", "refused" if outcome.error else "bound").inc()
        timing = b"api;dur=%.3f" % (outcome.api_seconds * 1000)
        result = msgspec.json.encode(ExtenderBindingResult(outcome.error))
        return Reply(200, result, ((b"server-timing", timing),))

    def _unavailable(self) -> Reply | None:
        """Answer 503 while we cannot know: kube-scheduler retries, and no pod is told that nothing fits."""
        reason = self._not_ready()
        return None if reason is None else problem(503, reason)


def problem(status: int, text: str) -> Reply:
    """Answer a failure; the text stands where kube-scheduler looks for it, too."""
    return Reply(status, msgspec.json.encode({"Error": text}))
