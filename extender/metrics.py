"""What Prometheus sees of the extender."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpuslice.placement.ledger import Ledger

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """Counts and times as they happen."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.seconds = Histogram(
            "gpuslice_scheduler_verb_duration_seconds",
            "Time to answer a call of kube-scheduler.",
            ["verb"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self.attempts = Counter(
            "gpuslice_scheduler_attempts",
            "Pods judged or bound, by outcome.",
            ["verb", "outcome"],
            registry=registry,
        )


class LedgerCollector(Collector):
    """Reads the ledger when scraped."""

    def __init__(
        self, ledger: Ledger, counters: Callable[[], dict[str, float]], gauges: Callable[[], dict[str, float]]
    ) -> None:
        """``counters`` and ``gauges`` give more values by name, without prefix and suffix."""
        self._ledger = ledger
        self._counters = counters
        self._gauges = gauges

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        fleet = self._ledger.fleet
        found = {
            "nodes": float(len(fleet.row_of)),
            "pods_holding": float(sum(1 for held in self._ledger.holdings.values() if held.uses)),
            "pods_waiting": float(len(self._ledger.waiting)),
            "reservations": float(len(self._ledger.reservations)),
            "overcommitted_cards": float(len(self._ledger.conflicts)),
            "unreadable_allocations": float(sum(1 for held in self._ledger.holdings.values() if held.unreadable)),
            "cards": float(fleet.present.sum()),
            "memory_capacity_bytes": float(fleet.total_memory.sum(dtype="int64")) * 2**20,
            "memory_promised_bytes": float(fleet.used_memory.sum(dtype="int64")) * 2**20,
        }
        for name, value in (found | self._gauges()).items():
            yield GaugeMetricFamily(f"gpuslice_scheduler_{name}", name.replace("_", " "), value=value)
        for name, value in self._counters().items():
            yield CounterMetricFamily(f"gpuslice_scheduler_{name}", name.replace("_", " "), value=value)
