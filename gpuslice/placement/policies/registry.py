"""Names of policies, as configuration and pod annotations write them, to the rankings they stand for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from gpuslice.devices.requests import PodRequest
from gpuslice.placement.policies.load import CardLoad, NodeLoad
from gpuslice.placement.policies.policy import CardRanking, NodeRanking, Policy, Weights

EVEN: Final = Weights()
_WEIGHT_NAMES: Final = {"slot": "slots", "core": "cores", "memory": "memory"}

CARD_RANKINGS: Final[Mapping[str, Callable[[Weights], CardRanking]]] = {
    "binpack": lambda weights: CardLoad("binpack", weights, +1),
    "spread": lambda weights: CardLoad("spread", weights, -1),
}
NODE_RANKINGS: Final[Mapping[str, Callable[[Weights], NodeRanking]]] = {
    "binpack": lambda weights: NodeLoad("binpack", weights, +1),
    "spread": lambda weights: NodeLoad("spread", weights, -1),
}
MUTEX: Final = "mutex"
"""A card policy: share a card with nobody."""
AFFINE: Final = "affine"
"""A node policy: near the pods of the same group first."""
FALLBACK: Final = "binpack"
_CARD_NAMES: Final = frozenset({*CARD_RANKINGS, MUTEX})
_NODE_NAMES: Final = frozenset({*NODE_RANKINGS, AFFINE})


@dataclass(frozen=True, slots=True)
class PolicyDefaults:
    """The cluster's choice where a pod makes none."""

    node: str = "binpack"
    card: str = "binpack"
    weights: Weights = EVEN


@lru_cache(maxsize=1024)
def resolve(request: PodRequest, defaults: PolicyDefaults) -> Policy:
    """Return the policy for a pod: its own wishes, where known, before the cluster's. Unknown names are ignored."""
    weights = parse_weights(request.scoring_weights) or defaults.weights
    wished_node = _known(request.node_policy, _NODE_NAMES) or _known(defaults.node, _NODE_NAMES)
    wished_card = _known(request.card_policy, _CARD_NAMES) or _known(defaults.card, _CARD_NAMES)
    node = next((name for name in wished_node if name in NODE_RANKINGS), FALLBACK)
    cards = tuple(name for name in wished_card if name in CARD_RANKINGS) or (FALLBACK,)
    return Policy(
        name=f"{','.join(wished_node) or node}/{','.join(wished_card) or cards[0]}",
        node=NODE_RANKINGS[node](weights),
        cards=tuple(CARD_RANKINGS[name](weights) for name in cards),
        idle_only=MUTEX in wished_card,
        affine=AFFINE in wished_node,
    )


def parse_weights(text: str) -> Weights | None:
    """Return ``slot=a,core=b,memory=c`` (whole numbers, not all 0) as weights, or None if it is not of that form."""
    pairs = [part.partition("=") for part in text.split(",")]
    values: dict[str, int] = {}
    for name, _, value in pairs:
        field = _WEIGHT_NAMES.get(name.strip())
        if field is None or field in values or not value.strip().isdecimal():
            return None
        values[field] = int(value)
    if len(values) != len(_WEIGHT_NAMES) or not any(values.values()):
        return None
    return Weights(**values)


def _known(text: str, table: frozenset[str]) -> tuple[str, ...]:
    return tuple(name for name in (part.strip().lower() for part in text.split(",")) if name in table)
