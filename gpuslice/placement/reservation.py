"""A share kept for one pod while the pods that must make room for it end."""

from dataclasses import dataclass

from gpuslice.devices.allocation import PodAllocation
from gpuslice.placement.events import PodKey
from gpuslice.placement.holding import CardUse


@dataclass(frozen=True, slots=True)
class Reservation:
    """What is kept, where, for whom, and whose end it waits for."""

    key: PodKey
    allocation: PodAllocation
    uses: tuple[CardUse, ...]
    victims: frozenset[str]
    """UIDs that still hold."""
    expires_at: float
    priority: int = 0
