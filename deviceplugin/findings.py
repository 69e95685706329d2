"""Things an administrator must see: one Event on each pod involved, one metric, one log line that names them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from deviceplugin.metrics import PluginMetrics
from deviceplugin.tenants import Tenant

log = structlog.get_logger(__name__)

REASON = "GpuDoubleAllocation"
_REMEMBERED = 1000


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with who holds what. Equal findings are the same finding, however often they are seen."""

    kind: str
    """``same-slice``, ``same-id``, ``lingering``, or a kind of deviceplugin.audit."""
    subject: str
    """The slice, device ID or card."""
    uids: tuple[str, ...]
    """The pods, the one that was there first first."""
    text: str


class EventSink(Protocol):
    """Writes Events; the real one is the daemon's recorder."""

    def pod_event(self, tenant: Tenant, reason: str, message: str) -> None:
        """Write a Warning on a pod."""

    def node_event(self, reason: str, message: str) -> None:
        """Write a Warning on the node."""


class Reporter:
    """Reports each finding once while it lasts."""

    def __init__(self, metrics: PluginMetrics, sink: EventSink | None = None) -> None:
        self._metrics = metrics
        self.sink = sink
        self.reported: dict[tuple[str, str, tuple[str, ...]], Finding] = {}

    def report(self, finding: Finding, tenants: Mapping[str, Tenant]) -> None:
        """Report a finding, unless it was reported before."""
        key = (finding.kind, finding.subject, finding.uids)
        if key in self.reported:
            return
        self.reported[key] = finding
        while len(self.reported) > _REMEMBERED:
            self.reported.pop(next(iter(self.reported)))
        self._metrics.double_allocations.labels(finding.kind).inc()
        names = [tenants[uid].full_name if uid in tenants else uid for uid in finding.uids]
        log.error("double_allocation", kind=finding.kind, subject=finding.subject, pods=names, text=finding.text)
        if self.sink is None:
            return
        known = [tenants[uid] for uid in finding.uids if uid in tenants]
        for tenant in known:
            self.sink.pod_event(tenant, REASON, finding.text)
        if not known:
            self.sink.node_event(REASON, finding.text)

    def over(self, still: set[tuple[str, str, tuple[str, ...]]], kinds: frozenset[str]) -> None:
        """Forget findings of these kinds that are not in `still`, so that they are reported anew when they recur."""
        for key in [key for key in self.reported if key[0] in kinds and key not in still]:
            del self.reported[key]
