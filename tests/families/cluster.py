"""One node of another vendor, and a pod that goes the whole way: read, place, write."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gpuslice.devices.allocation import PodAllocation
from gpuslice.devices.families import load_builtin
from gpuslice.devices.families.register import cards_of_node
from gpuslice.devices.families.render import pod_annotations
from gpuslice.devices.inventory import NodeCards
from gpuslice.devices.pods import Node, Pod
from gpuslice.devices.requests import PodRequest, read_request
from gpuslice.placement.decide import place
from gpuslice.placement.events import NodeSeen
from gpuslice.placement.ledger import Ledger
from gpuslice.placement.policies.registry import PolicyDefaults

NOW_NANOSECONDS = 1_700_000_000_123_456_789
FAMILIES = load_builtin()
Limits = Mapping[str, Any]


def node(annotations: Mapping[str, str] | None = None, capacity: Mapping[str, Any] | None = None) -> Node:
    return msgspec.convert(
        {"metadata": {"name": "n1", "annotations": annotations or {}}, "status": {"capacity": capacity or {}}}, Node
    )


def pod(*containers: Limits, annotations: Mapping[str, str] | None = None, init: tuple[Limits, ...] = ()) -> Pod:
    def listed(prefix: str, limits: tuple[Limits, ...]) -> list[dict[str, Any]]:
        return [{"name": f"{prefix}{i}", "resources": {"limits": dict(each)}} for i, each in enumerate(limits)]

    return msgspec.convert(
        {
            "metadata": {"name": "p", "namespace": "default", "annotations": annotations or {}},
            "spec": {"containers": listed("c", containers), "initContainers": listed("init", init)},
        },
        Pod,
    )


@dataclass(frozen=True)
class Placed:
    request: PodRequest
    cards: NodeCards
    allocation: PodAllocation
    annotations: dict[str, str] = field(default_factory=dict)


def run(pod_: Pod, node_: Node) -> Placed:
    """Read the request, place it on the node with the real placement, write the annotations."""
    request = read_request(pod_, FAMILIES)
    assert isinstance(request, PodRequest), [str(problem) for problem in request]
    cards = cards_of_node(node_, FAMILIES)
    assert cards is not None
    ledger = Ledger()
    ledger.apply(NodeSeen(cards))
    allocation = place(ledger, request, "n1", PolicyDefaults(node="binpack", card="binpack"))
    assert isinstance(allocation, PodAllocation), allocation
    written = pod_annotations(pod_, allocation, cards, FAMILIES, now_nanoseconds=NOW_NANOSECONDS)
    return Placed(request, cards, allocation, written)
