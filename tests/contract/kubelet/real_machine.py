"""The real kubelet with containerd and runc, on a real control plane without scheduler and controllers."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.build import ensure
from tests.cluster.harness import cgroups, hardware
from tests.cluster.harness.control_plane import ControlPlane
from tests.cluster.harness.images import app_image, pause_image, share_program
from tests.cluster.harness.node import Node, check_machine
from tests.cluster.harness.process import wait_until
from tests.contract.kubelet.machines import Json, Places

NODE = "real-node"


@dataclass(frozen=True, slots=True)
class RealMachine:
    """A node of tests/cluster/harness. Its processes are started in the main thread, see harness/process.py."""

    machine: Node
    cards: hardware.FakeCards
    kubeconfig: Path
    kind: str = "real"
    node: str = NODE

    @property
    def places(self) -> Places:
        """Where everything is."""
        paths = self.machine.paths
        flags = ["--cgroup-root=/sys/fs/cgroup", f"--cgroup-prefix={self.machine.cgroup}"]
        return Places(paths.device_plugins, paths.pod_resources_socket, paths.cdi, flags)

    @property
    def folder(self) -> Path:
        """Where a row may keep files."""
        return self.machine.paths.top

    async def start_kubelet(self) -> None:
        """Start it."""
        self.machine.start_kubelet()

    async def stop_kubelet(self) -> None:
        """Kill it."""
        self.machine.stop_kubelet()

    async def reboot(self) -> None:
        """End every process of the node; what was in memory file systems is gone."""
        self.machine.stop()
        for path in self.machine.paths.cdi.glob("*"):
            path.unlink()
        self.machine.reboot()

    def processes(self, pod: Json, container: str) -> list[int]:
        """Read the kernel's cgroups."""
        return self.machine.container_processes(pod, container)


@contextmanager
def real_machine(failures: Callable[[], int]) -> Iterator[RealMachine]:
    """Start control plane and node; the folder with their logs stays if there are more failures in the end."""
    failed_before = failures()
    check_machine()
    folder = Path(tempfile.mkdtemp(prefix="gpuslice-"))
    binaries = ensure()
    plane = ControlPlane(folder, binaries, [NODE])
    cards = hardware.FakeCards.create(folder / NODE / "gpu", node=1, count=2)
    libraries = [hardware.DRIVERS / name for name in ("libcuda.so.1", "libnvidia-ml.so.1")]
    programs = {"/usr/local/bin/share": share_program(folder)}
    app = app_image(programs, libraries, hardware.environment(hardware.IN_CONTAINER))
    mounts = {hardware.IN_CONTAINER: cards.folder}
    node = Node(NODE, plane, binaries=binaries, images=[pause_image(folder), app], mounts=mounts)
    started = False
    try:
        cgroups.remove_stale()
        plane.start()
        _make_default_account(plane)
        node.start()
        wait_until(
            lambda: plane.admin.find("nodes", None, NODE), what="the node has come", within_seconds=60,
            watched=[node.kubelet],
        )  # fmt: skip
        started = True
        yield RealMachine(node, cards, plane.admin_kubeconfig)
    finally:
        node.stop()
        plane.stop()
        cgroups.remove(f"{cgroups.PREFIX}{os.getpid()}-{folder.name}")
        if started and failures() == failed_before:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            plane.remove_data()
            print(f"\nlogs of the node are in {folder}")


def _make_default_account(plane: ControlPlane) -> None:
    """Make what the controller manager would: pods of a namespace need its service account."""
    wait_until(lambda: plane.admin.find("namespaces", None, "default"), what="namespace default", within_seconds=20)
    plane.admin.create("serviceaccounts", "default", {"metadata": {"name": "default"}})
