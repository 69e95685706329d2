"""The device list of one resource, versioned, for any number of ListAndWatch streams.

Every send makes the kubelet rewrite its checkpoint, so a list equal to the last one is not sent. Streams wait on a
version number, not on a queue: a stream that comes late or is slow sees the newest list and misses nothing.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from gpuslice.devices.errors import BadConfiguration

# grpc-go's default receive limit, which the kubelet uses; a longer list would end the stream over and over.
MAX_LIST_BYTES = 4 * 1024 * 1024
_BYTES_AROUND_AN_ID = 40


@dataclass(frozen=True, slots=True, order=True)
class Device:
    """One device ID as the kubelet sees it."""

    id: str
    healthy: bool = True
    numa: int | None = None


class DeviceList:
    """The current list; `publish` from the daemon, `wait_for_change` from streams."""

    def __init__(self, resource: str) -> None:
        self.resource = resource
        self.devices: tuple[Device, ...] = ()
        self.version = 0
        self.ids: frozenset[str] = frozenset()
        """All listed IDs."""
        self._changed = asyncio.Condition()

    async def publish(self, devices: Iterable[Device]) -> bool:
        """Replace the list; return whether that changed anything.

        Raises:
            BadConfiguration: The list would not fit into one message to the kubelet.
        """
        new = tuple(sorted(devices))
        size = sum(len(device.id) + _BYTES_AROUND_AN_ID for device in new)
        if size > MAX_LIST_BYTES:
            raise BadConfiguration(
                self.resource,
                "device list",
                f"{len(new)} devices need {size} bytes, the kubelet accepts 4 MiB",
                "offer fewer slices per card",
            )
        if new == self.devices and self.version:
            return False
        async with self._changed:
            self.devices = new
            self.ids = frozenset(device.id for device in new)
            self.version += 1
            self._changed.notify_all()
        return True

    async def wait_for_change(self, seen: int) -> tuple[int, tuple[Device, ...]]:
        """Wait until the version differs from `seen` (0: nothing sent yet) and return version and list."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.version != seen)
            return self.version, self.devices
