"""A test cluster leaves nothing behind, however its owner ends, and two of them do not disturb each other."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.harness import cgroups
from tests.cluster.harness.process import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

OWNER = """
import signal
from tests.cluster.harness import pods
from tests.cluster.harness.cluster import Cluster
cluster = Cluster(nodes=("solo",), cards=1)
try:
    cluster.start()
    cluster.apply(pods.card_pod("one", 1000))
    cluster.wait_running("one")
    print(cluster.folder, flush=True)
    signal.pause()
finally:
    cluster.stop()
"""
ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120.0


def host_folders() -> dict[str, bool]:
    """Return which folders a kubelet and a containerd make on their host exist."""
    folders = (
        "/var/lib/kubelet",
        "/run/containerd",
        "/var/lib/containerd",
        "/opt/containerd",
        "/var/log/pods",
        "/etc/cni",
    )
    return {folder: Path(folder).exists() for folder in folders}


HOST_FOLDERS = host_folders()


class Owner:
    """A process that owns a cluster of one node with a running pod."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", OWNER], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self.folder = ""

    def wait_started(self) -> None:
        assert self.process.stdout is not None
        self.folder = self.process.stdout.readline().strip()
        assert self.folder, "the cluster did not start"

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        code = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def processes_of(folder: str) -> list[str]:
    """Return the command lines of all processes that have to do with a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if folder.encode() in text:
            found.append(f"{entry.name}: {text[:200]!r}")
    return found


def mounts_of(folder: str) -> list[str]:
    return [line for line in Path("/proc/self/mounts").read_text().splitlines() if folder in line]


def groups_of(pid: int) -> list[Path]:
    return [group for root in cgroups.hierarchies() for group in root.glob(f"{cgroups.PREFIX}{pid}-*")]


def assert_nothing_left(owner: Owner) -> None:
    wait_until(
        lambda: not processes_of(owner.folder),
        what="no process left",
        within_seconds=15,
        explain=lambda: "\n".join(processes_of(owner.folder)),
    )
    assert mounts_of(owner.folder) == []
    assert host_folders() == HOST_FOLDERS


def test_two_clusters_side_by_side_one_interrupted_one_killed() -> None:
    interrupted, killed = Owner(), Owner()
    interrupted.wait_started()
    killed.wait_started()

    assert interrupted.end(signal.SIGINT) != 0
    assert_nothing_left(interrupted)
    assert not Path(interrupted.folder).exists()
    assert groups_of(interrupted.process.pid) == []
    assert processes_of(killed.folder), "the other one runs on"

    assert killed.end(signal.SIGKILL) == -signal.SIGKILL
    assert_nothing_left(killed)
    cgroups.remove_stale()
    assert groups_of(killed.process.pid) == []
    shutil.rmtree(killed.folder)
