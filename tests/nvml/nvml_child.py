"""Runs in a process of its own: real pynvml on the fake driver, one story per run, the result as JSON."""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pynvml

from gpuslice.nvml.compute_mode import set_compute_mode
from gpuslice.nvml.events import CardEvent, EventSource, Signal, probe
from gpuslice.nvml.inventory import Machine, read_machine
from gpuslice.nvml.library import NvmlUnavailable, close_nvml, open_nvml
from gpuslice.nvml.processes import compute_processes

DRIVERS = Path(__file__).resolve().parents[2] / "simulator" / "drivers" / "build"


def control(line: str) -> None:
    """Inject a fault and wait until the driver has taken it in."""
    state = Path(os.environ["GPUSLICE_FAKE_STATE"])
    log = state / "control.log"
    before = log.read_text().count("\n") if log.exists() else 0
    with (state / "control").open("a") as file:
        file.write(line + "\n")
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        probe("GPU-none")
        if log.exists() and log.read_text().count("\n") > before:
            return
        time.sleep(0.01)
    raise TimeoutError(f"the fake driver did not take {line!r}")


def events_of(source: EventSource) -> list[CardEvent]:
    """Collect events for up to two seconds, until one has come."""
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        if found := source.poll():
            return found
        time.sleep(0.02)
    return []


def main() -> None:
    """Run the story named on the command line."""
    story = sys.argv[1]
    try:
        open_nvml(DRIVERS if story != "absent" else Path("/nonexistent"))
    except NvmlUnavailable as error:
        print(json.dumps({"unavailable": str(error)}))
        return
    machine = read_machine()
    result = STORIES[story](machine)
    close_nvml()
    print(json.dumps(result))


def _inventory(machine: Machine) -> object:
    return asdict(machine)


def _xid(machine: Machine) -> object:
    source = EventSource([card.uuid for card in machine.cards])
    control("xid 1 79")
    found = events_of(source)
    source.close()
    return [[[card.uuid for card in machine.cards].index(e.uuid or ""), e.signal is Signal.XID, e.xid] for e in found]


def _lost(machine: Machine) -> object:
    control("lose 2")
    lost = [probe(card.uuid).lost for card in machine.cards]
    again = read_machine()
    control("restore 2")
    back = [probe(card.uuid).clean for card in machine.cards]
    return {"lost": lost, "readable": len(again.cards), "unreadable": [u.index for u in again.unreadable], "back": back}


def _recovery(machine: Machine) -> object:
    control("recovery 0 gpu-reset")
    before = probe(machine.cards[0].uuid)
    control("recovery 0 none")
    after = probe(machine.cards[0].uuid)
    return [before.recovery_action, before.clean, after.recovery_action, after.clean]


def _linked_as(machine: Machine) -> object:
    before = replace(machine, links=((0, 7), (7, 0)))
    elsewhere = replace(before, cards=(before.cards[0], replace(before.cards[1], bus_id="0000:ff:00.0")))
    unknown = replace(before, links=())
    return [read_machine(linked_as=each).links[0][1] for each in (before, elsewhere, unknown)]


def _mig(machine: Machine) -> object:
    control("mig 0 on")
    control("mig 0 create 1g.10gb")
    control("mig 0 create 3g.40gb")
    card = read_machine().cards[0]
    return [card.mig_enabled, [[m.profile, m.memory_mib > 0, m.uuid.startswith("MIG-")] for m in card.mig_instances]]


def _mig_processes(machine: Machine) -> object:
    control("mig 0 on")
    for _ in range(2):
        control("mig 0 create 1g.10gb")
    card = read_machine().cards[0]
    second = card.mig_instances[1].uuid
    source = "import ctypes,sys;c=ctypes.CDLL('libcuda.so.1');c.cuInit(0);x=ctypes.c_void_p();"
    source += "print(c.cuCtxCreate_v2(ctypes.byref(x),0,0),flush=True);sys.stdin.read()"
    env = {**os.environ, "LD_LIBRARY_PATH": str(DRIVERS), "NVIDIA_VISIBLE_DEVICES": second}
    with subprocess.Popen([sys.executable, "-c", source], env=env, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        made = process.stdout.readline().strip()
        found = compute_processes(card.computing_uuids)
        process.communicate()
    return [made, [[item.uuid == second, item.pid == process.pid] for item in found]]


def _compute_mode(machine: Machine) -> object:
    uuid = machine.cards[0].uuid
    found = []
    for one_process in (True, False):
        set_compute_mode(uuid, one_process=one_process)
        found.append(pynvml.nvmlDeviceGetComputeMode(pynvml.nvmlDeviceGetHandleByUUID(uuid)))
    return found


STORIES = {
    "compute-mode": _compute_mode,
    "mig-processes": _mig_processes,
    "inventory": _inventory,
    "absent": _inventory,
    "xid": _xid,
    "linked-as": _linked_as,
    "lost": _lost,
    "recovery": _recovery,
    "mig": _mig,
}

if __name__ == "__main__":
    main()
