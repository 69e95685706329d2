"""What the installed chart does in the real API server: who is called, who may do what."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.build import ensure
from tests.cluster.harness import chart, pods
from tests.cluster.harness.api import Api, ApiError, path_of
from tests.cluster.harness.control_plane import ControlPlane, free_port
from tests.cluster.harness.daemons import Daemon

pytestmark = pytest.mark.cluster

NODES = ("one", "two")


class Installed:
    """A control plane without nodes, with the chart installed and the webhook down unless started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        binaries = ensure()
        self.port = free_port()
        self.plane = ControlPlane(folder, binaries, NODES)
        self.admin = self.plane.admin
        self.helm = chart.Helm(binaries, folder)
        self.values = chart.values_for_host_processes(webhook_port=self.port, extender_port=free_port())

    def start(self) -> None:
        self.plane.start()
        self.plane.start_controller_manager()
        self.helm.install(self.plane.admin_kubeconfig, self.values)
        for name in NODES:
            self.admin.create("nodes", None, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})

    def node_daemon(self, node: str) -> Api:
        """Return a client with the rights of the node daemon's pod on a node."""
        bound = self.admin.get("nodes", None, node)
        return self.plane.api_for(self.admin.service_account_token(chart.NAMESPACE, "gpuslice-node", node=bound))

    def as_account(self, name: str) -> Api:
        return self.plane.api_for(self.admin.service_account_token(chart.NAMESPACE, name))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    cluster = Installed(tmp_path_factory.mktemp("chart"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.plane.stop()


@pytest.fixture
def webhook(installed: Installed) -> Iterator[Daemon]:
    certificate, key = chart.write_webhook_certificate(installed.admin, installed.folder / "webhook")
    flags = [
        f"--listen=127.0.0.1:{installed.port}",
        "--metrics-port=0",
        f"--tls-cert={certificate}",
        f"--tls-key={key}",
    ]
    daemon = Daemon("webhook", flags, folder=installed.folder / "webhook")
    daemon.start()
    try:
        daemon.wait_ready()
        yield daemon
    finally:
        daemon.kill()


def outcome(api: Api, namespace: str, manifest: dict[str, Any]) -> str:
    """Return what a dry-run creation of a pod ends in."""
    try:
        api.request("POST", path_of("pods", namespace) + "?dryRun=All", manifest)
    except ApiError as error:
        return "webhook down" if "failed calling webhook" in error.message else f"refused: {error.message}"
    return "created"


GPU_POD = pods.card_pod("gpu", 3000)
CPU_POD = pods.pod("cpu", pods.container(resources={"cpu": "100m"}))


@pytest.mark.parametrize(
    ("namespace", "manifest", "expected"),
    [
        pytest.param("default", CPU_POD, "created", id="a pod without cards"),
        pytest.param("default", pods.pod("bare"), "created", id="a pod that names no resource at all"),
        pytest.param(
            "default",
            pods.pod("noted", annotations={"example.com/team": "a"}),
            "created",
            id="somebody else's annotation",
        ),
        pytest.param("kube-system", GPU_POD, "created", id="a pod with cards in kube-system"),
        pytest.param(chart.NAMESPACE, GPU_POD, "created", id="a pod in our own namespace"),
        pytest.param("default", GPU_POD, "webhook down", id="a pod with cards"),
        pytest.param(
            "default",
            pods.pod("first", init=[pods.container("init", memory_mib=100)]),
            "webhook down",
            id="a pod whose init container asks for memory of a card",
        ),
        pytest.param(
            "default",
            pods.pod("forged", annotations={"gpuslice.io/allocation": "{}"}),
            "webhook down",
            id="a pod that brings our annotation",
        ),
    ],
)
def test_ch02_while_the_webhook_is_down_only_pods_with_cards_wait(
    installed: Installed, namespace: str, manifest: dict[str, Any], expected: str
) -> None:
    assert outcome(installed.admin, namespace, manifest) == expected


@pytest.mark.usefixtures("webhook")
def test_the_webhook_answers_through_the_charts_bundle(installed: Installed) -> None:
    answer = installed.admin.request("POST", path_of("pods", "default") + "?dryRun=All", GPU_POD)
    assert answer["spec"]["schedulerName"] == "gpuslice-scheduler"
    assert answer["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] == "3k"


@pytest.mark.usefixtures("webhook")
@pytest.mark.parametrize("key", ["gpuslice.io/allocation", "hami.io/vgpu-devices-allocated"])
def test_a_pod_that_names_our_annotations_is_refused_with_the_key(installed: Installed, key: str) -> None:
    result = outcome(installed.admin, "default", pods.pod("forged", annotations={key: "x"}))
    assert result.startswith("refused")
    assert key in result


@pytest.mark.usefixtures("webhook")
@pytest.mark.parametrize("subresource", [(), ("status",)], ids=["by a patch of the pod", "by a patch of its status"])
def test_nobody_writes_our_annotations_later(installed: Installed, subresource: tuple[str, ...]) -> None:
    installed.admin.create("pods", "default", pods.pod("later"))
    try:
        change = {"metadata": {"annotations": {"gpuslice.io/allocation": "x"}}}
        with pytest.raises(ApiError, match=r"gpuslice\.io/allocation"):
            installed.admin.patch("pods", "default", "later", change, *subresource)
    finally:
        installed.admin.delete("pods", "default", "later", grace_seconds=0)


@pytest.mark.usefixtures("webhook")
def test_nobody_smuggles_our_annotations_in_with_a_binding(installed: Installed) -> None:
    installed.admin.create("pods", "default", pods.pod("bound"))
    binding = {
        "apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": "one"},
        "metadata": {"name": "bound", "annotations": {"gpuslice.io/allocation": "x"}},
    }  # fmt: skip
    try:
        with pytest.raises(ApiError, match=r"gpuslice\.io/allocation"):
            installed.admin.request("POST", path_of("pods", "default", "bound", "binding"), binding)
    finally:
        installed.admin.delete("pods", "default", "bound", grace_seconds=0)


def test_a_node_daemon_annotates_its_own_node(installed: Installed) -> None:
    answer = installed.node_daemon("one").patch(
        "nodes", None, "one", {"metadata": {"annotations": {"gpuslice.io/cards": "{}"}}}
    )
    assert answer["metadata"]["annotations"]["gpuslice.io/cards"] == "{}"


@pytest.mark.parametrize(
    ("name", "change", "word"),
    [
        pytest.param("two", {"metadata": {"annotations": {"a": "b"}}}, "gpuslice-node on one", id="another node"),
        pytest.param("one", {"metadata": {"labels": {"a": "b"}}}, "only change annotations", id="its own labels"),
        pytest.param("one", {"spec": {"unschedulable": True}}, "only change annotations", id="its own spec"),
    ],
)
def test_a_node_daemon_changes_nothing_else(installed: Installed, name: str, change: dict[str, Any], word: str) -> None:
    with pytest.raises(ApiError, match=word):
        installed.node_daemon("one").patch("nodes", None, name, change)


def test_a_token_without_a_node_changes_nothing(installed: Installed) -> None:
    with pytest.raises(ApiError, match="token without a node"):
        installed.as_account("gpuslice-node").patch("nodes", None, "one", {"metadata": {"annotations": {"a": "b"}}})


@pytest.mark.parametrize(
    ("account", "verb", "resource", "allowed"),
    [
        ("gpuslice-scheduler", "create", "pods/binding", True),
        ("gpuslice-scheduler", "create", "pods/eviction", True),
        ("gpuslice-scheduler", "list", "nodes", True),
        ("gpuslice-scheduler", "patch", "nodes", False),
        ("gpuslice-scheduler", "get", "secrets", False),
        ("gpuslice-node", "list", "pods", True),
        ("gpuslice-node", "create", "pods/binding", False),
        ("gpuslice-node", "delete", "pods", False),
        ("gpuslice-node", "get", "secrets", False),
        ("gpuslice-webhook", "get", "pods", False),
        ("gpuslice-webhook", "get", "secrets", False),
    ],
)
def test_each_component_has_its_own_rights(
    installed: Installed, account: str, verb: str, resource: str, allowed: bool
) -> None:
    plural, _, subresource = resource.partition("/")
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{chart.NAMESPACE}:{account}",
            "groups": ["system:serviceaccounts", "system:authenticated"],
            "resourceAttributes": {
                "verb": verb,
                "resource": plural,
                "subresource": subresource,
                "namespace": "default",
            },
        },
    }
    answer = installed.admin.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    assert answer["status"]["allowed"] is allowed


def test_an_upgrade_keeps_the_certificate_that_pods_have_mounted(installed: Installed) -> None:
    before = installed.admin.get("secrets", chart.NAMESPACE, "gpuslice-webhook-tls")["data"]
    installed.helm.install(installed.plane.admin_kubeconfig, {**installed.values, "global": {"logLevel": "debug"}})
    hooks = installed.admin.get("mutatingwebhookconfigurations", None, "gpuslice-webhook")["webhooks"]
    assert installed.admin.get("secrets", chart.NAMESPACE, "gpuslice-webhook-tls")["data"] == before
    assert {hook["clientConfig"]["caBundle"] for hook in hooks} == {before["ca.crt"]}
