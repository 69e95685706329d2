"""What a pod was given: exact slices of exact cards, by container name."""

from collections.abc import Iterator, Mapping

from gpuslice.devices.inventory import card_of_slice
from gpuslice.devices.value import Value


class SliceShare(Value, frozen=True):
    """One slice of one card, exclusively one container's."""

    slice: str
    """``<card uuid>::<n>``"""
    memory_mib: int
    core_percent: int = 0
    """Compute cap in percent of the card; 0 means no cap."""
    family: str = "nvidia"
    exclusive: bool = False
    """Nobody else may share the card."""

    @property
    def card(self) -> str:
        """UUID of the card."""
        return card_of_slice(self.slice)


class PodAllocation(Value, frozen=True):
    """The decision for one pod. Containers that hold no device are absent."""

    node: str
    containers: Mapping[str, tuple[SliceShare, ...]]
    """Container name to shares, in the order in which the container sees its cards."""

    def shares(self) -> Iterator[tuple[str, SliceShare]]:
        """Yield (container name, share) for every share."""
        for name, shares in self.containers.items():
            for share in shares:
                yield name, share
