"""AdmissionReview v1 on the wire (k8s.io/api/admission/v1).

The object stays raw until its kind is known; it is decoded once into the few fields that matter.
"""

import base64
from dataclasses import dataclass

import msgspec

from gpuslice.devices.decoding import UNREADABLE
from gpuslice.devices.errors import GpusliceError

API_VERSION = "admission.k8s.io/v1"


class BadReview(GpusliceError):
    """The body is not an AdmissionReview that we can answer; the API server then applies its failurePolicy."""


class Kind(msgspec.Struct, frozen=True, gc=False):
    """Group, version and kind."""

    group: str = ""
    version: str = ""
    kind: str = ""


class UserInfo(msgspec.Struct, frozen=True, gc=False):
    """Who sent the request."""

    username: str = ""


class AdmissionRequest(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """One question of the API server."""

    uid: str
    kind: Kind = Kind()
    sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    operation: str = ""
    user_info: UserInfo = UserInfo()
    dry_run: bool | None = None
    object: msgspec.Raw = msgspec.Raw(b"null")
    old_object: msgspec.Raw = msgspec.Raw(b"null")


class _Review(msgspec.Struct, frozen=True, rename="camel", gc=False):
    api_version: str
    request: AdmissionRequest | None = None


class Operation(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One JSON patch operation (RFC 6902)."""

    op: str
    path: str
    value: object = msgspec.UNSET


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer. ``denial`` lines are what is wrong; without them the patch and warnings go out."""

    denial: tuple[str, ...] = ()
    patch: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def allowed(self) -> bool:
        """Whether the API server may go on."""
        return not self.denial


UNTOUCHED = Verdict()

_decoder = msgspec.json.Decoder(_Review)
_encoder = msgspec.json.Encoder()
_MAX_WARNING = 256
_MAX_WARNINGS = 4096
_HEAD = b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":'


def decode_review(body: bytes) -> AdmissionRequest:
    """Read the request in a body.

    Raises:
        BadReview: Not JSON, not an AdmissionReview v1, or no request in it.
    """
    try:
        review = _decoder.decode(body)
    except UNREADABLE as error:
        raise BadReview(f"the body is not an AdmissionReview: {error}") from error
    if review.api_version != API_VERSION:
        raise BadReview(f"apiVersion {review.api_version!r} is not {API_VERSION}; register the webhook for v1")
    if review.request is None:
        raise BadReview("the AdmissionReview has no request")
    return review.request


def encode_review(uid: str, verdict: Verdict) -> bytes:
    """Write the answer to the request with this uid."""
    parts = [_HEAD, _encoder.encode(uid)]
    if verdict.allowed:
        parts.append(b',"allowed":true')
        if verdict.patch:
            patch = base64.b64encode(_encoder.encode(verdict.patch))
            parts.extend((b',"patchType":"JSONPatch","patch":"', patch, b'"'))
    else:
        message = "; ".join(verdict.denial)
        causes = [{"reason": "FieldValueInvalid", "message": line} for line in verdict.denial]
        status = {
            "status": "Failure",
            "code": 403,
            "reason": "Forbidden",
            "message": message,
            "details": {"causes": causes},
        }
        parts.extend((b',"allowed":false,"status":', _encoder.encode(status)))
    if verdict.warnings:
        parts.extend((b',"warnings":', _encoder.encode(_fit_warnings(verdict.warnings))))
    parts.append(b"}}")
    return b"".join(parts)


def _fit_warnings(warnings: tuple[str, ...]) -> list[str]:
    """Keep warnings within what the API server passes on: 256 characters each, 4096 together."""
    kept: list[str] = []
    room = _MAX_WARNINGS
    for warning in dict.fromkeys(warnings):
        text = warning if len(warning) <= _MAX_WARNING else warning[: _MAX_WARNING - 1] + "…"
        room -= len(text.encode())
        if room < 0:
            break
        kept.append(text)
    return kept
