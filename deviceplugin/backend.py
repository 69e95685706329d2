"""What stands behind a device plugin's five calls: cards of our own, or any other device described in a file."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

from deviceplugin.devicelist import DeviceList
from gpuslice.devices.errors import GpusliceError
from gpuslice.devices.value import Value


class Refused(GpusliceError):
    """A call of the kubelet is answered with an error on purpose; the text reaches the pod's status."""


class Mount(Value, frozen=True):
    """A bind mount into the container."""

    host_path: str
    container_path: str
    read_only: bool = True


class DeviceNode(Value, frozen=True):
    """A device node made available in the container. `permissions` is a subset of ``rwm``."""

    host_path: str
    container_path: str
    permissions: str = "rw"


class Edits(Value, frozen=True):
    """Everything an allocation adds to its container, in whatever way the runtime is told."""

    env: dict[str, str] = msgspec.field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    annotations: dict[str, str] = msgspec.field(default_factory=dict)

    def merged(self, other: "Edits") -> "Edits":
        """Return both together; `other` wins where a variable or annotation is named twice."""
        return Edits(
            env=self.env | other.env,
            mounts=self.mounts + other.mounts,
            devices=self.devices + other.devices,
            cdi_devices=self.cdi_devices + other.cdi_devices,
            annotations=self.annotations | other.annotations,
        )


class Backend(Protocol):
    """The decisions behind one resource. Calls come from the kubelet, one admission at a time."""

    @property
    def resource(self) -> str:
        """Extended resource name."""

    @property
    def devices(self) -> DeviceList:
        """What ListAndWatch sends."""

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Name exactly `size` IDs of `available` that the kubelet should take. Never raises.

        Within about three seconds: the kubelet sets no deadline, and admits no other pod meanwhile.
        """

    def allocate(self, ids: Sequence[str]) -> Edits:
        """Answer an Allocate at once: a lookup, no call to anybody.

        Raises:
            Refused: nothing else is safe; the pod fails for good.
        """

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Check and deliver before a container starts; idempotent.

        Raises:
            Refused: not now; the kubelet asks again in 10 to 14 seconds.
        """


@runtime_checkable
class ForeseesAnswers(Protocol):
    """A backend that knows after a preference what the Allocate right after it will most likely be answered."""

    @property
    def expected(self) -> Edits | None:
        """What the next `allocate` is likely to return, the very object; None when that cannot be told."""
