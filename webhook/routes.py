"""The HTTP face: POST /mutate and /validate. Raw bytes in, raw bytes out; FastAPI routes, msgspec decodes."""

import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.routing import Route

from webhook.admission import Admission
from webhook.review import AdmissionRequest, BadReview, Verdict, decode_review, encode_review

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

log = structlog.get_logger(__name__)

MAX_BODY_BYTES = 8 * 2**20
"""etcd refuses objects above 1.5 MiB; a review carries two of them."""

Decide = Callable[[AdmissionRequest], Verdict]


class Metrics:
    """Counts what was decided and how long it took."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._reviews = Counter(
            "gpuslice_admission_reviews_total",
            "Admission reviews by endpoint and outcome.",
            ("endpoint", "outcome"),
            registry=registry,
        )
        self._seconds = Histogram(
            "gpuslice_admission_review_seconds",
            "Time to decide a review, without network and TLS.",
            ("endpoint",),
            buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1),
            registry=registry,
        )
        self.observe = {
            (endpoint, outcome): self._reviews.labels(endpoint, outcome).inc
            for endpoint in ("mutate", "validate")
            for outcome in ("untouched", "patched", "warned", "denied", "unreadable", "failed")
        }
        self.took = {endpoint: self._seconds.labels(endpoint).observe for endpoint in ("mutate", "validate")}


class ReviewEndpoint:
    """One endpoint as a bare ASGI application: a request object per call would cost more than the decision."""

    def __init__(self, name: str, decide: Decide, metrics: Metrics) -> None:
        self._name = name
        self._decide = decide
        self._metrics = metrics

    async def __call__(self, _scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer one review."""
        body = await _read_body(receive)
        started = time.perf_counter()
        status, answer, content_type = self._answer(body)
        self._metrics.took[self._name](time.perf_counter() - started)
        headers = [(b"content-type", content_type), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    def _answer(self, body: bytes | None) -> tuple[int, bytes, bytes]:
        if body is None:
            return 413, b"the body is larger than 8 MiB\n", b"text/plain"
        try:
            request = decode_review(body)
            verdict = self._decide(request)
        except BadReview as error:
            self._metrics.observe[self._name, "unreadable"]()
            log.warning("review_unreadable", endpoint=self._name, error=str(error))
            return 400, f"{error}\n".encode(), b"text/plain; charset=utf-8"
        except Exception:
            # A bug of ours answers 500, and the API server applies failurePolicy; the daemon lives on.
            incident = secrets.token_hex(4)
            self._metrics.observe[self._name, "failed"]()
            log.exception("review_failed", endpoint=self._name, incident=incident)
            return 500, f"internal error {incident}; see the webhook's log\n".encode(), b"text/plain"
        self._account(request, verdict)
        return 200, encode_review(request.uid, verdict), b"application/json"

    def _account(self, request: AdmissionRequest, verdict: Verdict) -> None:
        if verdict.denial:
            outcome = "denied"
        elif verdict.patch:
            outcome = "patched"
        else:
            outcome = "warned" if verdict.warnings else "untouched"
        self._metrics.observe[self._name, outcome]()
        if verdict.denial:
            log.info(
                "denied",
                endpoint=self._name,
                kind=request.kind.kind,
                object=f"{request.namespace}/{request.name}",
                user=request.user_info.username,
                dry_run=bool(request.dry_run),
                reasons=verdict.denial,
            )


async def _read_body(receive: "Receive") -> bytes | None:
    """Return the whole body, or None when it is too large."""
    message = await receive()
    if not message.get("more_body"):
        body: bytes = message.get("body", b"")
        return body if len(body) <= MAX_BODY_BYTES else None
    parts = [message.get("body", b"")]
    size = len(parts[0])
    while message.get("more_body"):
        message = await receive()
        part = message.get("body", b"")
        size += len(part)
        if size <= MAX_BODY_BYTES:
            parts.append(part)
    return b"".join(parts) if size <= MAX_BODY_BYTES else None


def make_app(admission: Callable[[], Admission], registry: CollectorRegistry) -> FastAPI:
    """Return the application. ``admission`` is asked for each review, so that a changed policy holds at once."""
    app = FastAPI(title="gpuslice webhook", docs_url=None, redoc_url=None, openapi_url=None)
    metrics = Metrics(registry)
    endpoints: dict[str, Decide] = {
        "mutate": lambda request: admission().mutate(request),
        "validate": lambda request: admission().validate(request),
    }
    for name, decide in endpoints.items():
        app.router.routes.append(Route(f"/{name}", ReviewEndpoint(name, decide, metrics), methods=["POST"]))
    return app
