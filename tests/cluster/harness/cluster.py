"""A whole cluster for one test session: control plane, real nodes, the installed chart and the product's daemons."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.cluster.build import ensure
from tests.cluster.harness import cgroups, chart, hardware
from tests.cluster.harness.api import ApiError, Json, path_of
from tests.cluster.harness.control_plane import ControlPlane, free_port
from tests.cluster.harness.daemons import Daemon
from tests.cluster.harness.images import Image, app_image, pause_image, share_program
from tests.cluster.harness.node import Node, check_machine
from tests.cluster.harness.process import ClusterError, wait_until

NODE_NAMES = ("node-a", "node-b")
CARDS_PER_NODE = 2
COUNT_RESOURCE = "nvidia.com/gpu"
ALLOCATION = "gpuslice.io/allocation"
DEFAULT_SCHEDULER = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "leaderElection": {"leaderElect": False},
}
LIBRARY = hardware.ROOT / "gpuslice" / "lib" / "libvgpu.so"


class Cluster:
    """Everything real that a pod meets on its way, under one temporary folder.

    Attributes:
        plane: The control plane.
        nodes: Real nodes by name.
        webhook, extender: The cluster-wide daemons.
        plugins: The node daemons by node name.
    """

    def __init__(self, *, nodes: Sequence[str] = NODE_NAMES, cards: int = CARDS_PER_NODE) -> None:
        check_machine()
        self.folder = Path(tempfile.mkdtemp(prefix="gpuslice-"))
        self.binaries = ensure()
        self.plane = ControlPlane(self.folder, self.binaries, nodes)
        self.admin = self.plane.admin
        self.helm = chart.Helm(self.binaries, self.folder)
        self._ports = {"webhook": free_port(), "extender": free_port()}
        images = [pause_image(self.folder), _test_image(self.folder)]
        self.cards: dict[str, hardware.FakeCards] = {}
        self.nodes: dict[str, Node] = {}
        for number, name in enumerate(nodes, 1):
            self._add_node(name, number, cards, images)
        self.webhook: Daemon
        self.extender: Daemon
        self.plugins: dict[str, Daemon] = {}

    def _add_node(self, name: str, number: int, cards: int, images: Sequence[Image]) -> None:
        top = self.folder / name
        self.cards[name] = hardware.FakeCards.create(top / "gpu", node=number, count=cards)
        self.nodes[name] = Node(
            name,
            self.plane,
            binaries=self.binaries,
            images=images,
            mounts={hardware.IN_CONTAINER: self.cards[name].folder},
        )

    # ---- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start everything; returns when both nodes offer their slices."""
        cgroups.remove_stale()
        self.plane.start()
        self.plane.start_controller_manager()
        self.plane.start_scheduler("default-scheduler", DEFAULT_SCHEDULER)
        for node in self.nodes.values():
            node.start()
        self.install_chart()
        self.start_webhook()
        self.start_extender()
        self.start_scheduler()
        for node in self.nodes.values():
            node.wait_ready()
        for name in self.nodes:
            self.start_plugin(name)
        for name in self.nodes:
            self.wait_slices(name)

    def install_chart(self, changes: Mapping[str, object] | None = None) -> None:
        """Install the chart: RBAC, policies, scheduler and webhook configuration are the product's own."""
        values = chart.values_for_host_processes(
            webhook_port=self._ports["webhook"], extender_port=self._ports["extender"]
        )
        self.helm.install(self.plane.admin_kubeconfig, {**values, **(changes or {})})

    def kubeconfig_of(self, component: str, node: str = "") -> Path:
        """Return a kubeconfig with the rights of a component's service account, bound to a node as in a DaemonSet."""
        bound = self.admin.get("nodes", None, node) if node else None
        token = self.admin.service_account_token(chart.NAMESPACE, f"{chart.RELEASE}-{component}", node=bound)
        return self.plane.kubeconfig(f"{component}-{node}" if node else component, token, chart.NAMESPACE)

    def start_webhook(self) -> None:
        """Start the webhook with the certificate that the chart has made."""
        certificate, key = chart.write_webhook_certificate(self.admin, self.folder / "webhook")
        self.webhook = Daemon(
            "webhook",
            [
                f"--listen=127.0.0.1:{self._ports['webhook']}", "--metrics-port=0",
                f"--tls-cert={certificate}", f"--tls-key={key}", f"--system-namespace={chart.NAMESPACE}",
            ],
            folder=self.folder / "daemons",
        )  # fmt: skip
        self.webhook.start()
        self.webhook.wait_ready()

    def start_extender(self) -> None:
        """Start the extender on the port that the chart's scheduler configuration names."""
        self.extender = Daemon(
            "extender",
            [
                f"--listen=127.0.0.1:{self._ports['extender']}", "--metrics-port=0",
                f"--kubeconfig={self.kubeconfig_of('scheduler')}", f"--namespace={chart.NAMESPACE}",
                "--no-leader-elect",
            ],
            folder=self.folder / "daemons",
        )  # fmt: skip
        self.extender.start()
        self.extender.wait_ready()

    def start_scheduler(self) -> None:
        """Start the stock kube-scheduler with the installed configuration and its service account's rights."""
        configuration = chart.scheduler_configuration(self.admin)
        self.plane.start_scheduler("gpuslice-scheduler", configuration, kubeconfig=self.kubeconfig_of("scheduler"))

    def start_plugin(self, node: str) -> Daemon:
        """Start the node daemon of a node; returns at once."""
        if node not in self.plugins:
            self.plugins[node] = self._plugin(node)
        self.plugins[node].start()
        return self.plugins[node]

    def _plugin(self, node: str) -> Daemon:
        return Daemon(
            "deviceplugin",
            self.plugin_flags(node),
            folder=self.folder / "daemons",
            name=f"deviceplugin-{node}",
            environment=self.cards[node].host_environment,
        )

    def plugin_flags(self, node: str) -> list[str]:
        """Return the command line of a node's daemon."""
        paths = self.nodes[node].paths
        return [
            f"--node-name={node}", f"--kubeconfig={self.kubeconfig_of('node', node)}", "--metrics-port=0",
            f"--device-plugin-dir={paths.device_plugins}", f"--pod-resources-socket={paths.pod_resources_socket}",
            f"--state-dir={paths.top / 'gpuslice'}", f"--cdi-dir={paths.cdi}", f"--library-path={LIBRARY}",
            "--cgroup-root=/sys/fs/cgroup", f"--cgroup-prefix={self.nodes[node].cgroup}",
        ]  # fmt: skip

    def wait_slices(self, node: str, *, within_seconds: float = 30.0) -> None:
        """Wait until the kubelet offers slices of the node's cards and the node says which cards it has."""
        wait_until(
            lambda: (
                self.nodes[node].allocatable(COUNT_RESOURCE) > 0
                and "gpuslice.io/cards" in self.admin.get("nodes", None, node)["metadata"].get("annotations", {})
            ),
            what=f"{node} offers slices",
            within_seconds=within_seconds,
            watched=[self.plugins[node].process, self.nodes[node].kubelet],
        )

    def wait_registered(self, node: str, *, within_seconds: float = 30.0) -> None:
        """Wait until the kubelet that runs now has taken up the plugin; node status says so only later."""
        kubelet = self.nodes[node].kubelet
        wait_until(
            lambda: kubelet.said("Got registration request from device plugin"),
            what=f"{node}: plugin registered with the new kubelet",
            within_seconds=within_seconds,
            watched=[kubelet, self.plugins[node].process],
        )
        self.wait_slices(node)

    def stop(self, *, failed: bool = False) -> None:
        """Stop everything; the folder with the logs stays only after a failure."""
        daemons = [getattr(self, "webhook", None), getattr(self, "extender", None), *self.plugins.values()]
        for daemon in daemons:
            if daemon is not None:
                daemon.kill()
        for node in self.nodes.values():
            node.stop()
        self.plane.stop()
        cgroups.remove(f"{cgroups.PREFIX}{os.getpid()}-{self.folder.name}")
        if failed:
            self._keep_logs()
        else:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _keep_logs(self) -> None:
        """Drop what is large and keep what explains."""
        self.plane.remove_data()
        for name in self.nodes:
            for large in ("containerd", "state", "kubelet"):
                shutil.rmtree(self.folder / name / large, ignore_errors=True)
        for archive in self.folder.glob("*.tar"):
            archive.unlink()

    # ---- pods ------------------------------------------------------------------------------------

    def apply(self, manifest: Json, namespace: str = "default") -> Json:
        """Create a pod."""
        return self.admin.create("pods", namespace, manifest)

    def pod(self, name: str, namespace: str = "default") -> Json:
        """Read a pod."""
        return self.admin.get("pods", namespace, name)

    def wait_pod(
        self,
        name: str,
        check: Callable[[Json], bool],
        *,
        what: str,
        within_seconds: float = 30.0,
        namespace: str = "default",
    ) -> Json:
        """Wait for a condition of a pod and return the pod."""

        def probe() -> Json | None:
            found = self.admin.find("pods", namespace, name)
            return found if found is not None and check(found) else None

        found = wait_until(
            probe,
            what=f"pod {name} {what}",
            within_seconds=within_seconds,
            explain=lambda: self.describe(name, namespace),
        )
        if found is None:
            raise ClusterError(f"pod {name} vanished")
        return found

    def wait_running(self, name: str, *, within_seconds: float = 30.0, namespace: str = "default") -> Json:
        """Wait until every container of a pod runs."""
        return self.wait_pod(name, is_running, what="Running", within_seconds=within_seconds, namespace=namespace)

    def wait_phase(self, name: str, *phases: str, within_seconds: float = 30.0, namespace: str = "default") -> Json:
        """Wait until a pod is in one of the phases."""
        return self.wait_pod(
            name,
            lambda pod: pod["status"].get("phase") in phases,
            what=" or ".join(phases),
            within_seconds=within_seconds,
            namespace=namespace,
        )

    def wait_gone(self, name: str, *, within_seconds: float = 30.0, namespace: str = "default") -> None:
        """Wait until a pod's object is gone."""
        wait_until(
            lambda: self.admin.find("pods", namespace, name) is None,
            what=f"pod {name} gone",
            within_seconds=within_seconds,
            explain=lambda: self.describe(name, namespace),
        )

    def delete_all_pods(self, namespace: str = "default") -> None:
        """Delete every pod and wait until none is left."""
        self.admin.request("DELETE", path_of("pods", namespace), {"gracePeriodSeconds": 1})
        wait_until(lambda: not self.admin.list("pods", namespace), what=f"no pods in {namespace}", within_seconds=60)

    def describe(self, name: str, namespace: str = "default") -> str:
        """Return what a person would look at when a pod is not as it should be."""
        lines: list[str] = []
        with suppress(ApiError):
            found = self.admin.find("pods", namespace, name)
            if found is not None:
                lines.append(f"status: {json.dumps(found['status'])[:1500]}")
                lines.append(f"annotations: {json.dumps(found['metadata'].get('annotations', {}))[:800]}")
            events = self.admin.list("events", namespace, fieldSelector=f"involvedObject.name={name}")
            lines.extend(f"event: {event.get('reason')}: {event.get('message', '')[:400]}" for event in events)
        lines.extend(daemon.process.tail(6) for daemon in (self.extender, *self.plugins.values()))
        return "\n".join(lines)

    def node_of(self, pod: Json) -> Node:
        """Return the node on which a pod is."""
        return self.nodes[pod["spec"]["nodeName"]]

    def output(self, pod: Json, container: str = "main") -> str:
        """Return what a container has written so far."""
        return self.node_of(pod).container_log(pod, container)


def is_running(pod: Json) -> bool:
    """Whether every container of a pod runs now."""
    statuses = pod["status"].get("containerStatuses", [])
    return len(statuses) == len(pod["spec"]["containers"]) and all("running" in s["state"] for s in statuses)


def allocation_of(pod: Json) -> Json:
    """Return the decision written on a pod: container name -> list of shares."""
    text = pod["metadata"].get("annotations", {}).get(ALLOCATION)
    if text is None:
        raise ClusterError(f"pod {pod['metadata']['name']} carries no {ALLOCATION}")
    containers: Json = json.loads(text)["containers"]
    return containers


def _test_image(folder: Path) -> Image:
    libraries = [hardware.DRIVERS / name for name in ("libcuda.so.1", "libnvidia-ml.so.1")]
    if missing := [str(file) for file in (*libraries, LIBRARY) if not file.exists()]:
        raise ClusterError(f"not built: {', '.join(missing)}; run make build")
    programs = {"/usr/local/bin/share": share_program(folder)}
    return app_image(programs, libraries, hardware.environment(hardware.IN_CONTAINER))
