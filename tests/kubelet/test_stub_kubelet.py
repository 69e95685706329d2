"""What only the stub kubelet does. What it must do as the real one does is in tests/contract/kubelet."""

import json
from pathlib import Path

import msgspec
import pytest

from simulator.kubelet.kubelet import Behaviour, StubKubelet
from simulator.kubelet.local import LocalApi
from simulator.kubelet.podview import PodObject
from simulator.kubelet.rig import FAST

pytestmark = pytest.mark.anyio


async def test_a_container_whose_command_does_not_exist_waits_with_the_reason(short_path: Path) -> None:
    api = LocalApi()
    kubelet = StubKubelet("n1", short_path / "k", api, behaviour=Behaviour(pace=FAST))
    await kubelet.start()
    spec = {"nodeName": "n1", "containers": [{"name": "c", "command": ["no-such-program"]}]}
    uid = api.create({"metadata": {"name": "p"}, "spec": spec})
    await api.until(lambda: "executable file not found" in str(api.status(uid)))
    await kubelet.shut_down()


async def test_no_container_starts_any_more_while_another_of_its_pod_takes_its_time_to_end(short_path: Path) -> None:
    api = LocalApi()
    kubelet = StubKubelet("n1", short_path / "k", api, behaviour=Behaviour(pace=FAST))
    await kubelet.start()
    late = short_path / "late"
    stubborn = ["sh", "-c", "trap '' TERM; echo deaf; sleep 100 & wait"]
    containers = [{"name": "a", "command": stubborn}, {"name": "b", "command": [str(late)]}]
    uid = api.create({"metadata": {"name": "p"}, "spec": {"nodeName": "n1", "containers": containers}})
    await api.until(lambda: "executable file not found" in str(api.status(uid)) and bool(kubelet.runtime.history))
    log_file = kubelet.container(uid, "a").log_file
    await api.until(lambda: "deaf" in log_file.read_text())
    api.delete(uid, grace_seconds=1)
    late.write_text("#!/bin/sh\nsleep 100\n")
    late.chmod(0o755)
    await api.until(lambda: uid not in kubelet.workers)
    assert [run.spec.name for run in kubelet.runtime.history] == ["a"]
    await kubelet.shut_down()


def test_a_pod_object_is_read_as_the_api_server_sends_it() -> None:
    body = {"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [{"name": "c", "image": "x"}]}, "status": {}}
    assert msgspec.json.decode(json.dumps(body), type=PodObject).grace_seconds == 30.0


@pytest.mark.parametrize(
    ("apps", "sidecars", "init", "expected"),
    [
        pytest.param([2, 1], [], [], 3, id="app containers together"),
        pytest.param([1], [1], [], 2, id="with their sidecars"),
        pytest.param([1], [1], [5, 3], 5, id="or the largest init container"),
    ],
)
def test_the_devices_a_pod_takes(apps: list[int], sidecars: list[int], init: list[int], expected: int) -> None:
    def containers(prefix: str, counts: list[int], **more: str) -> list[dict[str, object]]:
        return [
            {"name": f"{prefix}{n}", "resources": {"limits": {"x/y": str(count)}}, **more}
            for n, count in enumerate(counts)
        ]

    init_containers = [*containers("i", init), *containers("s", sidecars, restartPolicy="Always")]
    spec = {"containers": containers("c", apps), "initContainers": init_containers}
    assert msgspec.convert({"spec": spec}, PodObject).requests("x/y") == expected
