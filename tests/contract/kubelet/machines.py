"""What a kubelet under contract runs on: the few things that the stub and the real one do differently."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tests.cluster.harness.hardware import FakeCards

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Places:
    """Files and sockets of one node, as a program on the host names them."""

    plugins: Path
    """The device plugin directory, with kubelet.sock and the checkpoint."""
    pod_resources: Path
    cdi: Path
    cgroup_flags: Sequence[str]
    """How the node daemon finds the pods' cgroups."""

    @property
    def registration(self) -> Path:
        """The socket on which plugins register."""
        return self.plugins / "kubelet.sock"

    @property
    def checkpoint(self) -> Path:
        """The kubelet's record of allocated devices."""
        return self.plugins / "kubelet_internal_checkpoint"


class Machine(Protocol):
    """One node with its kubelet. Pods, node and sockets are the same on both kinds; this is what is not."""

    @property
    def kind(self) -> str:
        """`stub` or `real`."""

    @property
    def node(self) -> str:
        """Name of the Node object."""

    @property
    def places(self) -> Places:
        """Where everything is."""

    @property
    def folder(self) -> Path:
        """A folder of the node, with a short name, in which a row may keep files."""

    @property
    def kubeconfig(self) -> Path:
        """Of a user with all rights."""

    @property
    def cards(self) -> FakeCards:
        """The node's fake cards."""

    async def start_kubelet(self) -> None:
        """Start the kubelet's process; returns before it serves."""

    async def stop_kubelet(self) -> None:
        """End the kubelet at once; containers run on."""

    async def reboot(self) -> None:
        """End everything on the node at once and start the kubelet again; disks stay, memory does not."""

    def processes(self, pod: Json, container: str) -> list[int]:
        """Return the host's process ids of a container, its first process first; none unless it runs."""
