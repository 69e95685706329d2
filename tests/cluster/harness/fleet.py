"""A real control plane with many nodes that are only objects: for what happens before a pod reaches its node.

The nodes have cards, are Ready and stay so. Pods are scheduled and bound by the real kube-scheduler; nothing runs them.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from gpuslice.devices.annotations import encode_cards
from gpuslice.devices.inventory import Card, NodeCards
from tests.cluster.build import ensure
from tests.cluster.harness import chart
from tests.cluster.harness.api import Json, path_of
from tests.cluster.harness.control_plane import ControlPlane, free_port
from tests.cluster.harness.daemons import Daemon
from tests.cluster.harness.observer import Observer
from tests.cluster.harness.process import wait_until
from tests.cluster.harness.relay import Relay

PROGRAMS = ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "helm")
SLOTS = 10
CARD_MIB = 40960
API_FLAGS = ("--disable-admission-plugins=TaintNodesByCondition",)
"""Without kubelets nobody would lift the not-ready taint that the plugin puts on new nodes."""
CONTROLLERS = "*,-node-lifecycle-controller,-taint-eviction-controller"
WORKERS = 8


def node_object(name: str, number: int, cards: int) -> Json:
    """Return a Ready node with equal cards."""
    uuids = [f"GPU-{number:08x}-{card:04x}-4000-8000-000000000000" for card in range(cards)]
    listed = tuple(
        Card(uuid=uuid, index=index, model="NVIDIA A100-SXM4-40GB", memory_mib=CARD_MIB, slots=SLOTS)
        for index, uuid in enumerate(uuids)
    )
    room = {"cpu": "64", "memory": "256Gi", "pods": "250", "nvidia.com/gpu": str(cards * SLOTS)}
    ready = {"type": "Ready", "status": "True", "reason": "Test", "lastHeartbeatTime": None}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name},
            "annotations": {"gpuslice.io/cards": encode_cards(NodeCards(name, listed))},
        },
        "status": {"capacity": room, "allocatable": room, "conditions": [ready]},
    }


class Fleet:
    """Control plane, chart, extender and schedulers over Node objects.

    Attributes:
        observer: Stands between kube-scheduler and extender and notes every call.
        relay: Stands between extender and API server and can hold back what the server says.
    """

    def __init__(self, *, nodes: int, cards: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpuslice-fleet-"))
        binaries = ensure(PROGRAMS)
        self.plane = ControlPlane(self.folder, binaries, api_flags=API_FLAGS)
        self.admin = self.plane.admin
        self.helm = chart.Helm(binaries, self.folder)
        self.node_names = [f"node-{number:04d}" for number in range(nodes)]
        self._cards = cards
        self._pool = ThreadPoolExecutor(WORKERS)
        self.observer = Observer()
        self.relay = Relay(self.plane.port)
        self.extender: Daemon

    def start(self, *, scoring: str = "prioritize", percentage: int = 0, extender_flags: Sequence[str] = ()) -> None:
        """Start everything with one extender and one stock kube-scheduler that calls it through the observer."""
        self.plane.start()
        self.plane.start_controller_manager(CONTROLLERS)
        self.install_chart(scoring, percentage)
        self.create_nodes()
        self.start_extender(extender_flags)
        self.start_scheduler()

    def install_chart(self, scoring: str = "prioritize", percentage: int = 0, *, extender_port: int = 0) -> None:
        """Install the chart; its scheduler configuration points at the observer, or at another port."""
        port = extender_port or self.observer.port
        values = chart.values_for_host_processes(webhook_port=free_port(), extender_port=port)
        values["scheduler"] |= {"scoring": scoring, "percentageOfNodesToScore": percentage}
        values["webhook"]["enabled"] = False
        self.helm.install(self.plane.admin_kubeconfig, values)

    def create_nodes(self) -> None:
        """Create every Node object."""
        bodies = [node_object(name, number, self._cards) for number, name in enumerate(self.node_names)]
        list(self._pool.map(lambda body: self.admin.create("nodes", None, body), bodies))

    def scheduler_kubeconfig(self) -> Path:
        """Return a kubeconfig with the rights of the scheduler's service account."""
        token = self.admin.service_account_token(chart.NAMESPACE, "gpuslice-scheduler")
        return self.plane.kubeconfig("gpuslice-scheduler", token, chart.NAMESPACE)

    def start_extender(self, flags: Sequence[str] = (), *, relayed: bool = True) -> None:
        """Start the extender, behind the relay or on the API server itself, and let the observer call it."""
        token = self.admin.service_account_token(chart.NAMESPACE, "gpuslice-scheduler")
        port = self.relay.port if relayed else 0
        kubeconfig = self.plane.kubeconfig("extender", token, chart.NAMESPACE, port=port)
        self.extender = Daemon(
            "extender",
            [
                "--listen=127.0.0.1:0", "--metrics-port=0", f"--kubeconfig={kubeconfig}",
                f"--namespace={chart.NAMESPACE}", "--no-leader-elect", *flags,
            ],
            folder=self.folder / "logs",
        )  # fmt: skip
        self.extender.start()
        self.extender.wait_ready()
        self.observer.target = self.extender.ports["listen"]

    def start_scheduler(self) -> None:
        """Start the stock kube-scheduler with the chart's configuration."""
        configuration = chart.scheduler_configuration(self.admin)
        self.plane.start_scheduler("gpuslice-scheduler", configuration, kubeconfig=self.scheduler_kubeconfig())

    def stop(self) -> None:
        """Stop everything; the folder stays when GPUSLICE_KEEP is set."""
        if hasattr(self, "extender"):
            self.extender.kill()
        self.plane.stop()
        self.observer.close()
        self.relay.close()
        self._pool.shutdown()
        if not os.environ.get("GPUSLICE_KEEP"):
            shutil.rmtree(self.folder, ignore_errors=True)

    # ---- pods ------------------------------------------------------------------------------------

    def create_pods(self, manifests: Sequence[Json], namespace: str = "default") -> None:
        """Create pods from several threads, roughly in order."""
        list(self._pool.map(lambda body: self.admin.create("pods", namespace, body), manifests))

    def pods(self, namespace: str = "default") -> list[Json]:
        """List the pods of a namespace."""
        return self.admin.list("pods", namespace)

    def bound(self, namespace: str = "default") -> list[Json]:
        """List the pods that have a node."""
        return [pod for pod in self.pods(namespace) if pod["spec"].get("nodeName")]

    def wait_bound(self, count: int, *, within_seconds: float, namespace: str = "default") -> list[Json]:
        """Wait until so many pods have a node."""
        wait_until(
            lambda: len(self.bound(namespace)) >= count,
            what=f"{count} pods bound",
            within_seconds=within_seconds,
            watched=[self.extender.process, self.plane.process("gpuslice-scheduler")],
            explain=lambda: f"{len(self.bound(namespace))} of {len(self.pods(namespace))} bound",
        )
        return self.bound(namespace)

    def wait_node_of(self, name: str, *, within_seconds: float) -> str:
        """Wait until a pod is bound and return its node."""
        return wait_until(
            lambda: str(self.admin.get("pods", "default", name)["spec"].get("nodeName", "")),
            what=f"pod {name} bound",
            within_seconds=within_seconds,
            watched=[self.extender.process],
        )

    def create_priority(self, name: str, value: int, *, policy: str = "PreemptLowerPriority") -> None:
        """Create a priority class unless there is one of this name."""
        if self.admin.find("priorityclasses", None, name) is None:
            body = {"metadata": {"name": name}, "value": value, "preemptionPolicy": policy}
            kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
            self.admin.create("priorityclasses", None, {**kind, **body})

    def run_pod(self, name: str, namespace: str = "default") -> None:
        """Say that a pod runs, as its kubelet would: only then does the API server apply disruption budgets to it."""
        ready = [{"type": "Ready", "status": "True"}]
        self.admin.patch("pods", namespace, name, {"status": {"phase": "Running", "conditions": ready}}, "status")

    def end_pod(self, name: str, namespace: str = "default") -> None:
        """Remove a pod at once, as its kubelet would after its containers have ended."""
        self.admin.delete("pods", namespace, name, grace_seconds=0)

    def clear(self, namespace: str = "default") -> None:
        """Remove every pod of a namespace."""
        query = "?gracePeriodSeconds=0"
        self.admin.request("DELETE", path_of("pods", namespace) + query, {"gracePeriodSeconds": 0})
        wait_until(lambda: not self.pods(namespace), what="no pods left", within_seconds=60)


@contextmanager
def running_fleet(*, nodes: int, cards: int) -> Iterator[Fleet]:
    """Start a fleet and stop it at the end, also when it did not come up."""
    fleet = Fleet(nodes=nodes, cards=cards)
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.stop()
