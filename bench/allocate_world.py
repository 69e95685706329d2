"""The correctness half of the allocate benchmark.

Pods race for their slices, and every container is compared with the scheduler's decision.
"""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deviceplugin.nodeconfig import NodeSettings
from gpuslice.devices import limits
from gpuslice.devices.inventory import slice_id
from simulator.kubelet.kubelet import Behaviour
from simulator.kubelet.podworker import Pace
from simulator.kubelet.rig import Ask, Rig, gpu, machine, node_rig, pod

CARDS = 8
SLOTS = 10
AT_ONCE = 8
COUNTS = (1, 2)
"""Each pod has two containers that ask for the same number of cards, so that the number tells nobody apart."""


@dataclass(slots=True)
class Outcome:
    """What the run found. `layers` counts how each container was identified."""

    allocations: int = 0
    wrong_cards: int = 0
    wrong_limits: int = 0
    failed_pods: int = 0
    layers: dict[str, int] = field(default_factory=dict)


class Slices:
    """Free slices of the node, as the scheduler's ledger has them."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._free = {n: [slice_id(gpu(n), s) for s in range(SLOTS)] for n in range(CARDS)}

    def take(self, count: int) -> tuple[str, ...]:
        """Take one slice of each of `count` different cards."""
        cards = self._chance.sample([n for n, free in self._free.items() if free], count)
        return tuple(self._free[n].pop(self._chance.randrange(len(self._free[n]))) for n in cards)

    def give(self, names: Iterator[str]) -> None:
        """Give slices back."""
        for name in names:
            card, _, _ = name.partition("::")
            self._free[int(card.rpartition("-")[2])].append(name)


async def race(root: Path, allocations: int, *, seed: int, honour: bool = True, listing: bool = True) -> Outcome:
    """Run pods, eight at a time, until so many allocations were made; check each container.

    Args:
        root: An empty directory with a short name.
        allocations: How many containers to start.
        seed: Of the pods' sizes, the free slices and the kubelet's random IDs.
        honour: The kubelet follows preferences; without, it takes any free ID.
        listing: The kubelet answers podresources; without, nobody says who is being admitted.
    """
    outcome = Outcome()
    behaviour = Behaviour(
        seed=seed,
        honour_preferences=honour,
        pretend=True,
        pace=Pace(start_retry=0.05, first_admission=0.0),
        pod_resources=listing,
    )
    async with node_rig(root, behaviour=behaviour, cards=machine(CARDS), settings=NodeSettings()) as rig:
        chance = random.Random(seed)
        slices = Slices(chance)
        number = 0
        while outcome.allocations < allocations:
            bodies = [_pod(f"p{number + n}", slices, chance) for n in range(AT_ONCE)]
            number += AT_ONCE
            await _one_round(rig, bodies, chance.sample(range(AT_ONCE), AT_ONCE), outcome)
            slices.give(ask.slices[i] for asks, _ in bodies for ask in asks for i in range(len(ask.slices)))
        outcome.layers = _layers(rig)
    return outcome


def _pod(name: str, slices: Slices, chance: random.Random) -> tuple[tuple[Ask, ...], dict[str, Any]]:
    count = chance.choice(COUNTS)
    asks = tuple(Ask(c, slices.take(count), chance.randrange(500, 4000), chance.choice((0, 3, 6))) for c in "ab")
    return asks, pod(name, *asks)


async def _one_round(
    rig: Rig, bodies: list[tuple[tuple[Ask, ...], dict[str, Any]]], order: list[int], outcome: Outcome
) -> None:
    uids = rig.api.create_together([body for _, body in bodies], order)
    await rig.api.until(lambda: all(rig.api.phase(uid) in ("Running", "Failed") for uid in uids), 60)
    for uid, (asks, _) in zip(uids, bodies, strict=True):
        if rig.api.phase(uid) == "Failed":
            outcome.failed_pods += 1
            outcome.allocations += len(asks)
            continue
        for ask in asks:
            _judge(rig, uid, ask, outcome)
    for uid in uids:
        rig.api.delete(uid, 0)
    await rig.api.until(lambda: not any(uid in rig.api.bodies for uid in uids), 60)
    # The next round may be given the same slices: the share is free now, and so must be the node's record of it.
    await asyncio.sleep(0)


def _judge(rig: Rig, uid: str, ask: Ask, outcome: Outcome) -> None:
    outcome.allocations += 1
    creation = rig.kubelet.container(uid, ask.name).creation
    promised = [name.partition("::")[0] for name in ask.slices]
    if creation.env["NVIDIA_VISIBLE_DEVICES"].split(",") != promised:
        outcome.wrong_cards += 1
    directory = next(mount.host for mount in creation.mounts if mount.inside == "/var/run/gpuslice")
    found = [
        (limit.uuid, limit.memory_mib, limit.core_percent) for limit in limits.read_limits(Path(directory) / "limits")
    ]
    if found != [(uuid, ask.memory_mib, ask.cores) for uuid in promised]:
        outcome.wrong_limits += 1


def _layers(rig: Rig) -> dict[str, int]:
    found: dict[str, int] = {}
    for family in rig.plugin.registry.collect():
        for sample in family.samples:
            name = sample.name.removeprefix("gpuslice_plugin_")
            if name in ("identity_total", "steered_total", "delivered_total", "guarded_total") and sample.value:
                kind = sample.labels.get("layer") or sample.labels["outcome"]
                found[f"{name.removesuffix('_total')}:{kind}"] = int(sample.value)
    return found
