"""Whatever arrives is answered: a verdict or a clear refusal, never a crash, never a half-read request."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuslice.devices.pods import Pod
from gpuslice.devices.requests import ContainerDemand, PodRequest, read_request
from tests.webhook.reviews import FAMILIES, body, container, mutate, patched, pod
from webhook.admission import Admission
from webhook.inspection import inspect_pod
from webhook.policy import Policy
from webhook.review import BadReview, decode_review, encode_review

NAMES = sorted(FAMILIES.resource_names)
NUMBERS = st.one_of(
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["1", "0", "3k", "16Gi", "4G", "100", "101", "-1", "1.5", "", "x", "1e400", "8", "2Mi", "0.1Ki"]),
    st.text(max_size=8),
)
LIMITS = st.dictionaries(st.sampled_from(NAMES), NUMBERS, max_size=4)
ADMISSION = Admission(FAMILIES, Policy())


def demands(object_: dict[str, Any]) -> tuple[ContainerDemand, ...]:
    found = read_request(msgspec.convert(object_, Pod), FAMILIES)
    assert isinstance(found, PodRequest)
    return found.containers


@given(st.lists(LIMITS, min_size=1, max_size=3))
@settings(max_examples=400, deadline=None)
def test_any_numbers_are_a_request_or_problems(limits: list[dict[str, Any]]) -> None:
    object_ = pod(containers=[container(f"c{i}", each) for i, each in enumerate(limits)])
    verdict = mutate(object_)
    if not verdict.allowed:
        assert all(line.startswith(("container c", "pod")) for line in verdict.denial)
        return
    result = patched(object_, verdict)
    again = mutate(result)
    assert again.allowed
    assert again.patch == ()
    assert demands(result) == demands(object_), "what the scheduler reads is what the user wrote"


@given(st.lists(LIMITS, min_size=1, max_size=3))
@settings(max_examples=200, deadline=None)
def test_an_admitted_pod_has_a_device_for_every_demand(limits: list[dict[str, Any]]) -> None:
    """WH03: a pod on the GPU path always asks for at least one card, and for a possible share of it."""
    object_ = pod(containers=[container(f"c{i}", each) for i, each in enumerate(limits)])
    request = decode_review(body(object_))
    from webhook.admission import _pod_decoder

    findings = inspect_pod(_pod_decoder.decode(request.object), FAMILIES, Policy(), "default")
    if findings.problems:
        return
    assert isinstance(findings.request, PodRequest)
    for demand in findings.request.containers:
        share = demand.request
        assert 1 <= share.cards <= 1024
        assert bool(share.memory_mib) != bool(share.memory_percent)
        assert 0 <= share.memory_percent <= 100
        assert 0 <= share.core_percent <= 100
        assert share.exclusive == (share.core_percent == 100)


KEYS = [
    "metadata",
    "spec",
    "annotations",
    "containers",
    "name",
    "resources",
    "limits",
    "env",
    "value",
    "nvidia.com/gpu",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=25,
)


@given(
    JSON,
    JSON,
    st.sampled_from(["CREATE", "UPDATE", "DELETE", ""]),
    st.sampled_from(["", "status", "resize", "binding"]),
)
@settings(max_examples=400, deadline=None)
def test_any_object_is_answered_or_refused(new: Any, old: Any, operation: str, sub_resource: str) -> None:
    for kind in ("Pod", "Deployment", "CronJob", "Binding", "Other"):
        request = decode_review(body(new, old=old, operation=operation, kind=kind, sub_resource=sub_resource))
        for decide in (ADMISSION.mutate, ADMISSION.validate):
            try:
                verdict = decide(request)
            except BadReview:
                continue
            assert json.loads(encode_review(request.uid, verdict))["response"]["uid"] == request.uid


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(BadReview):
        decode_review(raw)


def test_a_body_nested_too_deeply_is_a_bad_review() -> None:
    with pytest.raises(BadReview, match="recursion"):
        decode_review(b'{"kind":' * 50_000)
