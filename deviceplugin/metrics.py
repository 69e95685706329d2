"""What the plugin counts. One registry per daemon, so that several run in one process under test."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_CALL_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)


class PluginMetrics:
    """All metrics of the device plugin; names start with ``gpuslice_plugin_``."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"gpuslice_plugin_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"gpuslice_plugin_{name}", text, labels, registry=registry)

        self.registrations = counter("registrations", "Registrations that ended with an open stream.", "resource")
        self.registration_failures = counter("registration_failures", "Registrations that did not.", "resource")
        self.registered = gauge("registered", "1 while the kubelet has a ListAndWatch stream open.", "resource")
        self.registered_after = gauge(
            "registered_after_seconds", "Time from NVML's inventory, and the node's lock, to the first registration."
        )
        self.lists_sent = counter("lists_sent", "Device lists sent to the kubelet.", "resource")
        self.refusals = counter("refusals", "Calls of the kubelet answered with an error.", "resource", "call")
        self.identity = counter(
            "identity", "Allocations by how their container was identified at Allocate.", "resource", "layer"
        )
        self.steered = counter(
            "steered", "Allocations by whether the kubelet took the scheduler's slices.", "resource", "outcome"
        )
        self.delivered = counter(
            "delivered", "Container starts by what the checkpoint said about the allocation.", "resource", "outcome"
        )
        self.guarded = counter("guarded", "Container starts held back or refused, by reason.", "resource", "outcome")
        self.drift = gauge("drift", "Findings of the last audit, by kind.", "kind")
        self.double_allocations = counter(
            "double_allocations", "Times that one slice was found in two living pods, by scenario.", "kind"
        )
        self.card_healthy = gauge("card_healthy", "1 when the card is healthy.", "uuid")
        self.card_transitions = counter("card_transitions", "Health changes.", "uuid", "to")
        self.slices = gauge("slices", "Slices offered, by state.", "resource", "state")
        self.reloads = counter("reloads", "Configuration reloads, by outcome.", "outcome")
        self.seconds = Histogram(
            "gpuslice_plugin_call_seconds",
            "Duration of the kubelet's calls.",
            ("resource", "call"),
            registry=registry,
            buckets=_CALL_SECONDS,
        )
