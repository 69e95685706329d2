"""Kubernetes Events: what an owner of a pod or node must see, said once and counted afterwards."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from gpuslice.cluster.client import KubeClient
from gpuslice.cluster.errors import ApiError, NotFound, Unreachable
from gpuslice.cluster.resources import EVENTS, NODES, PODS, Resource
from gpuslice.cluster.timing import REAL_TIME
from gpuslice.devices.pods import Metadata

log = structlog.get_logger(__name__)

MAX_MESSAGE_CHARACTERS = 1024
"""The API server refuses longer messages."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The object an Event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str

    @classmethod
    def of(cls, resource: Resource, metadata: Metadata) -> "Subject":
        """Refer to an object by its metadata."""
        return cls(resource.api_version, resource.kind, metadata.namespace, metadata.name, metadata.uid)

    @classmethod
    def pod(cls, metadata: Metadata) -> "Subject":
        """Refer to a pod."""
        return cls.of(PODS, metadata)

    @classmethod
    def node(cls, name: str) -> "Subject":
        """Refer to a node; its name stands for the uid, as ``kubectl describe node`` expects."""
        return cls(NODES.api_version, NODES.kind, "", name, name)


@dataclass(slots=True)
class _Written:
    """An Event that exists in the cluster."""

    name: str
    count: int
    written_at: datetime


class EventRecorder:
    """Queues Events and writes them from one task; callers never wait and never fail.

    The same (subject, reason, message) is written once; repeats raise the count, at most once per ``repeat_seconds``.
    When the queue is full the oldest entry is dropped and counted in :attr:`dropped`.
    """

    def __init__(
        self,
        client: KubeClient,
        component: str,
        instance: str,
        *,
        now: Callable[[], datetime] = REAL_TIME.now,
        repeat_seconds: float = 600.0,
        capacity: int = 1000,
    ) -> None:
        self._client = client
        self._component = component
        self._instance = instance
        self._now = now
        self._repeat_seconds = repeat_seconds
        self._capacity = capacity
        self._queue: asyncio.Queue[tuple[Subject, str, str, str]] = asyncio.Queue(capacity)
        self._known: OrderedDict[tuple[Subject, str, str], _Written] = OrderedDict()
        self.dropped = 0

    def record(self, subject: Subject, kind: str, reason: str, message: str) -> None:
        """Say something about an object; ``kind`` is Normal or Warning, ``reason`` one PascalCase word."""
        if self._queue.full():
            self._queue.get_nowait()
            self.dropped += 1
        self._queue.put_nowait((subject, kind, reason, message[:MAX_MESSAGE_CHARACTERS]))

    async def run(self) -> None:
        """Write queued Events until cancelled; one that cannot be written is logged and forgotten."""
        while True:
            subject, kind, reason, message = await self._queue.get()
            try:
                await self._write(subject, kind, reason, message)
            except (ApiError, Unreachable) as error:
                log.warning(
                    "event_not_written", object=f"{subject.namespace}/{subject.name}", reason=reason, error=str(error)
                )

    async def drain(self) -> None:
        """Write what is queued now; for tests and for a clean stop."""
        while not self._queue.empty():
            await self._write(*self._queue.get_nowait())

    async def _write(self, subject: Subject, kind: str, reason: str, message: str) -> None:
        key, now = (subject, reason, message), self._now()
        known = self._known.get(key)
        if known is not None:
            known.count += 1
            if (now - known.written_at).total_seconds() < self._repeat_seconds:
                return
            if await self._raise_count(subject, known, now):
                return
        name = f"{subject.name}.{int(now.timestamp() * 1e9):x}"
        await self._client.create(
            EVENTS, self._body(subject, kind, reason, message, name, now), namespace=_home(subject)
        )
        self._known[key] = _Written(name, 1, now)
        while len(self._known) > self._capacity:
            self._known.popitem(last=False)

    async def _raise_count(self, subject: Subject, known: _Written, now: datetime) -> bool:
        try:
            body = {"count": known.count, "lastTimestamp": _seconds(now)}
            await self._client.patch(EVENTS, known.name, body, namespace=_home(subject))
        except NotFound:
            return False
        known.written_at = now
        return True

    def _body(
        self, subject: Subject, kind: str, reason: str, message: str, name: str, now: datetime
    ) -> dict[str, object]:
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": name, "namespace": _home(subject)},
            "involvedObject": {
                "apiVersion": subject.api_version,
                "kind": subject.kind,
                "namespace": subject.namespace,
                "name": subject.name,
                "uid": subject.uid,
            },
            "reason": reason,
            "message": message,
            "type": kind,
            "count": 1,
            "firstTimestamp": _seconds(now),
            "lastTimestamp": _seconds(now),
            "source": {"component": self._component, "host": self._instance},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
        }


def _home(subject: Subject) -> str:
    return subject.namespace or "default"


def _seconds(now: datetime) -> str:
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
