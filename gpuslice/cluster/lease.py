"""Leader election on a Lease: at most one process believes that it leads, also after it was paused.

The holder renews every ``retry_seconds`` and stops believing ``renew_deadline_seconds`` after the last renewal it
*started*; others wait ``lease_seconds`` of their own clock without seeing a renewal before they take over. As
renew_deadline < lease, a process that was stopped for a while finds by its own clock that it no longer leads, before
it can act. Nobody compares wall clocks of two machines.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import structlog

from gpuslice.cluster.client import KubeClient
from gpuslice.cluster.errors import ApiError, Conflict, NotFound, Unreachable
from gpuslice.cluster.resources import LEASES
from gpuslice.cluster.timing import REAL_TIME, Timing
from gpuslice.devices.decoding import UNREADABLE
from gpuslice.devices.pods import Metadata

log = structlog.get_logger(__name__)


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """coordination.k8s.io/v1 LeaseSpec."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(msgspec.Struct, frozen=True):
    """coordination.k8s.io/v1 Lease."""

    metadata: Metadata = Metadata()
    spec: LeaseSpec = LeaseSpec()


@dataclass(frozen=True, slots=True)
class ElectionTerms:
    """Names and times of one election; seconds."""

    namespace: str
    name: str
    identity: str
    lease_seconds: float = 15.0
    renew_deadline_seconds: float = 10.0
    retry_seconds: float = 2.0


def _micro_time(now: datetime) -> str:
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class LeaderElector:
    """Runs one candidate. ``leads()`` is the question to ask right before every act of a leader."""

    def __init__(
        self,
        client: KubeClient,
        terms: ElectionTerms,
        *,
        on_change: Callable[[bool], None] | None = None,
        timing: Timing = REAL_TIME,
    ) -> None:
        self._client = client
        self._terms = terms
        self._on_change = on_change
        self._timing = timing
        self._clock = timing.clock
        self._renewed_at: float | None = None
        self._seen: tuple[str | None, str | None] | None = None
        self._seen_at = 0.0
        self._told = False
        self.holder = ""

    def leads(self) -> bool:
        """Whether we may act as leader at this very moment, by our own clock."""
        return self._renewed_at is not None and self._clock() - self._renewed_at < self._terms.renew_deadline_seconds

    async def run(self) -> None:
        """Campaign and renew until cancelled; then give the Lease back so that a standby need not wait."""
        try:
            while True:
                await self.attempt()
                await self._timing.sleep(self._terms.retry_seconds * (0.8 + 0.4 * self._timing.draw()))
        finally:
            await self.release()

    async def attempt(self) -> None:
        """Try once to take or renew the Lease, and tell ``on_change`` when the answer differs from the last one."""
        started_at = self._clock()
        try:
            if await asyncio.wait_for(self._take_or_renew(), self._terms.renew_deadline_seconds / 2):
                self._renewed_at = started_at
            else:
                self._renewed_at = None
        except (ApiError, Unreachable, TimeoutError, *UNREADABLE) as error:
            log.warning(
                "lease_attempt_failed",
                lease=f"{self._terms.namespace}/{self._terms.name}",
                error=str(error) or "timed out",
            )
        self._tell()

    def _tell(self) -> None:
        leads = self.leads()
        if leads != self._told:
            self._told = leads
            log.info("leadership_changed", leads=leads, identity=self._terms.identity, holder=self.holder)
            if self._on_change is not None:
                self._on_change(leads)

    async def _take_or_renew(self) -> bool:
        terms = self._terms
        try:
            lease = await self._client.get(LEASES, terms.name, Lease, namespace=terms.namespace)
        except NotFound:
            return await self._write(None)
        holder = lease.spec.holder_identity or ""
        self.holder = holder
        if holder == terms.identity:
            return await self._write(lease)
        mark = (holder, lease.spec.renew_time)
        if mark != self._seen:
            self._seen, self._seen_at = mark, self._clock()
        promised_seconds = max(float(lease.spec.lease_duration_seconds or 0), terms.lease_seconds)
        if holder and self._clock() - self._seen_at < promised_seconds:
            return False
        return await self._write(lease)

    async def _write(self, lease: Lease | None) -> bool:
        terms, spec, stamp = self._terms, lease.spec if lease else LeaseSpec(), _micro_time(self._timing.now())
        ours = spec.holder_identity == terms.identity
        wanted = LeaseSpec(
            holder_identity=terms.identity,
            lease_duration_seconds=max(1, round(terms.lease_seconds)),
            acquire_time=(spec.acquire_time if ours else None) or stamp,
            renew_time=stamp,
            lease_transitions=(spec.lease_transitions or 0) + (0 if ours or lease is None else 1),
        )
        try:
            if lease is None:
                await self._client.create(LEASES, self._body(wanted, None), namespace=terms.namespace)
            else:
                body = self._body(wanted, lease.metadata.resource_version)
                await self._client.replace(LEASES, terms.name, body, namespace=terms.namespace)
        except Conflict:
            return False
        self.holder = terms.identity
        return True

    def _body(self, spec: LeaseSpec, resource_version: str | None) -> dict[str, object]:
        metadata = {"name": self._terms.name, "namespace": self._terms.namespace}
        if resource_version:
            metadata["resourceVersion"] = resource_version
        return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}

    async def release(self) -> None:
        """Stop leading and say so in the Lease, so that a standby need not wait for it to run out."""
        was_leader, self._renewed_at = self.leads(), None
        self._tell()
        if not was_leader:
            return
        terms = self._terms
        try:
            async with asyncio.timeout(1.0):
                lease = await self._client.get(LEASES, terms.name, Lease, namespace=terms.namespace)
                if lease.spec.holder_identity == terms.identity:
                    spec = msgspec.structs.replace(lease.spec, holder_identity="", lease_duration_seconds=1)
                    body = self._body(spec, lease.metadata.resource_version)
                    await self._client.replace(LEASES, terms.name, body, namespace=terms.namespace)
        except (ApiError, Unreachable, TimeoutError) as error:
            log.warning("lease_not_released", error=str(error) or "timed out")
