"""The HTTP face: POST /mutate and /validate. Raw bytes in, raw bytes out, straight from the parser."""

import secrets
import time
from collections.abc import Callable

import structlog
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Counter, Histogram

from gpuslice.service.direct import Direct, Handler, Reply
from webhook.admission import Admission
from webhook.review import AdmissionRequest, BadReview, Verdict, decode_review, encode_review

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
    """Answers the reviews of one endpoint."""

    def __init__(self, name: str, decide: Decide, metrics: Metrics) -> None:
        self._name = name
        self._decide = decide
        self._metrics = metrics

    def answer(self, body: bytes) -> Reply:
        """Answer one review. A bug of ours answers 500, and the API server applies failurePolicy."""
        started = time.perf_counter()
        try:
            request = decode_review(body)
            verdict = self._decide(request)
        except BadReview as error:
            self._metrics.observe[self._name, "unreadable"]()
            log.warning("review_unreadable", endpoint=self._name, error=str(error))
            return _words(400, f"{error}\n")
        except Exception:
            incident = secrets.token_hex(4)
            self._metrics.observe[self._name, "failed"]()
            log.exception("review_failed", endpoint=self._name, incident=incident)
            return _words(500, f"internal error {incident}; see the webhook's log\n")
        finally:
            self._metrics.took[self._name](time.perf_counter() - started)
        self._account(request, verdict)
        return Reply(200, encode_review(request.uid, verdict))

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


def _words(status: int, text: str) -> Reply:
    return Reply(status, text.encode(), content_type=b"text/plain; charset=utf-8")


def make_endpoints(admission: Callable[[], Admission], registry: CollectorRegistry) -> Direct:
    """Return what answers reviews. ``admission`` is asked for each review, so that a changed policy holds at once."""
    metrics = Metrics(registry)
    decisions: dict[str, Decide] = {
        "mutate": lambda request: admission().mutate(request),
        "validate": lambda request: admission().validate(request),
    }
    handlers: dict[bytes, Handler] = {
        b"/" + name.encode(): ReviewEndpoint(name, decide, metrics).answer for name, decide in decisions.items()
    }
    return Direct(handlers, MAX_BODY_BYTES)


def make_app() -> FastAPI:
    """Return the application for all but reviews: it says that there is nothing else here."""
    return FastAPI(title="gpuslice webhook", docs_url=None, redoc_url=None, openapi_url=None)
