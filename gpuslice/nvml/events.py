"""Health signals of cards: XID and ECC events, and a probe that says whether a card may be used again.

Blocking; runs on the NVML thread.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

import pynvml

from gpuslice.nvml.inventory import optional
from gpuslice.nvml.library import is_lost


class Signal(Enum):
    """What happened to a card."""

    XID = "xid"
    DOUBLE_BIT_ECC = "double-bit-ecc"
    LOST = "lost"
    FAILED = "failed"
    MIG_CHANGED = "mig-changed"


@dataclass(frozen=True, slots=True)
class CardEvent:
    """One signal. `uuid` is None when NVML cannot say which card it was."""

    uuid: str | None
    signal: Signal
    xid: int = 0


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of asking one card whether it is well."""

    uuid: str
    problem: str = ""
    """Empty when the card answered."""
    lost: bool = False
    recovery_action: int = 0
    """NVML's recommendation: 0 none, 1 reset the card, 2 reboot, 3 and more drain or reset."""

    @property
    def clean(self) -> bool:
        """Whether nothing speaks against using the card."""
        return not self.problem and not self.recovery_action


_KINDS = (
    pynvml.nvmlEventTypeXidCriticalError
    | pynvml.nvmlEventTypeDoubleBitEccError
    | getattr(pynvml, "nvmlEventMigConfigChange", 0x100)
)


class EventSource:
    """An NVML event set over some cards. `close` it, and open a new one when the cards change."""

    def __init__(self, uuids: Iterable[str]) -> None:
        self._set = pynvml.nvmlEventSetCreate()
        self.unsupported: list[str] = []
        """Cards that cannot report events; they are still probed."""
        for uuid in uuids:
            try:
                handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                supported = int(pynvml.nvmlDeviceGetSupportedEventTypes(handle)) & _KINDS
                if supported:
                    pynvml.nvmlDeviceRegisterEvents(handle, supported, self._set)
                else:
                    self.unsupported.append(uuid)
            except pynvml.NVMLError:
                self.unsupported.append(uuid)

    def poll(self, limit: int = 64) -> list[CardEvent]:
        """Return the events that have come, without waiting for more.

        Raises:
            pynvml.NVMLError: The event set is of no more use.
        """
        found: list[CardEvent] = []
        while len(found) < limit:
            try:
                data = pynvml.nvmlEventSetWait_v2(self._set, 0)
            except pynvml.NVMLError_Timeout:
                break
            if event := _event(data):
                found.append(event)
        return found

    def close(self) -> None:
        """Free the event set."""
        optional(lambda: pynvml.nvmlEventSetFree(self._set), None)


def _event(data: object) -> CardEvent | None:
    kind, value = int(data.eventType), int(data.eventData)  # type: ignore[attr-defined]  # a ctypes structure
    uuid = optional(lambda: _uuid(data.device), None)  # type: ignore[attr-defined]
    if kind & pynvml.nvmlEventTypeXidCriticalError:
        return CardEvent(uuid, Signal.XID, value)
    if kind & pynvml.nvmlEventTypeDoubleBitEccError:
        return CardEvent(uuid, Signal.DOUBLE_BIT_ECC)
    if kind & 0x100:
        return CardEvent(uuid, Signal.MIG_CHANGED)
    return None


def _uuid(handle: object) -> str:
    value = pynvml.nvmlDeviceGetUUID(handle)
    return value.decode() if isinstance(value, bytes) else str(value)


def probe(uuid: str) -> Probe:
    """Ask one card for its memory and for the driver's recovery recommendation."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError as error:
        return Probe(uuid, problem=str(error), lost=is_lost(error))
    return Probe(uuid, recovery_action=optional(lambda: _recovery_action(handle), 0))


class ProbeRound:
    """One probe of every card: made on NVML's thread, watched from outside."""

    def __init__(
        self, uuids: Iterable[str], limit_seconds: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._uuids = tuple(uuids)
        self._limit_seconds = limit_seconds
        self._clock = clock
        self._current = ""
        self._since = clock()

    def run(self) -> list[Probe]:
        """Probe one card after the other; a card that takes too long has not answered."""
        found = []
        for uuid in self._uuids:
            self._current, self._since = uuid, self._clock()
            result = probe(uuid)
            found.append(self._late(uuid) if self._is_late() else result)
        return found

    def stuck(self) -> list[Probe]:
        """While `run` is under way: the probe of the card that it has been waiting for for too long."""
        return [self._late(self._current)] if self._current and self._is_late() else []

    def _is_late(self) -> bool:
        return self._clock() - self._since >= self._limit_seconds

    def _late(self, uuid: str) -> Probe:
        return Probe(uuid, problem=f"NVML did not answer within {self._limit_seconds:g} s")


def _recovery_action(handle: object) -> int:
    values = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    return int(values[0].value.uiVal) if values[0].nvmlReturn == pynvml.NVML_SUCCESS else 0
