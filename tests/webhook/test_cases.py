"""Admission bugs that other projects had in public, asked of the real process over TLS by both endpoints."""

import base64
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.webhook.reviews import Json, body, container, pod
from tests.webhook.test_daemon import Webhook, ask, webhook, write_pair
from webhook.certificates import issue

ENDPOINTS = ["/mutate", "/validate"]
PRIVILEGED = {"securityContext": {"privileged": True}}
CARD = {"nvidia.com/gpu": "1"}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    folder = tmp_path_factory.mktemp("webhook")
    write_pair(folder, issue(["127.0.0.1"], now=datetime.now(UTC)))
    with webhook(folder) as process:
        yield process


def review(running: Webhook, object_: Json, path: str) -> Json:
    status, answer = ask(running.connect(), body(object_), path)
    assert status == 200, answer
    found: Json = answer
    return found


def denied_so_far(running: Webhook) -> int:
    found = re.findall(r'reviews_total\{endpoint="\w+",outcome="denied"} (\d+)', running.probe("/metrics")[1])
    return sum(int(number) for number in found)


def with_gpu(where: str) -> Json:
    """A pod of which one container asks for a card and another, at ``where``, is privileged."""
    privileged = container("spy", **PRIVILEGED)
    trainer = container("trainer", CARD)
    match where:
        case "sidecar":
            return pod(containers=[privileged, trainer])
        case "sidecar that comes last":
            return pod(containers=[trainer, privileged])
        case "init container":
            return pod(containers=[trainer], initContainers=[privileged])
        case "native sidecar":
            return pod(containers=[trainer], initContainers=[{**privileged, "restartPolicy": "Always"}])
        case "init container that holds the card":
            holder = container("spy", CARD, **PRIVILEGED)
            return pod(containers=[container("trainer")], initContainers=[holder])
        case _:
            return pod(containers=[container("spy", CARD, **PRIVILEGED)])


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize(
    "where",
    [
        "sidecar",
        "sidecar that comes last",
        "init container",
        "native sidecar",
        "init container that holds the card",
        "container of the card",
    ],
)
def test_a_privileged_container_denies_a_gpu_pod_in_the_log_and_on_the_wire(
    running: Webhook, where: str, path: str
) -> None:
    """HAMi#2138: denied in the log, allowed and patched in the answer."""
    before = denied_so_far(running)
    answer = review(running, with_gpu(where), path)
    assert answer["allowed"] is False
    assert "spy" in answer["status"]["message"]
    assert "patch" not in answer
    assert denied_so_far(running) == before + 1


@pytest.mark.parametrize("path", ENDPOINTS)
def test_a_privileged_pod_without_cards_is_none_of_our_business(running: Webhook, path: str) -> None:
    """The other half of HAMi#2138."""
    answer = review(running, pod(containers=[container("a", **PRIVILEGED)]), path)
    assert (answer["allowed"], "patch" in answer) == (True, False)


BY_HAND = {
    "hami.io/bind-phase": "allocating",
    "hami.io/bind-time": "1764450000",
    "hami.io/vgpu-node": "n1",
    "hami.io/vgpu-time": "1764450000",
    "hami.io/vgpu-devices-to-allocate": "GPU-x,NVIDIA,20000,100:;",
    "hami.io/vgpu-devices-allocated": "GPU-x,NVIDIA,20000,100:;",
    "gpuslice.io/allocation": '{"v":1,"node":"n1","containers":{"main":[{"slice":"GPU-x::0","memoryMiB":1}]}}',
}


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("scheduler", ["default-scheduler", "gpuslice-scheduler", "hami-scheduler", "volcano", ""])
@pytest.mark.parametrize("key", BY_HAND)
def test_an_allocation_written_by_hand_is_denied_whatever_the_scheduler(
    running: Webhook, key: str, scheduler: str, path: str
) -> None:
    """HAMi#3041: a user writes the scheduler's own annotations and gets a card that nobody accounted."""
    wanted = pod(CARD, annotations={key: BY_HAND[key]}, schedulerName=scheduler)
    answer = review(running, wanted, path)
    assert answer["allowed"] is False
    assert key in answer["status"]["message"]
    assert "patch" not in answer


def test_all_annotations_written_by_hand_are_named_at_once(running: Webhook) -> None:
    message = review(running, pod(CARD, annotations=BY_HAND), "/mutate")["status"]["message"]
    assert [key for key in BY_HAND if key not in message] == []


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"nvidia.com/gpu": 0, "nvidia.com/gpumem": 4000}, id="memory of no card"),
        pytest.param({"nvidia.com/gpu": -1}, id="fewer than none"),
        pytest.param({"nvidia.com/gpu": "1.5"}, id="one and a half"),
        pytest.param({"nvidia.com/gpu": 2147483648}, id="beyond 32 bits"),
        pytest.param({"nvidia.com/gpu": "18446744073709551617"}, id="1 after an overflow of 64 bits"),
        pytest.param({"nvidia.com/gpu": "1500m"}, id="one and a half in milli"),
        pytest.param({"nvidia.com/gpu": "100m", "nvidia.com/gpumem": 4000}, id="a tenth with memory"),
    ],
)
def test_every_bad_count_is_denied(running: Webhook, limits: Any, path: str) -> None:
    """HAMi#2679: such pods passed quota and every node, and were bound without a device."""
    answer = review(running, pod(limits), path)
    assert answer["allowed"] is False
    assert "nvidia.com/gpu" in answer["status"]["message"]


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"nvidia.com/gpumem": 4000}, id="memory only"),
        pytest.param({"nvidia.com/gpucores": 30}, id="compute only"),
        pytest.param({"nvidia.com/gpumem-percentage": 50}, id="a part of the memory only"),
        pytest.param({"nvidia.com/gpumem": "4Gi", "nvidia.com/gpucores": 30}, id="memory and compute"),
    ],
)
def test_a_share_without_a_count_is_a_share_of_one_card(running: Webhook, limits: Any) -> None:
    """HAMi#2679, the documented rule."""
    answer = review(running, pod(limits), "/mutate")
    patch = json.loads(base64.b64decode(answer["patch"]))
    counts = [step["value"] for step in patch if step["path"].endswith("/limits/nvidia.com~1gpu")]
    assert [str(count) for count in counts] == ["1"]
    assert {"op": "replace", "path": "/spec/schedulerName", "value": "gpuslice-scheduler"} in patch
