"""cgroups of the test nodes: one sub-tree for each cluster, made before the kubelets start, removed after they ended.

Works on cgroup v1 (one hierarchy per controller) and v2. The name carries the process id of the test run, so a later
run removes what a killed one left.
"""

import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
PREFIX = "gpuslice-test-"
REMOVE_SECONDS = 5.0


def hierarchies() -> list[Path]:
    """Return the root of every cgroup hierarchy that a kubelet uses."""
    if (MOUNT / "cgroup.controllers").exists():
        return [MOUNT]
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [Path(fields[1]) for fields in map(str.split, lines) if fields[2] == "cgroup"]


def create(name: str) -> str:
    """Create a sub-tree in every hierarchy and return its path below the root, for kubelet's cgroupRoot."""
    for root in hierarchies():
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        inside = [level for level in [folder, *folder.parents] if level == root or root in level.parents]
        for level in reversed(inside):
            _prepare(level)
    return f"/{name}"


def _prepare(folder: Path) -> None:
    """Give children of a cgroup every controller (v2), and CPUs and memory nodes (v1 cpuset starts without)."""
    if (folder / "cgroup.controllers").exists():
        for controller in (folder / "cgroup.controllers").read_text().split():
            with suppress(OSError):
                (folder / "cgroup.subtree_control").write_text(f"+{controller}")
    for name in ("cpuset.cpus", "cpuset.mems"):
        file, above = folder / name, folder.parent / name
        if file.exists() and above.exists() and not file.read_text().strip():
            file.write_text(above.read_text())


def remove(name: str) -> None:
    """Kill what still runs in a sub-tree and remove it from every hierarchy."""
    deadline = time.monotonic() + REMOVE_SECONDS
    while not _remove_once(name):
        if time.monotonic() > deadline:
            return
        time.sleep(0.05)


def _remove_once(name: str) -> bool:
    done = True
    for root in hierarchies():
        top = root / name
        if not top.exists():
            continue
        for folder, _, _ in os.walk(top, topdown=False):
            for pid in processes(Path(folder)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with suppress(OSError):
                Path(folder).rmdir()
        done = done and not top.exists()
    return done


def processes(folder: Path) -> list[int]:
    """Return the ids of the processes in one cgroup; none if it is gone."""
    try:
        return [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def remove_stale() -> list[str]:
    """Remove the sub-trees of test runs that no longer live; returns their names."""
    stale = set()
    for root in hierarchies():
        for folder in root.glob(f"{PREFIX}*"):
            owner = re.match(rf"{PREFIX}(\d+)-", folder.name)
            if owner and not Path(f"/proc/{owner.group(1)}").exists():
                stale.add(folder.name)
    for name in stale:
        remove(name)
    return sorted(stale)
