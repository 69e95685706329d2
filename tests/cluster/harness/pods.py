"""Pod manifests of the tests."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.cluster.harness.api import Json
from tests.cluster.harness.images import APP

SLEEP = "trap 'exit 0' TERM; sleep 100000 & wait"
"""Runs until it is asked to end, and ends at once then; the first process of a container has no default handler."""


def container(
    name: str = "main",
    script: str = SLEEP,
    *,
    memory_mib: int | None = None,
    cores: int | None = None,
    cards: int | None = None,
    resources: Mapping[str, str | int] | None = None,
) -> Json:
    """Return a container that runs a shell script, with a share of cards if any of the three is given."""
    limits = {
        "nvidia.com/gpu": cards,
        "nvidia.com/gpumem": memory_mib,
        "nvidia.com/gpucores": cores,
        **(resources or {}),
    }
    wanted = {key: str(value) for key, value in limits.items() if value is not None}
    return {
        "name": name,
        "image": APP,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
        **({"resources": {"limits": wanted}} if wanted else {}),
    }


def pod(
    name: str,
    *containers: Json,
    init: Sequence[Json] = (),
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    **spec: object,
) -> Json:
    """Return a pod of these containers; further fields of its spec by keyword."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": dict(annotations or {}), "labels": dict(labels or {})},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "enableServiceLinks": False,
            "automountServiceAccountToken": False,
            "restartPolicy": "Never",
            "containers": list(containers) or [container()],
            **({"initContainers": list(init)} if init else {}),
            **spec,
        },
    }


def card_pod(name: str, memory_mib: int, script: str = SLEEP, **spec: Any) -> Json:
    """Return a pod of one container with a share of one card."""
    return pod(name, container("main", script, cards=1, memory_mib=memory_mib), **spec)
