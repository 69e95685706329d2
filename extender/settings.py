"""Settings of the extender."""

import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from gpuslice.service.settings import DaemonSettings, Flag


@dataclass(frozen=True, kw_only=True)
class ExtenderSettings(DaemonSettings):
    """Scheduler extender: picks the exact card for every pod that asks for a share."""

    listen: Annotated[str, Flag("HOST:PORT for kube-scheduler; keep it on loopback or set the TLS files")] = (
        "127.0.0.1:8888"
    )
    tls_cert: Annotated[Path | None, Flag("PEM certificate for --listen; reloaded when it changes")] = None
    tls_key: Annotated[Path | None, Flag("PEM key of --tls-cert")] = None
    tls_client_ca: Annotated[Path | None, Flag("PEM authority of the clients let in (mutual TLS)")] = None
    leader_elect: Annotated[bool, Flag("answer only while holding the Lease")] = True
    follow_lease: Annotated[
        bool,
        Flag("lead while the Lease is held by the kube-scheduler of our pod (<identity>_…); no election of our own"),
    ] = False
    namespace: Annotated[str, Flag("namespace of the Lease")] = "gpuslice-system"
    lease_name: Annotated[str, Flag("name of the Lease")] = "gpuslice-scheduler"
    identity: Annotated[str, Flag("name of this replica in the Lease; unique")] = field(
        default_factory=socket.gethostname
    )
    lease_seconds: Annotated[float, Flag("seconds a silent leader keeps the Lease")] = 15.0
    renew_deadline_seconds: Annotated[float, Flag("seconds after which a leader that cannot renew stops")] = 10.0
    lease_retry_seconds: Annotated[float, Flag("seconds between attempts to take or renew the Lease")] = 2.0
    node_policy: Annotated[str, Flag("default node policy")] = "balanced"
    card_policy: Annotated[str, Flag("default card policy")] = "balanced"
    device_files: Annotated[tuple[Path, ...], Flag("YAML file of a device family; replaces the built-in families")] = ()
    scoring: Annotated[
        Literal["prioritize", "filter"], Flag("prioritize: score all nodes; filter: offer the best nodes only")
    ] = "prioritize"
    best_nodes: Annotated[int, Flag("most nodes offered with --scoring filter")] = 16
    assume_seconds: Annotated[float, Flag("seconds a decision is kept while its binding is unconfirmed")] = 30.0
    bind_timeout_seconds: Annotated[float, Flag("seconds for one binding; below kube-scheduler's httpTimeout")] = 4.0
    api_connections: Annotated[int, Flag("connections to the API server for bindings and patches")] = 16
    kept_decisions: Annotated[int, Flag("decisions kept for GET /decisions")] = 1000
    preemption: Annotated[bool, Flag("evict pods of lower priority for a pod that may preempt")] = True
    placement_events: Annotated[
        bool, Flag("write an Event on placed pods that says where and why; of a burst, on the last hundred")
    ] = True
    reserve_seconds: Annotated[float, Flag("seconds a share is kept for a pod whose victims are ending")] = 600.0
