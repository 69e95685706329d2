"""Feeds the ledger from two watches: nodes and pods.

Both lists must have arrived before anything is answered. They are handed to the ledger together, as one relist, because
a pod is booked on the cards of its node. A later list of either kind is a relist too: what it lacks does not exist.
"""

import time
from collections.abc import Iterable
from typing import Protocol

import structlog

from extender.budgets import DisruptionBudget, budgets_for
from extender.facts import NodeFacts, PodFacts, node_facts, pod_facts
from extender.foreign import ForeignShares
from extender.quotas import QuotaFacts, ResourceQuota, quota_facts
from gpuslice.cluster.client import KubeClient, Scope
from gpuslice.cluster.reflector import Changed, Event, Gone, Listed, Reflector
from gpuslice.cluster.resources import DISRUPTION_BUDGETS, NODES, PODS, RESOURCE_QUOTAS
from gpuslice.cluster.timing import REAL_TIME, Timing
from gpuslice.devices.families import Families
from gpuslice.devices.pods import Node, Pod
from gpuslice.placement import events
from gpuslice.placement.preempt import Budgets

log = structlog.get_logger(__name__)

LIVE_PODS = "status.phase!=Succeeded,status.phase!=Failed"
"""A pod that ends leaves this selection, which the watch reports as DELETED: no ended pod is ever kept."""


class Sink(Protocol):
    """Who takes what the watches bring; see extender.promises."""

    def observe(self, event: events.Event) -> None:
        """Take a fact."""

    def loaded(self) -> None:
        """The first lists of nodes and pods have been taken."""

    def note_node(self, facts: NodeFacts) -> None:
        """See a node whose cards cannot all be read."""

    def note_admission(self, facts: PodFacts) -> None:
        """See how far a bound pod has come."""

    def replace_quotas(self, quotas: Iterable[QuotaFacts]) -> None:
        """Take all quotas."""

    def put_quota(self, quota: QuotaFacts) -> None:
        """Take one quota."""

    def drop_quota(self, quota: QuotaFacts) -> None:
        """Forget one quota."""


class Feed:
    """Turns watch events into ledger events."""

    def __init__(self, client: KubeClient, families: Families, sink: Sink, *, timing: Timing = REAL_TIME) -> None:
        self._families = families
        self._foreign = ForeignShares(families)
        self._sink = sink
        self._clock = timing.clock
        self.nodes: Reflector[NodeFacts] = Reflector(
            client, Scope(NODES), Node, handle=self._on_node, project=self._project_node, timing=timing
        )
        self.pods: Reflector[PodFacts] = Reflector(
            client,
            Scope(PODS, field_selector=LIVE_PODS),
            Pod,
            handle=self._on_pod,
            project=self._project_pod,
            timing=timing,
        )
        self.quotas: Reflector[QuotaFacts] = Reflector(
            client,
            Scope(RESOURCE_QUOTAS),
            ResourceQuota,
            handle=self._on_quota,
            project=self._project_quota,
            timing=timing,
        )
        self.budgets: Reflector[DisruptionBudget] = Reflector(
            client, Scope(DISRUPTION_BUDGETS), DisruptionBudget, handle=_nothing, project=_itself, timing=timing
        )
        self.loaded = False
        """The lists of nodes and pods have been handed to the ledger."""

    @property
    def quotas_known(self) -> bool:
        """Whether the list of quotas has arrived: a quota that we have not read must not be exceeded either."""
        return self.quotas.lists > 0

    def budgets_now(self) -> Budgets | None:
        """Disruption budgets of all pods that hold a share; None while they are not known."""
        if not self.budgets.lists:
            return None
        holders = (
            (facts.seen.key.uid, facts.seen.key.namespace, facts.labels)
            for facts in self.pods.items.values()
            if facts.seen.allocation is not None
        )
        return budgets_for(self.budgets.items.values(), holders)

    def _project_quota(self, quota: ResourceQuota) -> QuotaFacts:
        return quota_facts(quota, self._families)

    def _on_quota(self, event: Event[QuotaFacts]) -> None:
        match event:
            case Listed(items, _):
                self._sink.replace_quotas(items.values())
            case Changed(item, _):
                self._sink.put_quota(item)
            case Gone(item):
                self._sink.drop_quota(item)

    def _project_pod(self, pod: Pod) -> PodFacts:
        return pod_facts(pod, self._families, self._foreign)

    def _project_node(self, node: Node) -> NodeFacts:
        return node_facts(node, self._families, self.nodes.get("", node.metadata.name))

    def _on_node(self, event: Event[NodeFacts]) -> None:
        match event:
            case Listed(items, _):
                for item in items.values():
                    if item.problem:
                        self._sink.note_node(item)
                self._relist()
            case Changed(item, before):
                if item.problem and (before is None or before.problem != item.problem):
                    self._sink.note_node(item)
                if self.loaded and (before is None or before.seen != item.seen):
                    self._sink.observe(item.seen)
            case Gone(item):
                if self.loaded:
                    self._sink.observe(events.NodeGone(item.seen.cards.node))

    def _on_pod(self, event: Event[PodFacts]) -> None:
        match event:
            case Listed(_, gone):
                self._relist()
                for item in gone:
                    self._end(item)
            case Changed(item, before) if self.loaded:
                if before is None or before.admitted != item.admitted or before.seen.node != item.seen.node:
                    self._sink.note_admission(item)
                if before is None or before.seen != item.seen:
                    self._sink.observe(item.seen)
            case Gone(item) if self.loaded:
                self._end(item)

    def _end(self, item: PodFacts) -> None:
        """Tell everybody that a pod is gone, whether the watch said so or a list that lacks it."""
        self._foreign.release(item.seen.key.uid)
        if self.loaded:
            self._sink.observe(events.PodGone(item.seen.key.uid))

    def _relist(self) -> None:
        if not self.nodes.lists or not self.pods.lists:
            return
        started = time.perf_counter()
        nodes, pods = self.nodes.items, self.pods.items
        for facts in pods.values():
            if not facts.admitted:
                self._sink.note_admission(facts)
        relist = events.Relist(
            nodes=tuple(facts.seen for facts in nodes.values()),
            pods=tuple(facts.seen for facts in pods.values()),
            now=self._clock(),
        )
        self._sink.observe(relist)
        first, self.loaded = not self.loaded, True
        if first:
            self._sink.loaded()
        log.info("relisted", nodes=len(nodes), pods=len(pods), seconds=round(time.perf_counter() - started, 3))


def _nothing(_: Event[DisruptionBudget]) -> None:
    """Budgets are looked up when they are needed."""


def _itself(budget: DisruptionBudget) -> DisruptionBudget:
    return budget
