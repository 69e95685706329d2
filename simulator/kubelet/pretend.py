"""Containers that only pretend to run: everything up to the start of the process is done, the process is not.

For benchmarks and for life in fast time, where ten thousand processes would measure the machine and not the plugin.
"""

import itertools
import signal
import time
from dataclasses import dataclass

from simulator.kubelet.podview import ContainerSpec, PodObject
from simulator.kubelet.runtime import Creation, RunningContainer, Runtime

# Above every pid that a kernel gives (2^22), so that no signal can reach anybody.
_pids = itertools.count((1 << 22) + 1)


@dataclass(frozen=True, slots=True)
class PretendProcess:
    """A process that is not there."""

    pid: int


class PretendRuntime(Runtime):
    """Starts nothing. A container runs until it is stopped; its environment and cgroup are as if it did run."""

    keep_history = False

    async def start(self, pod: PodObject, container: ContainerSpec, creation: Creation) -> RunningContainer:
        """Record the container as running."""
        process = PretendProcess(next(_pids))
        directory = self.cgroup(pod.uid, container.name)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cgroup.procs").write_text(f"{process.pid}\n")
        log_file = self.logs / "none"
        running = RunningContainer(pod, container, creation, process, log_file, time.time())
        if self.keep_history:
            self.history.append(running)
        return running

    async def stop(self, running: RunningContainer, grace_seconds: float) -> None:  # noqa: ARG002
        """End the container at once."""
        self.signal(running, signal.SIGKILL)

    def signal(self, running: RunningContainer, number: signal.Signals) -> None:
        """End the container, whatever the signal."""
        if running.exit_code is None:
            running.exit_code = -number
            running.finished_at = time.time()
            procs = self.cgroup(running.pod.uid, running.spec.name) / "cgroup.procs"
            if procs.exists():
                procs.write_text("")
            running.ended.set()
