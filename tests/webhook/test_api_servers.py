"""The webhook registered with an API server, embedded and real: what really arrives, what an outage really does."""

import base64
import http.client
import json
import re
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from simulator.apiserver import ADMIN as EMBEDDED_ADMIN
from simulator.apiserver import Options, ServerThread
from tests.cluster.build import ensure
from tests.cluster.harness.api import Api, ApiError, path_of
from tests.cluster.harness.control_plane import ADMIN, ControlPlane
from tests.webhook.pod_generator import PodGenerator
from tests.webhook.reviews import FAMILIES
from webhook.registration import Registration, mutating_configuration, validating_configuration

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("webhook-api-servers")]
REAL = pytest.param("real", marks=pytest.mark.cluster)
Json = dict[str, Any]
EXEMPT = "kube-system"
GPU = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}


def pod(name: str, limits: Json, **more: Any) -> Json:
    metadata = {"name": name} | more.pop("metadata", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}]} | more,
    }


@dataclass
class Cluster:
    """An API server with our webhook registered."""

    admin: Api
    port_of_api: int
    authority: Path
    token: str
    folder: Path
    port: int = 0
    process: "subprocess.Popen[bytes] | None" = None

    def start_webhook(self) -> None:
        ports = self.folder / "ports.json"
        ports.unlink(missing_ok=True)
        command = [sys.executable, "-m", "webhook", "--listen", f"127.0.0.1:{self.port}", "--ports-file", str(ports)]
        command += ["--self-signed", str(self.folder / "tls"), "--self-signed-host", "127.0.0.1"]
        with (self.folder / "webhook.log").open("ab") as log:
            self.process = subprocess.Popen([*command, "--metrics-host", "127.0.0.1"], stderr=log)
        deadline = time.monotonic() + 30
        while not ports.exists():
            assert time.monotonic() < deadline, (self.folder / "webhook.log").read_text()
            time.sleep(0.05)
        self.port = json.loads(ports.read_text())["listen"]

    def kill_webhook(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def register(self) -> None:
        authority = base64.b64encode((self.folder / "tls" / "ca.crt").read_bytes()).decode()
        registration = Registration({"url": f"https://127.0.0.1:{self.port}"}, authority, exempt_namespaces=[EXEMPT])
        admin = self.admin
        admin.create("mutatingwebhookconfigurations", None, mutating_configuration(registration, FAMILIES))
        admin.create("validatingwebhookconfigurations", None, validating_configuration(registration, FAMILIES))
        for namespace in ("default", EXEMPT):
            account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
            if admin.find("serviceaccounts", namespace, "default") is None:
                admin.create("serviceaccounts", namespace, account)
        deadline = time.monotonic() + 30
        while self.try_create(pod("probe", {"nvidia.com/gpu": -1}), dry_run=True)[0] != 403:
            assert time.monotonic() < deadline, "the API server does not call the webhook"
            time.sleep(0.1)

    def try_create(self, body: Json, *, namespace: str = "default", dry_run: bool = False) -> tuple[int, Json | str]:
        """Return (status, object or message)."""
        path = path_of("pods", namespace) + ("?dryRun=All" if dry_run else "")
        try:
            return 201, self.admin.request("POST", path, body)
        except ApiError as error:
            return error.status, error.message

    def create(self, body: Json) -> Json:
        status, answer = self.try_create(body)
        assert isinstance(answer, dict), (status, answer)
        return answer

    def warnings(self, path: str, body: Json) -> list[str]:
        """Create something in a dry run; return what kubectl would print after ``Warning:``."""
        trust = ssl.create_default_context(cafile=str(self.authority))
        connection = http.client.HTTPSConnection("127.0.0.1", self.port_of_api, context=trust, timeout=30)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        connection.request("POST", f"{path}?dryRun=All", json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        assert answer.status == 201, text
        found = answer.headers.get_all("Warning") or []
        return [re.sub(r'^299 - "(.*)"$', r"\1", line).replace('\\"', '"') for line in found]


@contextmanager
def real(folder: Path) -> Iterator[Cluster]:
    plane = ControlPlane(folder / "plane", ensure(("etcd", "kube-apiserver")), nodes=["n1"])
    try:
        plane.start()
        yield Cluster(plane.admin, plane.port, plane.authority.certificate, plane.tokens.token(ADMIN), folder)
    finally:
        plane.admin.close()
        plane.stop()


@contextmanager
def embedded(folder: Path) -> Iterator[Cluster]:
    with ServerThread(Options(tls=True, data=folder / "api", namespaces=("default", EXEMPT))) as handle:
        authority = folder / "api-ca.crt"
        authority.write_bytes(handle.server.ca_pem or b"")
        port = int(handle.url.rpartition(":")[2])
        token = EMBEDDED_ADMIN.token
        admin = Api(host="127.0.0.1", port=port, authority=authority, token=token)
        yield Cluster(admin, port, authority, token, folder)
        admin.close()


@pytest.fixture(scope="module", params=["embedded", REAL])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("api-server")
    with {"embedded": embedded, "real": real}[request.param](folder) as running:
        try:
            running.start_webhook()
            running.register()
            yield running
        finally:
            if running.process is not None:
                running.process.kill()
                running.process.wait(10)


def test_a_number_arrives_in_canonical_form_and_means_the_same(cluster: Cluster) -> None:
    created = cluster.create(pod("canonical", {"nvidia.com/gpumem": 3000}))
    assert created["spec"]["schedulerName"] == "gpuslice-scheduler"
    resources = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k"}
    assert created["spec"]["containers"][0]["resources"] == {"limits": resources, "requests": resources}


@pytest.mark.parametrize(
    ("limits", "line"),
    [
        pytest.param({"nvidia.com/gpu": -1}, "nvidia.com/gpu='-1': is negative", id="negative"),
        pytest.param({"nvidia.com/gpu": "1.5"}, "nvidia.com/gpu='1500m': is not a whole number", id="half a card"),
        pytest.param({"nvidia.com/gpu": 1, "nvidia.com/gpumem": "4G"}, "more than any card has", id="4G"),
        pytest.param({"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 101}, "is more than 100", id="101 percent"),
        pytest.param({"nvidia.com/gpu": 1, "amd.com/gpu": 1}, "one kind of device", id="two families"),
    ],
)
def test_a_denial_reaches_the_user(cluster: Cluster, limits: Json, line: str) -> None:
    status, message = cluster.try_create(pod("bad", limits))
    assert status == 403
    assert "denied the request" in str(message)
    assert line in str(message)


def test_generated_names_and_dry_runs(cluster: Cluster) -> None:
    body = pod("x", GPU, metadata={"generateName": "job-"})
    del body["metadata"]["name"]
    status, answer = cluster.try_create(body, dry_run=True)
    assert status == 201
    assert isinstance(answer, dict)
    assert answer["spec"]["schedulerName"] == "gpuslice-scheduler"
    assert cluster.admin.find("pods", "default", answer["metadata"]["name"]) is None


def test_annotations_are_protected_on_every_way_into_a_pod(cluster: Cluster) -> None:
    admin = cluster.admin
    cluster.create(pod("protected", GPU))
    cluster.create(pod("protected-cpu", {"cpu": "1"}))
    annotate = {"metadata": {"annotations": {"gpuslice.io/allocation": "{}"}}}
    for name in ("protected", "protected-cpu"):
        for sub in ((), ("status",)):
            with pytest.raises(ApiError, match=r"annotation gpuslice\.io/allocation") as caught:
                admin.patch("pods", "default", name, annotate, *sub)
            assert caught.value.status == 403
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "protected", "annotations": {"hami.io/vgpu-node": "n1"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }
    with pytest.raises(ApiError, match=r"annotation hami\.io/vgpu-node"):
        admin.request("POST", path_of("pods", "default", "protected", "binding"), binding)
    status, message = cluster.try_create(pod("smuggled", {"cpu": "1"}, metadata=annotate["metadata"]))
    assert status == 403
    assert "gpuslice.io/allocation" in str(message)


def test_ordinary_changes_pass(cluster: Cluster) -> None:
    admin = cluster.admin
    cluster.create(pod("ordinary", GPU, schedulingGates=[{"name": "example.com/wait"}]))
    admin.patch("pods", "default", "ordinary", {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}})
    admin.patch("pods", "default", "ordinary", {"spec": {"schedulingGates": []}})
    condition = {"type": "example.com/Seen", "status": "True"}
    admin.patch("pods", "default", "ordinary", {"status": {"conditions": [condition]}}, "status")
    changed = admin.get("pods", "default", "ordinary")
    assert "schedulingGates" not in changed["spec"]
    assert changed["metadata"]["labels"] == {"a": "b"}


def test_debug_containers_lose_steering_and_privileges(cluster: Cluster) -> None:
    admin = cluster.admin
    cluster.create(pod("debugged", GPU))
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "A", "value": "1"}]
    debug: Json = {"name": "debug", "image": "x", "env": env}
    path = path_of("pods", "default", "debugged", "ephemeralcontainers")
    strategic = "application/strategic-merge-patch+json"
    answer = admin.request("PATCH", path, {"spec": {"ephemeralContainers": [debug]}}, content=strategic)
    assert answer["spec"]["ephemeralContainers"][0]["env"] == [{"name": "A", "value": "1"}]
    loud = {"name": "loud", "image": "x", "securityContext": {"privileged": True}}
    with pytest.raises(ApiError, match="container loud"):
        admin.request("PATCH", path, {"spec": {"ephemeralContainers": [loud]}}, content=strategic)


def test_a_share_is_not_resized_in_place(cluster: Cluster) -> None:
    cluster.create(pod("resized", GPU | {"cpu": "1"}))
    limits = {"cpu": "1", "nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000"}
    resources = {"limits": limits, "requests": limits}
    body = {"spec": {"containers": [{"name": "main", "resources": resources}]}}
    strategic = "application/strategic-merge-patch+json"
    with pytest.raises(ApiError, match=r"in place|cannot be resized|only cpu and memory"):
        cluster.admin.request("PATCH", path_of("pods", "default", "resized", "resize"), body, content=strategic)


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"])
def test_a_workload_is_warned_about_at_kubectl_apply(cluster: Cluster, kind: str) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod("x", {"nvidia.com/gpucores": 101})["spec"]}
    spec: Json = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    group = "apps/v1"
    if kind in ("Job", "CronJob"):
        group = "batch/v1"
        spec = {"template": template | {"spec": template["spec"] | {"restartPolicy": "Never"}}}
    if kind == "CronJob":
        spec = {"schedule": "0 0 * * *", "jobTemplate": {"spec": spec}}
    if kind == "StatefulSet":
        spec["serviceName"] = "x"
    body = {"apiVersion": group, "kind": kind, "metadata": {"name": "w"}, "spec": spec}
    warnings = cluster.warnings(f"/apis/{group}/namespaces/default/{kind.lower()}s", body)
    assert [
        line for line in warnings if "its pods will be denied: container main: nvidia.com/gpucores='101'" in line
    ], warnings


def test_what_is_surprising_is_a_warning(cluster: Cluster) -> None:
    warnings = cluster.warnings("/api/v1/namespaces/default/pods", pod("w", {"nvidia.com/gpu": 1}))
    assert [line for line in warnings if "it gets all memory of the card" in line]


def test_an_outage_holds_gpu_pods_and_nothing_else(cluster: Cluster) -> None:
    """Fail closed for pods with devices; every other pod, and every ordinary change, goes on as if nothing were."""
    admin = cluster.admin
    cluster.create(pod("running", GPU))
    cluster.kill_webhook()
    try:
        status, message = cluster.try_create(pod("held", GPU))
        assert status == 500
        assert "failed calling webhook" in str(message)
        started = time.monotonic()
        cluster.create(pod("free", {"cpu": "1"}))
        admin.patch("pods", "default", "free", {"metadata": {"labels": {"a": "b"}}})
        admin.patch("pods", "default", "running", {"metadata": {"annotations": {"c": "d"}}})
        admin.patch("pods", "default", "running", {"status": {"phase": "Running"}}, "status")
        deployment = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "d"},
            "spec": {
                "selector": {"matchLabels": {"a": "b"}},
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod("x", GPU)["spec"]},
            },
        }
        admin.create("deployments", "default", deployment)
        admin.delete("pods", "default", "running", grace_seconds=0)
        assert admin.find("pods", "default", "running") is None
        assert cluster.try_create(pod("agent", GPU), namespace=EXEMPT)[0] == 201
        assert time.monotonic() - started < 5
        annotate = {"metadata": {"annotations": {"gpuslice.io/allocation": "{}"}}}
        with pytest.raises(ApiError, match="failed calling webhook"):
            admin.patch("pods", "default", "free", annotate)
    finally:
        cluster.start_webhook()
    cluster.create(pod("held", GPU))


ADMITTED_ELSEWHERE = (
    "priority",
    "preemptionPolicy",
    "priorityClassName",
    "serviceAccount",
    "serviceAccountName",
    "runtimeClassName",
    "overhead",
    "resourceClaims",
    "resources",
)
"""Fields that name objects which are not there; other admission plugins refuse them."""
_FIELD = re.compile(r"\.?([A-Za-z0-9_$-]+)|\[([^\]]+)\]")


def prune(body: Json, message: str) -> bool:
    """Remove the values that the API server's message complains about; False when it names none."""
    removed = False
    for place in re.findall(r"((?:spec|metadata)[A-Za-z0-9_.\[\]/$-]*): ", message):
        tokens = [(name[:1].lower() + name[1:]) or index for name, index in _FIELD.findall(place)]
        removed |= _remove(body, tokens)
    return removed


def _remove(document: Any, tokens: list[str]) -> bool:
    """Remove the deepest optional thing on the path."""
    keep = {("spec",), ("metadata",), ("spec", "containers"), ("metadata", "name")}
    for length in range(len(tokens), 1, -1):
        target: Any = document
        for token in tokens[: length - 1]:
            if isinstance(target, list):
                target = target[int(token)] if token.isdecimal() and int(token) < len(target) else None
            elif isinstance(target, dict):
                target = target.get(token)
        last = tokens[length - 1]
        path = tuple(token for token in tokens[:length] if not token.isdecimal())
        if (
            isinstance(target, dict)
            and last in target
            and path not in keep
            and last not in ("name", "image", "resources")
        ):
            del target[last]
            return True
        if isinstance(target, list) and last.isdecimal() and int(last) < len(target) and path not in keep:
            del target[int(last)]
            return True
    return False


def valid_pod(cluster: Cluster, seed: int) -> Json | None:
    """Return a generated pod from which the API server's own validation has taken what it refuses."""
    body = PodGenerator(seed, [1.0, 0.5, 0.25, 0.1][seed % 4]).pod(wants_devices=seed % 10 != 0)
    body["metadata"] = {"name": f"g{seed}", "annotations": body["metadata"].get("annotations", {})}
    body.pop("status", None)
    for name in ADMITTED_ELSEWHERE:
        body["spec"].pop(name, None)
    for part in (body["spec"], *body["spec"]["containers"], *body["spec"].get("initContainers", [])):
        (part.get("securityContext") or {}).pop("windowsOptions", None)
        part["image"] = "x"
    del body["spec"]["image"]
    for _ in range(40):
        status, answer = cluster.try_create(body, namespace=EXEMPT, dry_run=True)
        if status == 201:
            return body
        if not prune(body, str(answer)):
            return None
    return None


def without_ours(answer: Json) -> str:
    """Return a stored pod without what the patch may touch and what differs between any two pods."""
    body: Json = json.loads(json.dumps(answer))
    body.pop("status")
    for key in ("uid", "creationTimestamp", "managedFields", "namespace"):
        body["metadata"].pop(key, None)
    annotations = body["metadata"].pop("annotations", {})
    body["metadata"]["annotations"] = {k: v for k, v in annotations.items() if not k.startswith("metax-tech.com/")}
    body["spec"].pop("schedulerName")
    counts = {family.resources.count for family in FAMILIES}
    for volume in body["spec"].get("volumes", []):
        if volume["name"].startswith("kube-api-access-"):
            volume["name"] = "kube-api-access"
    for container in body["spec"]["containers"] + body["spec"].get("initContainers", []):
        steering = {"NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_SM_LIMIT", "LD_PRELOAD", "SOL_CONTINER_NAME"}
        container["env"] = [v for v in container.get("env", []) if v["name"] not in steering]
        for mount in container.get("volumeMounts", []):
            if mount["name"].startswith("kube-api-access-"):
                mount["name"] = "kube-api-access"
        for numbers in container["resources"].values():
            for name in counts & numbers.keys():
                del numbers[name]
    return json.dumps(body, sort_keys=True)


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [REAL], indirect=True)
def test_a_thousand_pods_keep_every_other_byte(cluster: Cluster) -> None:
    """The same pod, stored with and without the webhook, differs in what the patch is about and nowhere else."""
    compared = patched = 0
    covered: set[str] = set()
    for seed in range(1000):
        body = valid_pod(cluster, seed)
        if body is None:
            continue
        _, plain = cluster.try_create(body, namespace=EXEMPT, dry_run=True)
        status, ours = cluster.try_create(body, dry_run=True)
        assert status == 201, ours
        assert isinstance(plain, dict)
        assert isinstance(ours, dict)
        assert without_ours(ours) == without_ours(plain)
        compared += 1
        patched += ours["spec"]["schedulerName"] == "gpuslice-scheduler" != plain["spec"]["schedulerName"]
        covered |= ours["spec"].keys() | {f"container.{key}" for key in ours["spec"]["containers"][0]}
    print(f"\n{compared} pods compared, {patched} given our scheduler, {len(covered)} fields covered")
    assert compared >= 900
    assert patched >= 300
