"""The records of a grant's limits file."""

from collections.abc import Mapping

from deviceplugin.book import Grant
from gpuslice.devices import limits
from gpuslice.devices.allocation import SliceShare

_POLICIES: Mapping[str, limits.CorePolicy] = {
    "hard": limits.CorePolicy.HARD,
    "soft": limits.CorePolicy.SOFT,
    "off": limits.CorePolicy.OFF,
}


def limits_of(grant: Grant, core_policy: str) -> tuple[limits.DeviceLimit, ...]:
    """Return the records of a grant's limits file, one per card; two slices of one card add up."""
    by_card: dict[str, SliceShare] = {}
    for share in grant.shares:
        card = share.card
        before = by_card.get(card)
        memory = share.memory_mib + (before.memory_mib if before else 0)
        cores = min(share.core_percent + (before.core_percent if before else 0), 100)
        by_card[card] = SliceShare(share.slice, memory, cores)
    return tuple(
        limits.DeviceLimit(
            uuid=uuid,
            memory_mib=share.memory_mib,
            core_percent=share.core_percent,
            priority=grant.priority,
            core_policy=_POLICIES[core_policy if share.core_percent else "off"],
        )
        for uuid, share in by_card.items()
    )
