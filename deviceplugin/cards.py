"""The node's cards over time: opening NVML, reading it again and again, and watching over the cards' health."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import structlog

from deviceplugin import health
from deviceplugin.beat import next_beat
from deviceplugin.metrics import PluginMetrics
from gpuslice.devices.wholefile import write_whole
from gpuslice.nvml.compute_mode import set_compute_mode
from gpuslice.nvml.events import CardEvent, EventSource, Probe, ProbeRound, Signal
from gpuslice.nvml.inventory import Machine, read_machine
from gpuslice.nvml.library import NvmlError, NvmlUnavailable, close_nvml, open_nvml
from gpuslice.nvml.processes import CardProcess, compute_processes
from gpuslice.nvml.worker import Look, NvmlWorker

log = structlog.get_logger(__name__)

NO_CARDS = Machine("", ())
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Intervals:
    """How often what is looked at, in seconds."""

    events: float = 1.0
    probe: float = 5.0
    rescan: float = 30.0
    links: float = 300.0
    """Links between cards that have stayed where they are; read with a rescan."""
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
        self._ask: Callable[[], None] = _nothing
        """Has NVML's thread hand over the events that have come."""
        self._heard: list[CardEvent] = []
        self._deaf = ""
        """Why the event set is of no more use."""
        self._woken = asyncio.Event()
        self._links_read_at = 0.0
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
            self._links_read_at = self._clock()
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
        clock = asyncio.get_running_loop().time
        probe_at, scan_at = (next_beat(clock(), each) for each in (self._intervals.probe, self._intervals.rescan))
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(probe_at, scan_at)):
                    await self._woken.wait()
            probe_now, scan_now = clock() >= probe_at, clock() >= scan_at
            await self.look(probe_now=probe_now, scan_now=scan_now)
            probe_at = next_beat(clock(), self._intervals.probe) if probe_now else probe_at
            scan_at = next_beat(clock(), self._intervals.rescan) if scan_now else scan_at

    async def look(self, *, probe_now: bool, scan_now: bool) -> None:
        """Do one round: events, and when due a probe of every card and a new reading of the machine."""
        before = dict(self.health.sick)
        machine = self.machine
        # What a probe finds may have come as an event first, and that says more.
        probes = await self._probe_all() if probe_now else []
        events = await self._take_events()
        uuids = frozenset(card.uuid for card in self.machine.cards)
        for event in events:
            log.warning("card_event", uuid=event.uuid, signal=event.signal.value, xid=event.xid)
            self.health.event(event, uuids, self._clock())
        if not probe_now and any(event.uuid is None for event in events):
            probes = await self._probe_all()
        for result in probes:
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

    def _heard_of(self, events: list[CardEvent], deaf: str) -> None:
        self._heard += events
        self._deaf = deaf
        self._woken.set()

    async def _take_events(self) -> list[CardEvent]:
        self._woken.clear()
        events, self._heard = self._heard, []
        if self._deaf:
            log.warning("event_set_failed", error=self._deaf)
            await self._listen()
            events += [CardEvent(None, Signal.FAILED)] if self._events is None else []
        return events

    async def _probe_all(self) -> list[Probe]:
        """Ask for events and probe every card in one visit to NVML's thread; one that hangs costs itself only."""
        if self._probing is None:
            fresh = ProbeRound([card.uuid for card in self.machine.cards], self._intervals.call)
            self._probing = fresh, asyncio.ensure_future(self._worker.call(_run_after, self._ask, fresh))
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
        links_due = self._clock() - self._links_read_at >= self._intervals.links
        try:
            fresh = await self._worker.call(read_machine, linked_as=None if links_due else self.machine)
        except NvmlError as error:
            log.warning("rescan_failed", error=str(error))
            return
        if links_due:
            self._links_read_at = self._clock()
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
        await self._stop_listening()
        self._deaf = ""
        try:
            source = await self._worker.call(EventSource, [card.uuid for card in self.machine.cards])
        except NvmlError as error:
            log.warning("events_unavailable", error=str(error))
            return
        self._events = source
        loop = asyncio.get_running_loop()

        def tell(events: list[CardEvent], deaf: str) -> None:
            loop.call_soon_threadsafe(self._heard_of, events, deaf)

        self._ask = partial(_poll, source, tell)
        await self._worker.keep_looking(Look(self._ask, self._intervals.events))

    async def _stop_listening(self) -> None:
        if self._events is not None:
            await self._worker.keep_looking(None)
            await self._worker.call(self._events.close)
            self._events, self._ask = None, _nothing

    async def close(self) -> None:
        """Close NVML and its thread."""
        await self._stop_listening()
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


def _nothing() -> None:
    return


def _run_after(ask: Callable[[], None], probes: ProbeRound) -> list[Probe]:
    ask()
    return probes.run()


def _poll(source: EventSource, tell: Callable[[list[CardEvent], str], None]) -> None:
    """Tell of the events that have come, or why none will come any more; on NVML's thread."""
    try:
        events = source.poll()
    except NvmlError as error:
        tell([], str(error))
        return
    if events:
        tell(events, "")


def boot_id() -> str:
    """Return the kernel's identity of this boot; empty where there is none."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""
