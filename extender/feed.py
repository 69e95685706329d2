"""Feeds the ledger from two watches: nodes and pods.

Both lists must have arrived before anything is answered. They are handed to the ledger together, as one relist, because
a pod is booked on the cards of its node. A later list of either kind is a relist too: what it lacks does not exist.
"""

import time
from collections.abc import Callable, Mapping

import structlog

from extender.facts import NodeFacts, PodFacts, node_facts, pod_facts
from gpuslice.cluster.client import KubeClient, Scope
from gpuslice.cluster.reflector import Changed, Event, Gone, Key, Listed, Reflector
from gpuslice.cluster.resources import NODES, PODS
from gpuslice.cluster.timing import REAL_TIME, Timing
from gpuslice.devices.families import Families
from gpuslice.devices.pods import Node, Pod
from gpuslice.placement import events

log = structlog.get_logger(__name__)

LIVE_PODS = "status.phase!=Succeeded,status.phase!=Failed"
"""A pod that ends leaves this selection, which the watch reports as DELETED: no ended pod is ever kept."""

Apply = Callable[[events.Event], None]


class Feed:
    """Turns watch events into ledger events."""

    def __init__(self, client: KubeClient, families: Families, apply: Apply, *, timing: Timing = REAL_TIME) -> None:
        self._families = families
        self._apply = apply
        self._clock = timing.clock
        self.nodes: Reflector[NodeFacts] = Reflector(
            client, Scope(NODES), Node, handle=self._on_node, project=self._project_node, timing=timing
        )
        self.pods: Reflector[PodFacts] = Reflector(
            client, Scope(PODS, field_selector=LIVE_PODS), Pod, handle=self._on_pod, project=pod_facts, timing=timing
        )
        self.loaded = False
        """Both lists have been handed to the ledger."""

    @property
    def behind_seconds(self) -> float:
        """Age of the older of the two views."""
        return max(self.nodes.behind_seconds, self.pods.behind_seconds)

    def relist_pods(self) -> None:
        """Read all pods again: somebody else was the leader until now."""
        self.pods.relist()

    def _project_node(self, node: Node) -> NodeFacts:
        return node_facts(node, self._families, self.nodes.get("", node.metadata.name))

    def _on_node(self, event: Event[NodeFacts]) -> None:
        match event:
            case Listed(items, _):
                self._relist(items, self.pods.items)
            case Changed(item, before):
                if self.loaded and (before is None or before.seen != item.seen):
                    self._apply(item.seen)
            case Gone(item):
                if self.loaded:
                    self._apply(events.NodeGone(item.seen.cards.node))

    def _on_pod(self, event: Event[PodFacts]) -> None:
        match event:
            case Listed(items, _):
                self._relist(self.nodes.items, items)
            case Changed(item, before):
                if self.loaded and (before is None or before.seen != item.seen):
                    self._apply(item.seen)
            case Gone(item):
                if self.loaded:
                    self._apply(events.PodGone(item.seen.key.uid))

    def _relist(self, nodes: Mapping[Key, NodeFacts], pods: Mapping[Key, PodFacts]) -> None:
        if not self.nodes.lists or not self.pods.lists:
            return
        started = time.perf_counter()
        relist = events.Relist(
            nodes=tuple(facts.seen for facts in nodes.values()),
            pods=tuple(facts.seen for facts in pods.values()),
            now=self._clock(),
        )
        self._apply(relist)
        self.loaded = True
        log.info("relisted", nodes=len(nodes), pods=len(pods), seconds=round(time.perf_counter() - started, 3))
