"""Whether a pod still has processes: the kernel's word, not the API server's.

After a force delete, the API object is gone for seconds while the processes run. Looked up in the host's cgroup file
system (read-only), version 1 or 2, cgroupfs or systemd driver.
"""

from collections.abc import Iterator
from pathlib import Path

_QOS = ("", "burstable", "besteffort")
# Version 1 has one tree per controller; any one that the kubelet uses will do.
_CONTROLLERS = ("", "memory", "pids", "cpu", "cpu,cpuacct", "systemd", "devices")


class PodProcesses:
    """Finds the processes of pods below one cgroup mount."""

    def __init__(self, root: Path | None, kubelet_root: str = "") -> None:
        self._root = root
        self._kubelet_root = kubelet_root.strip("/")

    @property
    def known(self) -> bool:
        """Whether there is a cgroup file system to look at."""
        return self._root is not None and self._root.is_dir()

    def of(self, uid: str) -> tuple[int, ...]:
        """Return the process ids of the pod, sorted; empty when it has none (or no cgroup any more)."""
        return tuple(sorted({pid for directory in self._directories(uid) for pid in _pids(directory)}))

    def _directories(self, uid: str) -> Iterator[Path]:
        if self._root is None or not uid:
            return
        for controller in _CONTROLLERS:
            base = self._root / controller / self._kubelet_root
            for relative in _candidates(uid):
                directory = base / relative
                if directory.is_dir():
                    yield directory


def _candidates(uid: str) -> Iterator[Path]:
    for qos in _QOS:
        yield Path("kubepods", *([qos] if qos else []), f"pod{uid}")
        infix = f"-{qos}" if qos else ""
        parents = ("kubepods.slice", *([f"kubepods-{qos}.slice"] if qos else []))
        yield Path(*parents, f"kubepods{infix}-pod{uid.replace('-', '_')}.slice")


def _pids(directory: Path) -> Iterator[int]:
    for file in directory.rglob("cgroup.procs"):
        try:
            yield from (int(line) for line in file.read_text().split())
        except (OSError, ValueError):
            continue
