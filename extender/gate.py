"""The gate for nodes whose kubelet cannot tell who is being admitted (older than 1.34, or podresources off).

There the device plugin can match a pod only by the sizes of its requests. So two pods that could be taken for one
another are not released to such a node at the same time: the second binding waits until the kubelet has admitted the
first. Other pods and other nodes do not wait, and nothing is locked: the state is what the pods themselves show.
"""

import asyncio

from gpuslice.devices.allocation import PodAllocation

BUSY = "another pod like it is being admitted by the kubelet of this node"
Signature = frozenset[tuple[str, int]]
"""Family and number of slices of each container: all that an Allocate call shows."""


def signature_of(allocation: PodAllocation) -> Signature:
    """What the kubelet will show of this pod."""
    return frozenset((shares[0].family, len(shares)) for shares in allocation.containers.values() if shares)


class Gate:
    """Pods released to a node and not admitted yet."""

    def __init__(self) -> None:
        self._released: dict[str, tuple[str, Signature]] = {}
        self._moved = asyncio.Event()

    def holds_back(self, node: str, uid: str, signature: Signature) -> bool:
        """Whether a pod that could be confused with this one is on its way to the node."""
        return any(
            where == node and other != uid and bool(signature & theirs)
            for other, (where, theirs) in self._released.items()
        )

    def release(self, uid: str, allocation: PodAllocation) -> None:
        """Note that a pod is on its way to its node."""
        self._released[uid] = (allocation.node, signature_of(allocation))

    def settled(self, uid: str) -> None:
        """The kubelet has admitted or refused the pod, or it is gone, or it was not bound after all."""
        if self._released.pop(uid, None) is not None:
            self._moved.set()
            self._moved = asyncio.Event()

    async def pass_through(self, uid: str, allocation: PodAllocation, *, seconds: float) -> bool:
        """Wait up to ``seconds`` for a free way and take it; False when the time is up."""
        signature = signature_of(allocation)
        try:
            async with asyncio.timeout(seconds):
                while self.holds_back(allocation.node, uid, signature):
                    await self._moved.wait()
        except TimeoutError:
            return False
        self.release(uid, allocation)
        return True
