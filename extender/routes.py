"""The routes: read the body, ask the engine, write the answer. Every answer has a Content-Length.

kube-scheduler opens a new connection for each chunked answer, so nothing is streamed. Bodies are decoded by msgspec
from raw bytes; pydantic models of thousands of node names would cost 40 ms at the 99th percentile.
"""

import contextlib
import uuid
from collections.abc import Callable
from typing import Final, Protocol

import msgspec
import structlog
from fastapi import FastAPI, Request, Response
from starlette.types import Receive, Scope, Send

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
_JSON: Final = "application/json"


class Judge(Protocol):
    """Answers /filter and /prioritize."""

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


class TooLarge(Exception):
    """The body is larger than we read."""


def build_app(judge: Judge, binder: Binds, metrics: Metrics, *, not_ready: Callable[[], str | None]) -> FastAPI:
    """Put the application together. ``not_ready`` gives the reason for a 503, or None."""
    filter_seconds, prioritize_seconds, bind_seconds = map(metrics.seconds.labels, ("filter", "prioritize", "bind"))
    app = FastAPI(title="gpuslice scheduler extender", docs_url=None, redoc_url=None)

    @app.post("/filter")
    async def filter_nodes(request: Request) -> Response:
        """Split candidate nodes into those that fit and those that do not, with reasons (ExtenderArgs)."""
        args = args_decoder.decode(await read_body(request))
        if (refusal := unavailable(not_ready)) is not None:
            return refusal
        with filter_seconds.time():
            return answer(judge.filter(args))

    @app.post("/prioritize")
    async def prioritize(request: Request) -> Response:
        """Score nodes 0..10 (ExtenderArgs)."""
        args = args_decoder.decode(await read_body(request))
        if (refusal := unavailable(not_ready)) is not None:
            return refusal
        with prioritize_seconds.time():
            return answer(judge.prioritize(args))

    @app.post("/bind")
    async def bind(request: Request) -> Response:
        """Bind a pod to a node with its exact slices (ExtenderBindingArgs)."""
        args = binding_decoder.decode(await read_body(request))
        if (refusal := unavailable(not_ready)) is not None:
            return refusal
        with bind_seconds.time():
            outcome = await binder.bind(args)
        metrics.attempts.labels("bind", "refused" if outcome.error else "bound").inc()
        found = answer(msgspec.json.encode(ExtenderBindingResult(outcome.error)))
        found.headers["Server-Timing"] = f"api;dur={outcome.api_seconds * 1000:.3f}"
        return found

    @app.post("/preempt")
    async def preempt(request: Request) -> Response:
        """Choose whom to evict on which node (ExtenderPreemptionArgs)."""
        args = preemption_decoder.decode(await read_body(request))
        return unavailable(not_ready) or answer(judge.preempt(args))

    @app.get("/decisions/{namespace}/{pod}")
    async def decision(namespace: str, pod: str) -> Response:
        """Tell the last decision on a pod: each node's verdict, each card's score."""
        found = judge.explain(namespace, pod)
        if found is None:
            return problem(404, f"no decision on pod {namespace}/{pod} is remembered; it was not asked about lately")
        return answer(found)

    _add_failures(app)
    return app


def _add_failures(app: FastAPI) -> None:
    @app.exception_handler(msgspec.ValidationError)
    async def wrong_shape(_: Request, error: Exception) -> Response:
        return problem(422, f"the body is not of the expected shape: {error}")

    @app.exception_handler(msgspec.DecodeError)
    async def not_json(_: Request, error: Exception) -> Response:
        return problem(400, f"the body is not JSON: {error}")

    @app.exception_handler(UnicodeDecodeError)
    async def not_text(_: Request, error: Exception) -> Response:
        return problem(400, f"the body is not UTF-8: {error}")

    @app.exception_handler(TooLarge)
    async def too_large(_: Request, error: Exception) -> Response:
        return problem(413, str(error))

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> Response:
        request_id = uuid.uuid4().hex
        log.error("request_failed", path=request.url.path, request_id=request_id, exc_info=error)
        return problem(500, f"internal error; request id {request_id}")


def answer(body: bytes) -> Response:
    """Answer 200 with JSON."""
    return Response(body, media_type=_JSON)


def problem(status: int, text: str) -> Response:
    """Answer a failure; the text stands where kube-scheduler looks for it, too."""
    return Response(msgspec.json.encode({"Error": text}), status_code=status, media_type=_JSON)


def unavailable(not_ready: Callable[[], str | None]) -> Response | None:
    """Answer 503 while we cannot know: kube-scheduler retries, and no pod is told that nothing fits."""
    reason = not_ready()
    return None if reason is None else problem(503, reason)


async def read_body(request: Request) -> bytes:
    """Read the body up to :data:`MAX_BODY_BYTES`.

    Raises:
        TooLarge: it is larger.
    """
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > MAX_BODY_BYTES:
        raise TooLarge(f"the body has {length} bytes; at most {MAX_BODY_BYTES} are read")
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_BODY_BYTES:
            raise TooLarge(f"the body has more than {MAX_BODY_BYTES} bytes")
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


class Contained:
    """ASGI wrapper: Starlette answers a bug with our 500 and raises it again; here it ends, and the process goes on."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        with contextlib.suppress(Exception):
            await self._app(scope, receive, send)
