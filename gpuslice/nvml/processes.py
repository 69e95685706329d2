"""Which processes compute on which card, by NVML. Blocking; runs on the NVML thread."""

from dataclasses import dataclass
from functools import partial

import pynvml

from gpuslice.nvml.inventory import optional


@dataclass(frozen=True, slots=True)
class CardProcess:
    """A compute process on a card. The process id is the host's."""

    uuid: str
    pid: int


def compute_processes(uuids: tuple[str, ...]) -> tuple[CardProcess, ...]:
    """Return the compute processes (MPS clients too) of these cards; a card that does not answer has none."""
    nobody: tuple[int, ...] = ()
    return tuple(CardProcess(uuid, pid) for uuid in uuids for pid in optional(partial(_pids, uuid), nobody))


def _pids(uuid: str) -> tuple[int, ...]:
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    found = [*pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    found += optional(lambda: pynvml.nvmlDeviceGetMPSComputeRunningProcesses(handle), [])
    return tuple(sorted({int(process.pid) for process in found}))
