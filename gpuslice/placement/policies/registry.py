"""Names of policies, as configuration and pod annotations write them, to the rankings they stand for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from gpuslice.devices.requests import PodRequest
from gpuslice.devices.value import Value
from gpuslice.placement.outlook import EMPTY, Outlook
from gpuslice.placement.policies.best_fit import CardBestFit, NodeBestFit
from gpuslice.placement.policies.fragments import Meter
from gpuslice.placement.policies.gradient import TUNINGS, CardGradient, JointGradient, NodeGradient, meter_of
from gpuslice.placement.policies.load import CardLoad, NodeLoad
from gpuslice.placement.policies.numa import CardNuma, NodeNuma
from gpuslice.placement.policies.policy import CardRanking, JointRanking, NodeRanking, Policy, Weights
from gpuslice.placement.policies.wiring import CardWiring, NodeWiring

EVEN: Final = Weights()
MUTEX: Final = "mutex"
"""A card policy: share a card with nobody."""
AFFINE: Final = "affine"
"""A node policy: near the pods of the same group first."""
FALLBACK: Final = "balanced"
_WEIGHT_NAMES: Final = {"slot": "slots", "core": "cores", "memory": "memory"}


@dataclass(frozen=True, slots=True)
class _Setting:
    """What rankings are made from."""

    weights: Weights
    outlook: Outlook


@lru_cache(maxsize=16)
def _meter(name: str, outlook: Outlook) -> Meter:
    return meter_of(TUNINGS[name], outlook)


def _gradient_card(name: str) -> Callable[[_Setting], CardRanking]:
    return lambda setting: CardGradient(name, TUNINGS[name], _meter(name, setting.outlook))


@lru_cache(maxsize=16)
def _node_gradient(name: str, outlook: Outlook) -> NodeGradient:
    """Return one ranking for all classes of pods: views remember terms under it."""
    return NodeGradient(name, TUNINGS[name], _meter(name, outlook), outlook)


def _gradient_node(name: str) -> Callable[[_Setting], NodeRanking]:
    return lambda setting: _node_gradient(name, setting.outlook)


CARD_RANKINGS: Final[Mapping[str, Callable[[_Setting], CardRanking]]] = {
    "binpack": lambda setting: CardLoad("binpack", setting.weights, +1),
    "spread": lambda setting: CardLoad("spread", setting.weights, -1),
    "topology-aware": lambda _: CardWiring(),
    "numa": lambda _: CardNuma(),
    "best-fit": lambda _: CardBestFit(),
    **{name: _gradient_card(name) for name in TUNINGS},
}
NODE_RANKINGS: Final[Mapping[str, Callable[[_Setting], NodeRanking]]] = {
    "binpack": lambda setting: NodeLoad("binpack", setting.weights, +1),
    "spread": lambda setting: NodeLoad("spread", setting.weights, -1),
    "topology-aware": lambda setting: NodeWiring(setting.weights),
    "numa": lambda _: NodeNuma(),
    "best-fit": lambda _: NodeBestFit(),
    **{name: _gradient_node(name) for name in TUNINGS},
}
NAMES: Final = tuple(sorted({*CARD_RANKINGS, *NODE_RANKINGS, MUTEX, AFFINE}))
"""Every name that a configuration or an annotation may use, at either level."""
_READS_MIX: Final = frozenset({*TUNINGS, "best-fit"})


class PolicyDefaults(Value, frozen=True):
    """The cluster's choice where a pod makes none. Each is a name or a comma chain of names."""

    node: str = FALLBACK
    card: str = FALLBACK
    weights: Weights = EVEN


@lru_cache(maxsize=4096)
def resolve(request: PodRequest, defaults: PolicyDefaults, outlook: Outlook = EMPTY) -> Policy:
    """Return the policy for a pod: its own wishes, where known, before the cluster's. Unknown names are ignored.

    A name that makes sense at the other level only falls back to the cluster's choice. For several cards,
    ``balanced`` decides between equal cards by their links.
    """
    weights = parse_weights(request.scoring_weights) or defaults.weights
    setting = _Setting(weights, outlook)
    wished_nodes = known_names(request.node_policy) or known_names(defaults.node)
    wished_cards = known_names(request.card_policy) or known_names(defaults.card)
    node = _first(wished_nodes, NODE_RANKINGS) or _first(known_names(defaults.node), NODE_RANKINGS) or FALLBACK
    cards = tuple(name for name in wished_cards if name in CARD_RANKINGS) or (
        _first(known_names(defaults.card), CARD_RANKINGS) or FALLBACK,
    )
    if cards == (FALLBACK,) and any(demand.request.cards > 1 for demand in request.containers):
        cards = (FALLBACK, "topology-aware")
    idle_only = MUTEX in (*wished_cards, *wished_nodes)
    rank_nodes = NODE_RANKINGS[node](setting)
    return Policy(
        name=f"{','.join(wished_nodes) or node}/{','.join(wished_cards) or cards[0]}",
        node=rank_nodes,
        cards=tuple(CARD_RANKINGS[name](setting) for name in cards),
        joint=_joint(rank_nodes, cards, outlook) if not idle_only else None,
        idle_only=idle_only,
        affine=AFFINE in wished_nodes,
        reads_cpu=not _READS_MIX.isdisjoint((node, *cards)),
    )


def _joint(node: NodeRanking, cards: tuple[str, ...], outlook: Outlook) -> JointRanking | None:
    """Return the rankings in one, where both measure fragments alike and do not round them."""
    if not isinstance(node, NodeGradient) or cards != (node.name,) or TUNINGS[node.name].rounded:
        return None
    return JointGradient(_meter(node.name, outlook), node)


def known_names(text: str) -> tuple[str, ...]:
    """Return the policy names in a comma chain that we know, in order."""
    return tuple(name for name in (part.strip().lower() for part in text.split(",")) if name in NAMES)


def parse_weights(text: str) -> Weights | None:
    """Return ``slot=a,core=b,memory=c`` (whole numbers, not all 0) as weights, or None if it is not of that form."""
    values: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        field = _WEIGHT_NAMES.get(name.strip())
        if field is None or field in values or not value.strip().isdecimal():
            return None
        values[field] = int(value)
    if len(values) != len(_WEIGHT_NAMES) or not any(values.values()):
        return None
    return Weights(**values)


def _first(names: tuple[str, ...], table: Mapping[str, object]) -> str:
    return next((name for name in names if name in table), "")
