"""Telling each container's shim what its neighbours on a card do: what soft core limits and priorities live on.

A shim sees its own container only. Where a card has a container with a soft limit (it may use what others leave), or
containers of different priority, the daemon looks at the counters that the shims keep and writes hints next to the
limits, which only the daemon may write. A hint is good for two seconds; without hints a soft limit is a hard one.

A container without a core limit counts its launches from the first hint on, so each gets one at once.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deviceplugin.node import Node
from gpuslice.devices import limits

ACTIVE_NS = 250_000_000
"""A container is active on a card for so long after a launch."""
_REFRESH_NS = 500_000_000
_BUSY_SECONDS = 0.05
_QUIET_SECONDS = 0.25
_QUIET_AFTER_NS = 2_000_000_000
_UNLIMITED_PERCENT = 100


@dataclass(slots=True)
class Neighbour:
    """One container on one card."""

    directory: Path
    limit: limits.DeviceLimit
    rows: int
    """How many rows its state file has: one for each device of the limits file, in order of first use."""
    launched_ns: int = 0
    """CLOCK_MONOTONIC of its last launch that was seen."""
    told: tuple[int, bool] | None = None
    told_ns: int = 0

    def look(self) -> None:
        """Read when it last launched; whatever the container has made of its file does no harm here."""
        try:
            self.launched_ns = limits.last_launch_ns(self.directory / "state", self.limit.uuid, self.rows)
        except (OSError, limits.BadLimitsFile):
            return

    def is_active(self, now_ns: int) -> bool:
        """Whether it launched lately; a time to come is a lie, and no activity."""
        return 0 <= now_ns - self.launched_ns < ACTIVE_NS


def needs_hints(neighbours: Collection[limits.DeviceLimit]) -> bool:
    """Tell whether the containers of a card must know of each other."""
    soft = limits.CorePolicy.SOFT in {limit.core_policy for limit in neighbours}
    return soft or len({limit.priority for limit in neighbours}) > 1


def what_others_do(one: Neighbour, others: Sequence[Neighbour], now_ns: int) -> tuple[int, bool]:
    """Return the core limits of the active others, summed up in percent, and whether one of them goes before it."""
    active = [other for other in others if other is not one and other.is_active(now_ns)]
    percent = sum(other.limit.core_percent or _UNLIMITED_PERCENT for other in active)
    return percent, any(other.limit.priority < one.limit.priority for other in active)


@dataclass(slots=True)
class HintWriter:
    """Writes hints for the containers of one node. Sleeps while no card needs them."""

    node: Node
    clock_ns: Callable[[], int] = time.monotonic_ns
    cards: dict[str, list[Neighbour]] = field(default_factory=dict)
    """By UUID, those that need hints."""

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            self.node.limits_changed.clear()
            self.arrange()
            while self.cards and not self.node.limits_changed.is_set():
                busy = self.look()
                await asyncio.sleep(_BUSY_SECONDS if busy else _QUIET_SECONDS)
            await self.node.limits_changed.wait()
            # Changes come in crowds.
            await asyncio.sleep(_BUSY_SECONDS)

    def arrange(self) -> None:
        """Find out who is on which card, by the limits in force."""
        if not needs_hints([limit for listed in self.node.limits.values() for limit in listed]):
            # No card does, then: that is most nodes.
            self.cards = {}
            return
        found: dict[str, list[tuple[str, limits.DeviceLimit]]] = {}
        for grant_id, listed in self.node.limits.items():
            for limit in listed:
                found.setdefault(limit.uuid, []).append((grant_id, limit))
        self.cards = {
            uuid: [self._neighbour(grant_id, limit) for grant_id, limit in there]
            for uuid, there in found.items()
            if needs_hints([limit for _, limit in there])
        }

    def _neighbour(self, grant_id: str, limit: limits.DeviceLimit) -> Neighbour:
        return Neighbour(self.node.delivery.paths(grant_id).directory, limit, len(self.node.limits[grant_id]))

    def look(self) -> bool:
        """Look at everybody and write what is new; tell whether anybody was active in the last two seconds."""
        now_ns = self.clock_ns()
        busy = False
        for neighbours in self.cards.values():
            for one in neighbours:
                one.look()
            active = any(0 <= now_ns - one.launched_ns < _QUIET_AFTER_NS for one in neighbours)
            if active or any(one.told is None for one in neighbours):
                for one in neighbours:
                    self._tell(one, neighbours, now_ns)
            busy = busy or active
        return busy

    def _tell(self, one: Neighbour, neighbours: Sequence[Neighbour], now_ns: int) -> None:
        wanted = what_others_do(one, neighbours, now_ns)
        if wanted == one.told and now_ns - one.told_ns < _REFRESH_NS:
            return
        percent, higher = wanted
        hint = limits.DeviceHint(one.limit.uuid, now_ns, percent, higher)
        try:
            limits.write_hints(one.directory / "limits", [hint])
        except (OSError, limits.BadLimitsFile):
            # Its limits are being written, or it has ended: the next look shows.
            return
        one.told, one.told_ns = wanted, now_ns
