"""The daemon's view of the API server: this node's pods, the node object, and Events about both."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from deviceplugin.node import Node
from deviceplugin.publishing import Publisher
from deviceplugin.tenants import Tenant
from gpuslice.cluster.client import KubeClient, Scope
from gpuslice.cluster.config import load_cluster_config
from gpuslice.cluster.events import EventRecorder, Subject
from gpuslice.cluster.reflector import Changed, Gone, Listed, Reflector
from gpuslice.cluster.resources import NODES, PODS
from gpuslice.cluster.transport import Transport
from gpuslice.devices import pods
from gpuslice.devices.pods import Metadata, Pod

log = structlog.get_logger(__name__)

COMPONENT = "gpuslice-node"


class Events:
    """Writes Events through the cluster's recorder."""

    def __init__(self, recorder: EventRecorder, node: str) -> None:
        self._recorder = recorder
        self._node = node

    def pod_event(self, tenant: Tenant, reason: str, message: str) -> None:
        """Write a Warning on a pod."""
        metadata = Metadata(name=tenant.name, namespace=tenant.namespace, uid=tenant.uid)
        self._recorder.record(Subject.pod(metadata), "Warning", reason, message)

    def node_event(self, reason: str, message: str) -> None:
        """Write a Warning on the node."""
        self._recorder.record(Subject.node(self._node), "Warning", reason, message)


class Follower:
    """Follows pods and node, publishes the inventory. The plugin works without it, on what it knew before."""

    def __init__(
        self,
        node: Node,
        kubeconfig: Path | None,
        context: str | None,
        *,
        wanted: Callable[[], Mapping[str, str] | None],
        on_node: Callable[[pods.Node], None],
    ) -> None:
        self._node = node
        self._kubeconfig = kubeconfig
        self._context = context
        self._wanted = wanted
        self._on_node = on_node
        self._publisher: Publisher | None = None

    def inventory_changed(self) -> None:
        """Take note that the cards or their state changed."""
        if self._publisher is not None:
            self._publisher.changed()

    async def run(self) -> None:
        """Follow until cancelled."""
        config = load_cluster_config(self._kubeconfig, self._context)
        async with Transport(config, user_agent=COMPONENT) as transport:
            client = KubeClient(transport)
            recorder = EventRecorder(client, COMPONENT, self._node.name)
            self._node.reporter.sink = Events(recorder, self._node.name)
            self._publisher = Publisher(client, self._node.name, self._wanted)
            own_pods = Scope(PODS, field_selector=f"spec.nodeName={self._node.name}")
            own_node = Scope(NODES, field_selector=f"metadata.name={self._node.name}")
            async with asyncio.TaskGroup() as group:
                group.create_task(recorder.run())
                group.create_task(self._publisher.run())
                group.create_task(Reflector(client, own_pods, Pod, handle=self._on_pods, project=lambda pod: pod).run())
                group.create_task(
                    Reflector(client, own_node, pods.Node, handle=self._on_nodes, project=lambda node: node).run()
                )

    def _on_pods(self, event: Listed[Pod] | Changed[Pod] | Gone[Pod]) -> None:
        match event:
            case Listed(items, gone):
                listed = {pod.metadata.uid for pod in items.values()}
                self._node.lose_pods(
                    {pod.metadata.uid for pod in gone} | ({*self._node.tenants, *self._node.bystanders} - listed)
                )
                for pod in items.values():
                    self._node.see_pod(pod)
                self._node.pods_listed()
            case Changed(pod, before):
                # The same name may belong to a new pod by now.
                if before is not None and before.metadata.uid != pod.metadata.uid:
                    self._node.lose_pods([before.metadata.uid])
                self._node.see_pod(pod)
            case Gone(pod):
                self._node.lose_pods([pod.metadata.uid])

    def _on_nodes(self, event: "Listed[pods.Node] | Changed[pods.Node] | Gone[pods.Node]") -> None:
        match event:
            case Listed(items, _):
                for node in items.values():
                    self._see_node(node)
            case Changed(node, _):
                self._see_node(node)
            case Gone(node):
                log.warning("node_object_gone", node=node.metadata.name)

    def _see_node(self, node: pods.Node) -> None:
        self._on_node(node)
        if self._publisher is not None:
            self._publisher.seen(node.metadata.annotations)
