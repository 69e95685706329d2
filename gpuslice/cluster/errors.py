"""Errors of talking to the API server; they hang below :class:`gpuslice.devices.errors.GpusliceError`.

GpusliceError
├── ApiError               the API server answered, and the answer is no (carries status, reason, message)
│   ├── NotFound           404: the object does not exist (any more)
│   ├── Conflict           409: somebody wrote first, the object exists already, or the pod is bound (also a StaleWrite)
│   ├── Expired            410: the resourceVersion is too old; list again
│   └── Throttled          429: try later, after ``retry_after_seconds`` (an eviction: a disruption budget says no)
└── Unreachable            no answer: refused, cut or timed out. The request may or may not have been carried out.
"""

import msgspec

from gpuslice.devices.decoding import UNREADABLE
from gpuslice.devices.errors import GpusliceError, StaleWrite


class ApiError(GpusliceError):
    """The API server refused a request."""

    def __init__(self, request: str, status: int, reason: str, message: str) -> None:
        super().__init__(f"{request}: {status} {reason}: {message}")
        self.request = request
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_seconds: float | None = None

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed later without any change."""
        return self.status == 429 or self.status >= 500


class NotFound(ApiError):
    """404."""


class Conflict(ApiError, StaleWrite):
    """409."""


class Expired(ApiError):
    """410."""


class Throttled(ApiError):
    """429."""


class Unreachable(GpusliceError):
    """No answer came. Whether the request was carried out is not known: read before deciding again."""

    def __init__(self, request: str, problem: str) -> None:
        super().__init__(f"{request}: no answer from the API server: {problem}; check its address and the network")
        self.request = request
        self.problem = problem


class _Status(msgspec.Struct, frozen=True):
    """metav1.Status, as far as we read it."""

    reason: str = ""
    message: str = ""
    code: int = 0


_BY_STATUS: dict[int, type[ApiError]] = {404: NotFound, 409: Conflict, 410: Expired, 429: Throttled}


def error_from_answer(request: str, status: int, body: bytes, retry_after: str | None = None) -> ApiError:
    """Build the error of an answer with ``status`` >= 400; an unreadable body is quoted as it is."""
    try:
        parsed = msgspec.json.decode(body, type=_Status)
    except UNREADABLE:
        parsed = _Status(reason="", message=body[:200].decode("utf-8", "replace"))
    error = _BY_STATUS.get(status, ApiError)(request, status, parsed.reason, parsed.message)
    if retry_after is not None and retry_after.isdecimal():
        error.retry_after_seconds = float(retry_after)
    return error
