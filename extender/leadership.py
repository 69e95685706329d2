"""Who may answer and bind: the holder of the Lease, once it has read all pods after taking it."""

from collections.abc import Callable

from extender.feed import Feed
from gpuslice.cluster.following import LeaseFollower
from gpuslice.cluster.lease import LeaderElector


class Leadership:
    """Leads for ever without an elector. A standby follows the same watches, so its ledger is warm."""

    def __init__(self, feed: Callable[[], Feed]) -> None:
        self.elector: LeaderElector | LeaseFollower | None = None
        self._feed = feed
        self._needed = 0

    def leads(self) -> bool:
        """Whether we hold the Lease at this very moment."""
        return self.elector is None or self.elector.leads()

    def changed(self, leads: bool) -> None:
        """Read all pods again after taking the Lease: every binding of the last leader must be known."""
        if leads:
            self._needed = self._feed().pods.relist()

    def not_ready(self) -> str | None:
        """Reason for a 503, or None."""
        feed = self._feed()
        if not feed.loaded:
            return "the lists of nodes and pods have not arrived yet"
        if not feed.quotas_known:
            return "the list of resource quotas has not arrived yet"
        if not self.leads():
            return f"not the leader; that is {self.elector.holder if self.elector else ''!r}"
        if feed.pods.listed_for < self._needed:
            return "leader since a moment; reading all pods first"
        return None
