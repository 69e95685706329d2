"""The node's cards over time: opening NVML, reading it again and again, and watching over the cards' health."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from deviceplugin import health
from deviceplugin.metrics import PluginMetrics
from gpuslice.devices.wholefile import write_whole
from gpuslice.nvml.compute_mode import set_compute_mode
from gpuslice.nvml.events import CardEvent, EventSource, Probe, ProbeRound, Signal
from gpuslice.nvml.inventory import Machine, read_machine
from gpuslice.nvml.library import NvmlError, NvmlUnavailable, close_nvml, open_nvml
from gpuslice.nvml.processes import CardProcess, compute_processes
from gpuslice.nvml.worker import NvmlWorker

log = structlog.get_logger(__name__)

NO_CARDS = Machine("", ())
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Intervals:
    """How often what is looked at, in seconds."""

    events: float = 1.0
    probe: float = 5.0
    rescan: float = 30.0
    driver_retry: float = 5.0
    call: float = 10.0
    """How long a card may take to answer before it counts as failed."""


def boot_seconds() -> float:
    """Return seconds since boot, suspended time included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Rules:
    """When to look, and what to make of it. `clock` gives seconds since boot."""

    policy: health.HealthPolicy = field(default_factory=health.HealthPolicy)
    intervals: Intervals = field(default_factory=Intervals)
    clock: Callable[[], float] = boot_seconds


class CardWatch:
    """Keeps `machine` and `health` up to date and calls `changed` after every change."""

    def __init__(
        self,
        state: Path,
        changed: Callable[[], None],
        metrics: PluginMetrics,
        *,
        driver_root: Path | None = None,
        rules: "Rules | None" = None,
    ) -> None:
        rules = rules or Rules()
        self.machine = NO_CARDS
        self.health = health.HealthBook(rules.policy)
        self._state = state / "health.json"
        self._changed = changed
        self._metrics = metrics
        self._driver_root = driver_root
        self._intervals = rules.intervals
        self._clock = rules.clock
        self._worker = NvmlWorker()
        self._events: EventSource | None = None
        self._probing: tuple[ProbeRound, asyncio.Future[list[Probe]]] | None = None
        self._open = False
        self.problem = "NVML has not been opened yet"
        """Why there are no cards; empty once NVML is open."""

    async def open(self) -> bool:
        """Open NVML and read the machine once; tell whether that worked. `problem` says why not."""
        try:
            await self._worker.call(open_nvml, self._driver_root)
            self._open = True
            self.machine = await self._worker.call(read_machine)
        except (NvmlUnavailable, NvmlError) as error:
            self.problem = str(error)
            if self._open:
                await self._worker.call(close_nvml)
                self._open = False
            return False
        self.problem = ""
        self._restore()
        for card in self.machine.unreadable:
            log.warning("card_unreadable", index=card.index, problem=card.problem)
        return True

    async def run(self) -> None:
        """Watch until cancelled; waits for a driver that comes later."""
        while not self._open:
            if await self.open():
                self._changed()
                break
            log.warning("nvml_unavailable", problem=self.problem)
            await asyncio.sleep(self._intervals.driver_retry)
        await self._listen()
        due_probe = due_scan = 0.0
        while True:
            await asyncio.sleep(self._intervals.events)
            due_probe += self._intervals.events
            due_scan += self._intervals.events
            await self.look(probe_now=due_probe >= self._intervals.probe, scan_now=due_scan >= self._intervals.rescan)
            due_probe = 0.0 if due_probe >= self._intervals.probe else due_probe
            due_scan = 0.0 if due_scan >= self._intervals.rescan else due_scan

    async def look(self, *, probe_now: bool, scan_now: bool) -> None:
        """Do one round: events, and when due a probe of every card and a new reading of the machine."""
        before = dict(self.health.sick)
        machine = self.machine
        events = await self._poll()
        uuids = frozenset(card.uuid for card in self.machine.cards)
        for event in events:
            log.warning("card_event", uuid=event.uuid, signal=event.signal.value, xid=event.xid)
            self.health.event(event, uuids, self._clock())
        if probe_now or any(event.uuid is None for event in events):
            for result in await self._probe_all():
                self.health.probe(result, self._clock())
        if scan_now or any(event.signal is Signal.MIG_CHANGED for event in events):
            await self._rescan()
        self._settle(before, machine)

    def _settle(self, before: dict[str, health.Sickness], machine: Machine) -> None:
        ill, well = health.changes(before, self.health.sick)
        for uuid in ill:
            log.error("card_unhealthy", uuid=uuid, reason=self.health.sick[uuid].reason)
            self._metrics.card_transitions.labels(uuid, "unhealthy").inc()
        for uuid in well:
            log.info("card_healthy", uuid=uuid)
            self._metrics.card_transitions.labels(uuid, "healthy").inc()
        if before != self.health.sick:
            self._store()
        if ill or well or machine != self.machine:
            self._changed()

    async def _poll(self) -> list[CardEvent]:
        if self._events is None:
            return []
        try:
            return await self._worker.call(self._events.poll)
        except NvmlError as error:
            log.warning("event_set_failed", error=str(error))
            await self._listen()
            return [CardEvent(None, Signal.FAILED)] if self._events is None else []

    async def _probe_all(self) -> list[Probe]:
        """Probe every card in one visit to NVML's thread; one that does not answer costs itself only."""
        if self._probing is None:
            fresh = ProbeRound([card.uuid for card in self.machine.cards], self._intervals.call)
            self._probing = fresh, asyncio.ensure_future(self._worker.call(fresh.run))
        probes, done = self._probing
        await asyncio.wait({done}, timeout=self._intervals.call)
        if not done.done():
            return probes.stuck()
        self._probing = None
        return done.result()

    async def processes(self) -> tuple[CardProcess, ...]:
        """Return the compute processes of all cards; none when NVML does not answer in time."""
        if not self._open:
            return ()
        well = (card for card in self.machine.cards if card.uuid not in self.health.sick)
        uuids = tuple(uuid for card in well for uuid in card.computing_uuids)
        try:
            async with asyncio.timeout(self._intervals.call):
                return await self._worker.call(compute_processes, uuids)
        except TimeoutError:
            return ()

    async def let_one_process(self, uuid: str, *, alone: bool) -> None:
        """Let one process alone compute on a card, or anybody again.

        Raises:
            NvmlError: It cannot be done.
        """
        await self._worker.call(set_compute_mode, uuid, one_process=alone)

    async def _rescan(self) -> None:
        """Read the machine again; a card that is missing now stays listed, as lost, until it returns."""
        try:
            fresh = await self._worker.call(read_machine)
        except NvmlError as error:
            log.warning("rescan_failed", error=str(error))
            return
        present = {card.uuid for card in fresh.cards}
        missing = tuple(card for card in self.machine.cards if card.uuid not in present)
        for card in missing:
            self.health.probe(Probe(card.uuid, problem="the card has fallen off the bus", lost=True), self._clock())
        known = {card.uuid for card in self.machine.cards}
        if missing and (new := tuple(card for card in fresh.cards if card.uuid not in known)):
            # Links between cards that were never seen together are not known.
            fresh = replace(fresh, cards=self.machine.cards + new, links=())
        elif missing:
            fresh = replace(self.machine, driver=fresh.driver, unreadable=fresh.unreadable)
        if fresh != self.machine:
            self.machine = fresh
            await self._listen()

    async def _listen(self) -> None:
        """(Re)open the event set over the present cards."""
        if self._events is not None:
            await self._worker.call(self._events.close)
            self._events = None
        try:
            self._events = await self._worker.call(EventSource, [card.uuid for card in self.machine.cards])
        except NvmlError as error:
            log.warning("events_unavailable", error=str(error))

    async def close(self) -> None:
        """Close NVML and its thread."""
        if self._events is not None:
            await self._worker.call(self._events.close)
            self._events = None
        if self._open:
            await self._worker.call(close_nvml)
            self._open = False
        self._worker.close()

    # -- persistence ----------------------------------------------------------------------------------------------

    def _restore(self) -> None:
        with contextlib.suppress(OSError):
            if health.restore(self.health, self._state.read_bytes(), boot_id()):
                log.info("health_restored", unhealthy=sorted(self.health.sick))

    def _store(self) -> None:
        write_whole(self._state, health.encode(self.health, boot_id()))


def boot_id() -> str:
    """Return the kernel's identity of this boot; empty where there is none."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""
