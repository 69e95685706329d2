"""Nodes and pods as the API server has them, for tests of the extender."""

from typing import Any

from gpuslice.devices.annotations import CARDS, encode_cards
from gpuslice.devices.inventory import Card, NodeCards

MEMORY_MIB = 16_384


def cards_of(node: str, count: int = 1, *, memory_mib: int = MEMORY_MIB, **changes: Any) -> NodeCards:
    cards = tuple(
        Card(uuid=f"GPU-{node}-{index}", memory_mib=memory_mib, index=index, model="Tesla T4", **changes)
        for index in range(count)
    )
    return NodeCards(node, cards)


def node(name: str, count: int = 1, *, allocatable: int | None = None, **changes: Any) -> dict[str, Any]:
    cards = cards_of(name, count, **changes)
    offered = sum(card.slots for card in cards.cards) if allocatable is None else allocatable
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "annotations": {CARDS: encode_cards(cards)}},
        "status": {
            "capacity": {"cpu": "64", "nvidia.com/gpu": str(offered)},
            "allocatable": {"cpu": "64", "nvidia.com/gpu": str(offered)},
        },
    }


def container(name: str = "main", *, gpus: int = 1, memory_mib: int = 0, cores: int = 0) -> dict[str, Any]:
    wanted = {"nvidia.com/gpu": gpus, "nvidia.com/gpumem": memory_mib, "nvidia.com/gpucores": cores}
    limits = {key: str(value) for key, value in wanted.items() if value}
    return {"name": name, "image": "example.org/cuda", "resources": {"limits": limits, "requests": dict(limits)}}


def pod(name: str, *containers: dict[str, Any], namespace: str = "default", **spec: Any) -> dict[str, Any]:
    annotations = spec.pop("annotations", {})
    labels = spec.pop("labels", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations, "labels": labels},
        "spec": {
            "schedulerName": "gpuslice-scheduler",
            "containers": list(containers) or [container(memory_mib=1000)],
            **spec,
        },
    }


def priority_classes() -> list[dict[str, Any]]:
    """``p1``, ``p2``, ``high`` (1000) and ``never`` (1000, does not preempt); no class is 0."""

    def made(name: str, value: int, policy: str = "PreemptLowerPriority") -> dict[str, Any]:
        return {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
            "preemptionPolicy": policy,
        }

    return [made("p1", 1), made("p2", 2), made("high", 1000), made("never", 1000, "Never")]
