"""A patch changes what it must, and leaves every other byte of the pod as it was."""

import json
from typing import Any

import pytest

from gpuslice.devices.pods import Pod
from gpuslice.devices.requests import PodRequest, read_request
from tests.webhook.pod_generator import many_pods
from tests.webhook.reviews import FAMILIES, body, mutate, patched, validate
from webhook.admission import Admission
from webhook.policy import Policy
from webhook.review import UNTOUCHED, decode_review, encode_review

import msgspec  # isort: skip

Json = dict[str, Any]
COUNTS = {family.resources.count for family in FAMILIES}
STEERING = {"NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_SM_LIMIT", "LD_PRELOAD"}
ADDED_ENV = {"SOL_CONTINER_NAME"}
ADDED_ANNOTATIONS = {"metax-tech.com/sgpu-qos-policy"}


def neutral(pod: Json) -> str:
    """Return the pod without the places that a patch may touch, order and all."""
    copy: Json = json.loads(json.dumps(pod))
    copy["spec"].pop("schedulerName", None)
    annotations = copy["metadata"].get("annotations", {})
    copy["metadata"]["annotations"] = {key: value for key, value in annotations.items() if key not in ADDED_ANNOTATIONS}
    for container in copy["spec"]["containers"] + copy["spec"].get("initContainers", []):
        env = [v for v in container.pop("env", None) or [] if v.get("name") not in STEERING | ADDED_ENV]
        container["env"] = env
        for numbers in container["resources"].values():
            for name in COUNTS & numbers.keys():
                del numbers[name]
    metadata, spec = copy["metadata"], copy["spec"]
    return json.dumps({**copy, "metadata": _ordered(metadata), "spec": _ordered(spec)})


def _ordered(part: Json) -> Json:
    """Sort one level: keys that were popped and set again have moved."""
    return dict(sorted(part.items()))


GPU_PODS = many_pods(700, wants_devices=True)
CPU_PODS = many_pods(300, wants_devices=False)


@pytest.mark.parametrize("seed", range(7))
def test_patches_leave_the_rest_bit_identical(seed: int) -> None:
    changed = 0
    for pod in GPU_PODS[seed::7]:
        verdict = mutate(pod)
        assert verdict.allowed, verdict.denial
        result = patched(pod, verdict)
        changed += result != pod
        assert neutral(result) == neutral(pod)
    assert changed > 50


def test_the_comparison_sees_a_single_changed_byte() -> None:
    pod = GPU_PODS[0]
    other: Json = json.loads(json.dumps(pod))
    other["spec"]["fieldOfTheFuture"]["x"][3] = "u"
    assert neutral(other) != neutral(pod)


def test_a_patched_pod_asks_for_the_same_and_needs_no_second_patch() -> None:
    """The mutating webhook may be called again (reinvocationPolicy), and the validating one sees the result."""
    for pod in GPU_PODS:
        result = patched(pod, mutate(pod))
        again = mutate(result)
        assert again.patch == ()
        assert validate(result).allowed
        before = read_request(msgspec.convert(pod, Pod, strict=False), FAMILIES)
        after = read_request(msgspec.convert(result, Pod, strict=False), FAMILIES)
        assert isinstance(before, PodRequest)
        assert isinstance(after, PodRequest)
        assert after.containers == before.containers


def test_the_patched_pod_steers_nothing() -> None:
    for pod in GPU_PODS:
        spec = patched(pod, mutate(pod))["spec"]
        for container in spec["containers"] + spec.get("initContainers", []):
            assert not STEERING & {variable.get("name") for variable in container.get("env") or []}


def test_cpu_pods_get_the_empty_answer() -> None:
    admission = Admission(FAMILIES, Policy())
    empty = b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"UID","allowed":true}}'
    for pod in CPU_PODS:
        request = decode_review(body(pod))
        for verdict in (admission.mutate(request), admission.validate(request)):
            assert verdict is UNTOUCHED
            assert encode_review(request.uid, verdict) == empty.replace(b"UID", request.uid.encode())


def test_the_generator_fills_every_field_of_a_pod() -> None:
    first = GPU_PODS[0]
    assert {"affinity", "topologySpreadConstraints", "resourceClaims", "os", "tolerations"} <= first["spec"].keys()
    assert {"livenessProbe", "lifecycle", "volumeDevices", "resizePolicy"} <= first["spec"]["containers"][0].keys()


@pytest.mark.parametrize("where", ["spec", "metadata", "container"])
def test_null_is_as_good_as_absent(where: str) -> None:
    pod: Json = {
        "metadata": {"name": "p"},
        "spec": {"schedulerName": "", "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
    }
    nulls: dict[str, Json] = {
        "spec": {"initContainers": None, "ephemeralContainers": None, "volumes": None, "hostPID": None},
        "metadata": {"annotations": None, "labels": None},
        "container": {"env": None, "envFrom": None, "securityContext": None, "volumeMounts": None},
    }
    target = pod["spec"]["containers"][0] if where == "container" else pod[where]
    target.update(nulls[where])
    assert patched(pod, mutate(pod))["spec"]["schedulerName"] == "gpuslice-scheduler"
