"""What the node's annotations say: our inventory to others, an administrator's wishes to us. Pure."""

from collections.abc import Mapping

from gpuslice.devices import annotations
from gpuslice.devices.inventory import NodeCards

CORDON = "gpuslice.io/cordon"


def annotations_of(cards: NodeCards) -> dict[str, str]:
    """Return the annotations of an inventory, in our format and in HAMi's."""
    return {
        annotations.CARDS: annotations.encode_cards(cards),
        annotations.HAMI_NODE_REGISTER: annotations.encode_hami_register(cards.cards),
    }


def cordoned(node_annotations: Mapping[str, str]) -> frozenset[str]:
    """Return the UUIDs and indexes that an administrator took out of service: ``gpuslice.io/cordon: "GPU-…,3"``."""
    return frozenset(word.strip() for word in node_annotations.get(CORDON, "").split(",") if word.strip())
