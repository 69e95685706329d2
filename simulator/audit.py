"""An independent look at the books: does the API server's own record promise more than the cards have?

Shares no code with the ledger on purpose. It reads pods and nodes as plain JSON and adds up.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must never be so."""

    card: str
    problem: str
    pods: tuple[str, ...]

    def __str__(self) -> str:
        """Return the finding as one line."""
        return f"{self.card}: {self.problem} ({', '.join(self.pods)})"


@dataclass(frozen=True, slots=True)
class _Holding:
    pod: str
    container: str
    slice: str
    memory_mib: int
    cores: int
    exclusive: bool
    at_once: bool
    """False for init containers, which end before the others start."""

    @property
    def card(self) -> str:
        return self.slice.split("::")[0]


def audit(pods: Iterable[Object], nodes: Iterable[Object]) -> list[Finding]:
    """Compare what living pods were promised with what the nodes have."""
    cards = {card["uuid"]: card for node in nodes for card in _cards(node)}
    holdings = [holding for pod in pods for holding in _holdings(pod)]
    return [*_shared_slices(holdings), *_overcommitted(holdings, cards)]


def _shared_slices(holdings: Iterable[_Holding]) -> Iterable[Finding]:
    owners: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for holding in holdings:
        if holding.at_once:
            owners[holding.slice].add((holding.pod, holding.container))
    for slice_name, holders in sorted(owners.items()):
        if len(holders) > 1:
            names = tuple(sorted(f"{pod}/{container}" for pod, container in holders))
            yield Finding(slice_name.split("::")[0], f"slice {slice_name} has {len(holders)} owners", names)


def _overcommitted(holdings: Iterable[_Holding], cards: Mapping[str, Object]) -> Iterable[Finding]:
    by_card: dict[str, list[_Holding]] = defaultdict(list)
    for holding in holdings:
        if holding.at_once:
            by_card[holding.card].append(holding)
    for uuid, held in sorted(by_card.items()):
        pods = tuple(sorted({holding.pod for holding in held}))
        card = cards.get(uuid)
        if card is None:
            yield Finding(uuid, "is on no node", pods)
            continue
        sums = {
            "memoryMiB": sum(holding.memory_mib for holding in held),
            "cores": sum(holding.cores for holding in held),
            "slots": len(held),
        }
        for quantity, used in sums.items():
            if used > card[quantity]:
                yield Finding(uuid, f"{quantity}: {used} promised of {card[quantity]}", pods)
        if len(pods) > 1 and any(holding.exclusive for holding in held):
            yield Finding(uuid, "an exclusive holder is not alone", pods)


def _cards(node: Object) -> Iterable[Object]:
    text = (node["metadata"].get("annotations") or {}).get("gpuslice.io/cards")
    return json.loads(text)["cards"] if text else ()


def _holdings(pod: Object) -> Iterable[_Holding]:
    metadata = pod["metadata"]
    text = (metadata.get("annotations") or {}).get("gpuslice.io/allocation")
    if not text or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return
    init = {
        container["name"]
        for container in pod["spec"].get("initContainers") or ()
        if container.get("restartPolicy") != "Always"
    }
    for container, shares in json.loads(text)["containers"].items():
        for share in shares:
            yield _Holding(
                pod=f"{metadata['namespace']}/{metadata['name']}",
                container=container,
                slice=share["slice"],
                memory_mib=share.get("memoryMiB", 0),
                cores=share.get("cores", 0),
                exclusive=share.get("exclusive", False),
                at_once=container not in init,
            )
