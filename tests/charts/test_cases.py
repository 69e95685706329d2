"""The rendered webhooks on the embedded API server while their endpoint is down, as right after an installation."""

import copy
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simulator.apiserver import ServerThread
from simulator.apiserver.failures import StatusError
from tests.charts.test_manifests import NAMES, manifests

Json = dict[str, Any]
CARD = {"nvidia.com/gpu": "1"}
CI = Path(__file__).resolve().parents[2] / "charts" / "gpuslice" / "ci"


def unused_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def pod(name: str, namespace: str, limits: Json, **spec: Any) -> Json:
    container = {"name": "main", "image": "x", "resources": {"limits": limits, "requests": dict(limits)}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": [container], **spec},
    }


CLOSED = [name for name in NAMES if "failurePolicy: Ignore" not in (CI / f"{name}-values.yaml").read_text()]
"""Variants that fail closed, which is the default."""


@pytest.fixture(params=CLOSED)
def cluster(request: pytest.FixtureRequest) -> Iterator[ServerThread]:
    """An API server with the chart's webhooks, of which none answers."""
    hooks = manifests(request.param, "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    dead = f"https://127.0.0.1:{unused_port()}"
    with ServerThread() as server:
        own = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpuslice-system"}}
        server.wait(server.server.create(own))
        for made in copy.deepcopy(hooks):
            for hook in made["webhooks"]:
                bundle = hook["clientConfig"].get("caBundle", "")
                hook["clientConfig"] = {"url": f"{dead}/x", "caBundle": bundle}
            server.wait(server.server.create(made))
        yield server


def test_the_default_fails_closed() -> None:
    assert "default" in CLOSED


def test_only_pods_with_cards_wait_for_an_endpoint_that_is_down(cluster: ServerThread) -> None:
    """KAI-Scheduler#104: right after the installation no pod of the cluster could be created."""
    began = time.monotonic()
    sidecar = {"name": "s", "image": "x", "securityContext": {"privileged": True}}
    allowed = [
        pod("cpu", "default", {"cpu": "1"}),
        pod("nothing", "default", {}),
        pod("privileged", "default", {}, initContainers=[sidecar]),
        pod("system", "kube-system", CARD),
        pod("ours", "gpuslice-system", {}),
        pod("ours-with-a-card", "gpuslice-system", CARD),
    ]
    for each in allowed:
        cluster.wait(cluster.server.create(each))
    assert time.monotonic() - began < 5
    for name, spec in (
        ("gpu", pod("gpu", "default", CARD)),
        ("part", pod("part", "default", {"nvidia.com/gpumem": 1})),
    ):
        with pytest.raises(StatusError, match="failed calling webhook"):
            cluster.wait(cluster.server.create(spec))
        assert name not in {found["metadata"]["name"] for found in cluster.call(lambda s: s.list("v1", "Pod"))}
