"""Following another process's leadership: we lead while the Lease is held by the process that we belong to.

A scheduler pod holds a kube-scheduler, which elects by the Lease, and us beside it. Two elections could name two
different pods; so we only watch. The holder writes ``<identity>_<random>``.

The holder may lose the Lease a lease time after its last renewal. All we see is that a renewal happened between two
looks, so we count from the earlier one, and stop believing ``renew_deadline_seconds`` after it: before anybody else may
take the Lease, also when we were paused in between.
"""

from collections.abc import Callable

import structlog

from gpuslice.cluster.client import KubeClient
from gpuslice.cluster.errors import ApiError, Unreachable
from gpuslice.cluster.lease import ElectionTerms, Lease
from gpuslice.cluster.resources import LEASES
from gpuslice.cluster.timing import REAL_TIME, Timing
from gpuslice.devices.decoding import UNREADABLE

log = structlog.get_logger(__name__)

LOOK_SECONDS = 0.5


class LeaseFollower:
    """Tells whether our companion leads; has the face of :class:`gpuslice.cluster.lease.LeaderElector`."""

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
        self._seen: tuple[str, str | None] | None = None
        self._looked_at: float | None = None
        self._renewed_after: float | None = None
        self._told = False
        self.holder = ""

    def leads(self) -> bool:
        """Whether our companion certainly holds the Lease at this moment."""
        after = self._renewed_after
        return (
            after is not None
            and self._is_companion(self.holder)
            and self._timing.clock() - after < self._terms.renew_deadline_seconds
        )

    async def run(self) -> None:
        """Look at the Lease until cancelled."""
        while True:
            await self.attempt()
            await self._timing.sleep(LOOK_SECONDS)

    async def attempt(self) -> None:
        """Look once, and tell ``on_change`` when the answer differs from the last one."""
        started_at = self._timing.clock()
        terms = self._terms
        try:
            lease = await self._client.get(LEASES, terms.name, Lease, namespace=terms.namespace)
        except (ApiError, Unreachable, *UNREADABLE) as error:
            log.warning("lease_not_read", lease=f"{terms.namespace}/{terms.name}", error=str(error))
        else:
            self._note(lease, started_at)
        leads = self.leads()
        if leads != self._told:
            self._told = leads
            log.info("leadership_changed", leads=leads, identity=terms.identity, holder=self.holder)
            if self._on_change is not None:
                self._on_change(leads)

    def _note(self, lease: Lease, started_at: float) -> None:
        self.holder = lease.spec.holder_identity or ""
        mark = (self.holder, lease.spec.renew_time)
        if self._seen is not None and mark != self._seen:
            self._renewed_after = self._looked_at
        self._seen, self._looked_at = mark, started_at

    def _is_companion(self, holder: str) -> bool:
        return holder == self._terms.identity or holder.startswith(f"{self._terms.identity}_")
