"""Whether a pod still has processes: the kernel's word, not the API server's.

After a force delete, the API object is gone for seconds while the processes run. Looked up in the host's cgroup file
system (read-only), version 1 or 2, cgroupfs or systemd driver.
"""

import os
from collections.abc import Iterator
from pathlib import Path

_QOS = ("", "burstable", "besteffort")
# Version 1 has one tree per controller; a pod's processes are in all that the kubelet uses, so the first will do.
_CONTROLLERS = ("", "memory", "pids", "cpu", "cpu,cpuacct", "systemd", "devices")


class PodProcesses:
    """Finds the processes of pods below one cgroup mount."""

    def __init__(self, root: Path | None, kubelet_root: str = "") -> None:
        self._root = root
        self._kubelet_root = kubelet_root.strip("/")
        self._base = ""
        self._systemd = False

    @property
    def known(self) -> bool:
        """Whether the kubelet's part of the cgroup file system has been found."""
        return bool(self._base) or self._find()

    def of(self, uid: str) -> tuple[int, ...]:
        """Return the process ids of the pod, sorted; empty when it has none (or no cgroup any more)."""
        if not uid or not self.known:
            return ()
        for directory in self._candidates(uid):
            if os.path.isdir(directory):
                return tuple(sorted(set(_pids(directory))))
        return ()

    def _find(self) -> bool:
        """Look for the kubelet's tree: it appears with the first pod of the node."""
        for controller in _CONTROLLERS if self._root is not None else ():
            base = os.path.join(str(self._root), controller, self._kubelet_root)
            for name, systemd in (("kubepods", False), ("kubepods.slice", True)):
                if os.path.isdir(os.path.join(base, name)):
                    self._base, self._systemd = os.path.join(base, name), systemd
                    return True
        return False

    def _candidates(self, uid: str) -> Iterator[str]:
        for qos in _QOS:
            if self._systemd:
                infix = f"-{qos}" if qos else ""
                parent = f"kubepods-{qos}.slice" if qos else ""
                yield os.path.join(self._base, parent, f"kubepods{infix}-pod{uid.replace('-', '_')}.slice")
            else:
                yield os.path.join(self._base, qos, f"pod{uid}")


def _pids(directory: str) -> Iterator[int]:
    for parent, _, files in os.walk(directory):
        if "cgroup.procs" in files:
            try:
                with open(os.path.join(parent, "cgroup.procs"), encoding="ascii") as file:
                    yield from (int(line) for line in file)
            except (OSError, ValueError):
                continue
