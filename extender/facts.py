"""What of a node and of a pod the ledger must know; everything else is dropped at the door.

20,000 pods and 5,000 nodes are kept as these few facts each, not as API objects.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from sys import intern
from types import MappingProxyType

import structlog

from extender.foreign import ForeignShares
from gpuslice.devices.allocation import PodAllocation
from gpuslice.devices.annotations import (
    ALLOCATION,
    CARDS,
    HAMI_NODE,
    decode_allocation,
)
from gpuslice.devices.errors import BadAnnotation, BadQuantity
from gpuslice.devices.families import Families
from gpuslice.devices.families.register import read_node
from gpuslice.devices.inventory import NodeCards
from gpuslice.devices.pods import Node, Pod
from gpuslice.devices.quantity import parse_quantity
from gpuslice.devices.requests import Role, containers_of, models_wanted
from gpuslice.devices.traits import PLAIN, traits_of
from gpuslice.devices.value import Value
from gpuslice.placement.events import NodeSeen, PodKey, PodSeen

log = structlog.get_logger(__name__)

DOMAIN_LABELS = ("topology.kubernetes.io/rack", "topology.kubernetes.io/zone")
_MOST_MILLI = 10**12
"""A billion cores; sums of these stay within 64 bits, whatever quantity somebody wrote."""
_NO_LABELS: Mapping[str, str] = MappingProxyType({})


class PodFacts(Value, frozen=True):
    """A pod as the ledger sees it, with the labels by which a disruption budget may protect it."""

    seen: PodSeen
    labels: Mapping[str, str]
    admitted: bool = True
    """The kubelet has taken it (or refused it): its Allocate calls are over."""
    refused: bool = False
    """kube-scheduler found no node for it when it last looked."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node as the ledger sees it."""

    seen: NodeSeen
    mark: int = 0
    """Hash of what the cards were read from: as long as it stays they are not read again."""
    own: bool = True
    """Its cards were registered by our own daemon, not by a plugin of HAMi or a vendor."""
    problem: str = ""
    """Why some of its cards could not be read; empty when all is well."""


def pod_key(pod: Pod) -> PodKey:
    """Say who a pod is."""
    return PodKey(pod.metadata.uid, intern(pod.metadata.namespace), pod.metadata.name)


def pod_facts(pod: Pod, families: Families | None = None, foreign: ForeignShares | None = None) -> PodFacts:
    """Reduce a pod. An allocation counts only on a bound pod and only for that node: users can write text, too.

    With ``foreign`` HAMi's record is read as well: of pods that its scheduler placed, and where ours is unreadable.
    """
    allocation, unreadable = _holding_of(pod, foreign) if pod.spec.node_name else (None, "")
    holds = allocation is not None or bool(unreadable)
    seen = PodSeen(
        key=pod_key(pod),
        node=intern(pod.spec.node_name),
        allocation=allocation,
        roles=roles_of(pod) if holds else (),
        terminal=pod.is_terminal,
        init_done=pod.is_initialized,
        terminating=pod.is_terminating,
        priority=pod.spec.priority or 0,
        cpu_milli=cpu_milli_of(pod),
        group=group_of(pod),
        models=_models_of(pod, allocation, families) if allocation is not None and families is not None else (),
        traits=traits_of(pod) if holds else PLAIN,
        unreadable=unreadable,
        created_at=pod.metadata.creation_timestamp or "",
    )
    return PodFacts(
        seen,
        labels=_NO_LABELS if allocation is None else _labels(tuple(sorted(pod.metadata.labels.items()))),
        admitted=pod.is_terminal or pod.status.start_time is not None,
        refused=not pod.spec.node_name and _was_refused(pod),
    )


def _holding_of(pod: Pod, foreign: ForeignShares | None) -> tuple[PodAllocation | None, str]:
    """Return what a bound pod holds by its records, and why the record that counts cannot be read, if so."""
    notes = pod.metadata.annotations
    allocation, problem = None, ""
    try:
        allocation = _own_record(pod)
    except BadAnnotation as error:
        problem = str(error)
    ours_counts = ALLOCATION in notes and not problem
    if foreign is None or ours_counts or notes.get(HAMI_NODE) != pod.spec.node_name:
        return allocation, problem
    try:
        return foreign.allocation(pod), problem
    except BadAnnotation as error:
        return None, problem or str(error)


def _models_of(pod: Pod, allocation: PodAllocation, families: Families) -> tuple[str, ...]:
    """Card models that the pod insists on, as its annotations say."""
    named = sorted({share.family for _, share in allocation.shares()})
    family = families.by_name.get(named[0]) if len(named) == 1 else None
    return () if family is None else models_wanted(pod.metadata.annotations, family)


def _was_refused(pod: Pod) -> bool:
    return any(
        c.type == "PodScheduled" and c.status == "False" and c.reason == "Unschedulable"
        for c in pod.status.conditions or ()
    )


def roles_of(pod: Pod) -> tuple[tuple[str, Role], ...]:
    """Roles of the containers that are not app containers, in pod order."""
    if not pod.spec.init_containers:
        return ()
    return tuple((container.name, role) for container, role in containers_of(pod) if role is not Role.APP)


def group_of(pod: Pod) -> str:
    """UID of the controller that made the pod: pods of one Job belong together."""
    for owner in pod.metadata.owner_references or ():
        if owner.controller:
            return owner.uid
    return ""


def cpu_milli_of(pod: Pod) -> int:
    """CPU requested, in thousandths of a core, as kube-scheduler counts it.

    The larger of the app and sidecar sum and the largest init container, or what the pod as a whole requests instead;
    and what the runtime takes beside the containers.
    """
    spec = pod.spec
    overhead = _milli(spec.overhead["cpu"]) if spec.overhead and "cpu" in spec.overhead else 0
    if spec.resources is not None and "cpu" in spec.resources.requests:
        return _milli(spec.resources.requests["cpu"]) + overhead
    running = largest_init = 0
    for container, role in containers_of(pod):
        asked = container.resources.requests.get("cpu") if container.resources else None
        milli = _milli(asked) if asked is not None else 0
        if role is Role.INIT:
            largest_init = max(largest_init, running + milli)
        else:
            running += milli
    return max(running, largest_init) + overhead


def node_facts(node: Node, families: Families, before: NodeFacts | None = None) -> NodeFacts:
    """Reduce a node. It is ready when the kubelet offers some of a family's resource: then its plugin is registered."""
    name = node.metadata.name
    annotations = node.metadata.annotations
    mark = hash((tuple(annotations.items()), tuple(node.status.capacity.items())))
    problem = ""
    if before is not None and before.mark == mark:
        cards, problem = before.seen.cards, before.problem
    else:
        read, problems = read_node(node, families)
        cards, problem = _shared(read or NodeCards(name, ())), "; ".join(map(str, problems))
    domain = next((node.metadata.labels[key] for key in DOMAIN_LABELS if key in node.metadata.labels), "")
    cpu = node.status.allocatable.get("cpu")
    seen = NodeSeen(
        cards=cards,
        ready=_plugin_registered(node, cards, families),
        cpu_milli=_milli(cpu) if cpu is not None else -1,
        domain=domain,
    )
    return NodeFacts(seen, mark, own=CARDS in annotations, problem=problem)


def _shared(cards: NodeCards) -> NodeCards:
    """Let nodes of one make share one matrix of links."""
    return replace(cards, links=_links(cards.links)) if cards.links else cards


@lru_cache(maxsize=256)
def _links(links: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    return links


@lru_cache(maxsize=4096)
def _labels(pairs: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    """Let replicas share one set of labels."""
    return MappingProxyType(dict(pairs))


def _plugin_registered(node: Node, cards: NodeCards, families: Families) -> bool:
    present = {card.family for card in cards.cards}
    for name in present:
        family = families.by_name.get(name)
        if family is None:
            continue
        try:
            if parse_quantity(node.status.allocatable.get(family.resources.count, 0)) > 0:
                return True
        except BadQuantity:
            continue
    return False


def _own_record(pod: Pod) -> PodAllocation | None:
    """Read our own annotation; None where there is none, or one that is about another node.

    Raises:
        BadAnnotation: It is unreadable.
    """
    text = pod.metadata.annotations.get(ALLOCATION)
    if text is None:
        return None
    allocation = _decoded(text)
    if allocation.node != pod.spec.node_name:
        log.error("pod_allocation_elsewhere", pod=pod.full_name, node=pod.spec.node_name, allocation=allocation.node)
        return None
    return allocation


@lru_cache(maxsize=4096)
def _decoded(text: str) -> PodAllocation:
    """Read an allocation; a pod comes by several times with the same one."""
    return decode_allocation("pod", text)


@lru_cache(maxsize=4096)
def _milli(quantity: str | float) -> int:
    try:
        return min(max(0, int(parse_quantity(quantity) * 1000)), _MOST_MILLI)
    except BadQuantity:
        return 0
