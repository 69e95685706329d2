"""Refusals as Kubernetes words them: the `Status` object of the API.

Every handler raises StatusError for an answer that is not the object asked for; the HTTP layer renders it. Codes,
reasons and messages follow k8s.io/apimachinery/pkg/api/errors, because clients decide by `reason` and people read
`message`.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

Json = Any
"""Any JSON value: what is inside an Object is known only to the code that reads it."""
Object = dict[str, Any]
"""A decoded Kubernetes object: JSON as Python dictionaries and lists."""


class StatusError(Exception):
    """An API refusal; carries everything a `Status` object says."""

    def __init__(
        self, code: int, reason: str, message: str, *, details: Object | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.retry_after = retry_after

    def status(self) -> Object:
        """Render the `Status` object (kind Status, apiVersion v1)."""
        body: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            body["reason"] = self.reason
        if self.details is not None or self.retry_after is not None:
            body["details"] = dict(self.details or {})
        if self.retry_after is not None:
            body["details"]["retryAfterSeconds"] = self.retry_after
        body["code"] = self.code
        return body


def qualified(plural: str, group: str) -> str:
    """Name a resource as messages do: `pods`, `leases.coordination.k8s.io`."""
    return f"{plural}.{group}" if group else plural


def _details(plural: str, group: str, name: str, **more: object) -> Object:
    details: Object = {"name": name} if name else {}
    if group:
        details["group"] = group
    details["kind"] = plural
    return details | more


def not_found(plural: str, group: str, name: str) -> StatusError:
    """404: no such object."""
    message = f'{qualified(plural, group)} "{name}" not found'
    return StatusError(404, "NotFound", message, details=_details(plural, group, name))


def no_such_path() -> StatusError:
    """404: the path names no resource that this server has."""
    return StatusError(404, "NotFound", "the server could not find the requested resource", details={})


def already_exists(plural: str, group: str, name: str) -> StatusError:
    """409: create of a name that is taken."""
    message = f'{qualified(plural, group)} "{name}" already exists'
    return StatusError(409, "AlreadyExists", message, details=_details(plural, group, name))


def conflict(plural: str, group: str, name: str, why: str) -> StatusError:
    """409: the write does not fit the object's present state."""
    message = f'Operation cannot be fulfilled on {qualified(plural, group)} "{name}": {why}'
    return StatusError(409, "Conflict", message, details=_details(plural, group, name))


def stale_write(plural: str, group: str, name: str) -> StatusError:
    """409: resourceVersion of the write is not the object's."""
    return conflict(
        plural,
        group,
        name,
        "the object has been modified; please apply your changes to the latest version and try again",
    )


def invalid(kind: str, group: str, name: str, causes: Sequence["FieldError"]) -> StatusError:
    """422: fields that break a rule, all of them at once."""
    texts = [cause.text() for cause in causes]
    said = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    details = _details(kind, group, name, causes=[cause.cause() for cause in causes])
    return StatusError(422, "Invalid", f'{qualified(kind, group)} "{name}" is invalid: {said}', details=details)


def bad_request(message: str) -> StatusError:
    """400: the request cannot be understood."""
    return StatusError(400, "BadRequest", message)


def forbidden(plural: str, group: str, name: str, why: str, *, causes: list[Object] | None = None) -> StatusError:
    """403: admission or authorisation says no."""
    more = {"causes": causes} if causes else {}
    message = f'{qualified(plural, group)} "{name}" is forbidden: {why}'
    return StatusError(403, "Forbidden", message, details=_details(plural, group, name, **more))


def unauthorized() -> StatusError:
    """401: no or an unknown token."""
    return StatusError(401, "Unauthorized", "Unauthorized")


def method_not_supported() -> StatusError:
    """405: the resource exists but not this verb."""
    message = "the server does not allow this method on the requested resource"
    return StatusError(405, "MethodNotAllowed", message, details={})


def gone(message: str) -> StatusError:
    """410 Expired: history that was compacted away."""
    return StatusError(410, "Expired", message)


def unsupported_media(message: str, details: Object | None = None) -> StatusError:
    """415: a body in a format this server does not read."""
    return StatusError(415, "UnsupportedMediaType", message, details=details)


def internal(message: str) -> StatusError:
    """500 with the cause in words."""
    return StatusError(
        500, "InternalError", f"Internal error occurred: {message}", details={"causes": [{"message": message}]}
    )


class Raw(str):
    """A value that messages show as it is, without quotes."""

    __slots__ = ()


class FieldError:
    """One broken field rule, as k8s.io/apimachinery/pkg/util/validation/field words it."""

    __slots__ = ("detail", "field", "kind", "value")

    def __init__(self, kind: str, field: str, value: object = None, detail: str = "") -> None:
        self.kind = kind
        self.field = field
        self.value = value
        self.detail = detail

    _TITLES: ClassVar = {
        "Required": "FieldValueRequired",
        "Invalid": "FieldValueInvalid",
        "Forbidden": "FieldValueForbidden",
        "NotSupported": "FieldValueNotSupported",
        "Duplicate": "FieldValueDuplicate",
        "NotFound": "FieldValueNotFound",
        "TooLong": "FieldValueTooLong",
    }

    _WORDS: ClassVar = {
        "Required": "Required value",
        "Invalid": "Invalid value",
        "Forbidden": "Forbidden",
        "NotSupported": "Unsupported value",
        "Duplicate": "Duplicate value",
        "NotFound": "Not found",
        "TooLong": "Too long",
    }

    def body(self) -> str:
        """Say what is wrong, without the field's path."""
        words = self._WORDS[self.kind]
        if self.kind in {"Required", "Forbidden", "TooLong"}:
            return f"{words}: {self.detail}" if self.detail else words
        shown = (
            f'"{self.value}"' if isinstance(self.value, str) and not isinstance(self.value, Raw) else _shown(self.value)
        )
        return f"{words}: {shown}: {self.detail}" if self.detail else f"{words}: {shown}"

    def text(self) -> str:
        """Say what is wrong with the path in front."""
        return f"{self.field}: {self.body()}"

    def cause(self) -> Object:
        """Render one `details.causes` entry."""
        return {"reason": self._TITLES[self.kind], "message": self.body(), "field": self.field}


def _shown(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(f'"{item}"' for item in value) + "]"
    return str(value)
