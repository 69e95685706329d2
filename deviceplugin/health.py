"""Which cards are out of order: down at once, up again after a quiet time and clean probes.

Pure: times are arguments, in seconds of a clock that runs on while the machine is suspended and starts at boot, so that
the state survives a restart of the daemon and is void after a reboot.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from gpuslice.devices.decoding import UNREADABLE
from gpuslice.nvml.events import CardEvent, Probe, Signal

# NVIDIA's catalogue marks these as caused by the application; the card is fine.
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """When a card counts as out of order, and for how long."""

    ignored_xids: frozenset[int] = APPLICATION_XIDS
    quiet_seconds: float = 60.0
    """Time without a bad sign before a card is used again; doubles with each relapse."""
    longest_quiet_seconds: float = 3600.0
    clean_probes: int = 3
    """Probes in a row that must succeed before a card is used again."""
    relapse_seconds: float = 3600.0
    """A failure within this time after a recovery is a relapse."""


@dataclass(frozen=True, slots=True)
class Sickness:
    """Why a card is out of order."""

    reason: str
    since: float
    last_sign: float
    clean_probes: int = 0
    relapses: int = 0


@dataclass(slots=True)
class HealthBook:
    """The state of all cards of a node, by physical UUID. Cards that are not in `sick` are healthy."""

    policy: HealthPolicy = field(default_factory=HealthPolicy)
    sick: dict[str, Sickness] = field(default_factory=dict)
    recovered: dict[str, tuple[float, int]] = field(default_factory=dict)
    """When a card last recovered, and how many relapses it had by then."""

    def event(self, event: CardEvent, uuids: frozenset[str], now: float) -> None:
        """Take in an event. One that names no card, or an unknown one, counts against all: never against none."""
        if event.signal is Signal.MIG_CHANGED:
            return
        if event.signal is Signal.XID and event.xid in self.policy.ignored_xids:
            return
        reason = f"XID {event.xid}" if event.signal is Signal.XID else event.signal.value
        named = {event.uuid} & uuids if event.uuid is not None else frozenset()
        for uuid in named or uuids:
            self._fall_ill(uuid, reason, now)

    def probe(self, result: Probe, now: float) -> None:
        """Take in a probe: a failed one makes a card sick, clean ones in a row make it well."""
        if not result.clean:
            action = f"driver recommends recovery action {result.recovery_action}"
            self._fall_ill(result.uuid, result.problem or action, now)
            return
        sickness = self.sick.get(result.uuid)
        if sickness is None:
            return
        sickness = replace(sickness, clean_probes=sickness.clean_probes + 1)
        if sickness.clean_probes >= self.policy.clean_probes and now - sickness.last_sign >= self.quiet_for(sickness):
            del self.sick[result.uuid]
            self.recovered[result.uuid] = (now, sickness.relapses)
        else:
            self.sick[result.uuid] = sickness

    def quiet_for(self, sickness: Sickness) -> float:
        """Return how long a card must be quiet before it is used again, in seconds."""
        return min(self.policy.quiet_seconds * 2.0**sickness.relapses, self.policy.longest_quiet_seconds)

    def _fall_ill(self, uuid: str, reason: str, now: float) -> None:
        known = self.sick.get(uuid)
        if known is not None:
            self.sick[uuid] = replace(known, reason=reason, last_sign=now, clean_probes=0)
            return
        recovered_at, relapses = self.recovered.pop(uuid, (float("-inf"), -1))
        again = now - recovered_at < self.policy.relapse_seconds
        self.sick[uuid] = Sickness(reason, now, now, relapses=relapses + 1 if again else 0)


class _Stored(msgspec.Struct):
    boot_id: str
    sick: dict[str, Sickness]
    recovered: dict[str, tuple[float, int]]


def encode(book: HealthBook, boot_id: str) -> bytes:
    """Write the state for a later process of the same boot."""
    return msgspec.json.encode(_Stored(boot_id, book.sick, book.recovered))


def restore(book: HealthBook, content: bytes, boot_id: str) -> bool:
    """Take over the state of an earlier process; tell whether it was of this boot and readable."""
    try:
        stored = msgspec.json.decode(content, type=_Stored)
    except UNREADABLE:
        return False
    if stored.boot_id != boot_id:
        return False
    book.sick.update(stored.sick)
    book.recovered.update(stored.recovered)
    return True


def changes(before: Mapping[str, Sickness], after: Mapping[str, Sickness]) -> tuple[frozenset[str], frozenset[str]]:
    """Return (cards that fell ill, cards that recovered)."""
    return frozenset(after.keys() - before.keys()), frozenset(before.keys() - after.keys())
