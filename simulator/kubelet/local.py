"""A node without an API server: one in-memory pod list that a stub kubelet and a plugin in the same process follow.

For tests and benchmarks of the node alone. Writes reach the kubelet and the plugin at once, unless a test puts itself
in between to stage a watch that is behind.
"""

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from gpuslice.devices.pods import Pod
from simulator.kubelet.api import Seen
from simulator.kubelet.podview import PodObject

PodBody = dict[str, Any]


class LocalApi:
    """Implements simulator.kubelet.api.NodeApi for one node."""

    def __init__(self) -> None:
        self.bodies: dict[str, PodBody] = {}
        """Pod objects by UID."""
        self.devices: dict[str, tuple[int, int]] = {}
        self.plugin_sees: Callable[[Pod], None] = lambda _pod: None
        self.plugin_loses: Callable[[str], None] = lambda _uid: None
        self._see: Seen | None = None
        self._lose: Seen | None = None
        self._uids = (f"00000000-0000-4000-8000-{number:012x}" for number in itertools.count(1))
        self._changed = asyncio.Condition()

    def connect(self, sees: Callable[[Pod], None], loses: Callable[[str], None]) -> None:
        """Let a plugin follow the pods; it is shown the present ones first."""
        self.plugin_sees, self.plugin_loses = sees, loses
        for body in self.bodies.values():
            sees(msgspec.convert(body, Pod))

    # -- what a test does -----------------------------------------------------------------------------------------

    def create(self, body: PodBody) -> str:
        """Add a pod that is bound already; return its UID."""
        uid = next(self._uids)
        metadata = {"namespace": "default", **body["metadata"], "uid": uid}
        self.bodies[uid] = {**body, "metadata": metadata, "status": {"phase": "Pending"}}
        self._tell(uid)
        return uid

    def create_together(self, bodies: Sequence[PodBody], order: Sequence[int]) -> list[str]:
        """Add pods that the plugin knows all of before the kubelet sees the first, in an order of its own."""
        see, self._see = self._see, None
        uids = [self.create(body) for body in bodies]
        self._see = see
        if see is not None:
            for number in order:
                see(msgspec.convert(self.bodies[uids[number]], PodObject))
        return uids

    def delete(self, uid: str, grace_seconds: int | None = None) -> None:
        """Ask for a graceful deletion."""
        metadata = self.bodies[uid]["metadata"]
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        if grace_seconds is not None:
            metadata["deletionGracePeriodSeconds"] = grace_seconds
        self._tell(uid)

    def force_delete(self, uid: str) -> None:
        """Remove the object at once; its processes run on for a while."""
        body = self.bodies.pop(uid)
        if self._lose is not None:
            self._lose(msgspec.convert(body, PodObject))
        self.plugin_loses(uid)

    def status(self, uid: str) -> Mapping[str, Any]:
        """Return a pod's status; empty when the pod is gone."""
        body = self.bodies.get(uid)
        found: Mapping[str, Any] = body["status"] if body is not None else {}
        return found

    def phase(self, uid: str) -> str:
        """Return a pod's phase; empty when the pod is gone."""
        return str(self.status(uid).get("phase", ""))

    async def until(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        """Wait until a condition on the pods holds.

        Raises:
            TimeoutError: It did not within `seconds`.
        """
        async with asyncio.timeout(seconds), self._changed:
            while not condition():
                # Conditions may also look at things that do not notify.
                try:
                    async with asyncio.timeout(0.05):
                        await self._changed.wait()
                except TimeoutError:
                    continue

    # -- NodeApi --------------------------------------------------------------------------------------------------

    async def register_node(self, name: str) -> None:
        """Nothing to do."""

    async def report_node(self, name: str, devices: Mapping[str, tuple[int, int]]) -> None:  # noqa: ARG002
        """Remember capacity and allocatable."""
        self.devices = dict(devices)
        await self._notify()

    async def follow(self, node: str, see: Seen, lose: Seen) -> None:  # noqa: ARG002
        """Follow until cancelled; the present pods come first."""
        self._see, self._lose = see, lose
        try:
            for body in list(self.bodies.values()):
                see(msgspec.convert(body, PodObject))
            await asyncio.Event().wait()
        finally:
            self._see = self._lose = None

    async def report_pod(self, pod: PodObject, status: Mapping[str, object]) -> None:
        """Merge a status and show it to the plugin."""
        body = self.bodies.get(pod.uid)
        if body is None:
            return
        body["status"] = {key: value for key, value in {**body["status"], **status}.items() if value is not None}
        self.plugin_sees(msgspec.convert(body, Pod))
        await self._notify()

    async def confirm_deleted(self, pod: PodObject) -> None:
        """Remove the object of a pod whose containers have ended."""
        if self.bodies.pop(pod.uid, None) is not None:
            self.plugin_loses(pod.uid)
        await self._notify()

    def _tell(self, uid: str) -> None:
        body = self.bodies[uid]
        self.plugin_sees(msgspec.convert(body, Pod))
        if self._see is not None:
            self._see(msgspec.convert(body, PodObject))

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
