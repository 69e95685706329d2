"""What the cluster's administrator decides about pods with devices."""

from dataclasses import dataclass, field
from typing import Literal

from webhook.namespaces import NamespacePolicies

Stance = Literal["deny", "warn", "allow"]

DEFAULT_SCHEDULER = "gpuslice-scheduler"
DEFAULT_NAMESPACE = "gpuslice-system"
DAEMONS = ("gpuslice-scheduler", "gpuslice-webhook", "gpuslice-node")


def service_account(namespace: str, name: str) -> str:
    """Return the user name of a service account."""
    return f"system:serviceaccount:{namespace}:{name}"


@dataclass(frozen=True, slots=True)
class Policy:
    """All choices; the defaults are the ones in docs/guide/webhook.md."""

    scheduler_name: str = DEFAULT_SCHEDULER
    replaced_schedulers: frozenset[str] = frozenset({"", "default-scheduler", "hami-scheduler"})
    """Scheduler names that become ours."""
    other_schedulers: frozenset[str] = frozenset()
    """Scheduler names that are left alone, because those schedulers work with us (batch)."""
    trusted_users: frozenset[str] = field(
        default_factory=lambda: frozenset(service_account(DEFAULT_NAMESPACE, name) for name in DAEMONS)
    )
    """Who may write our annotations."""
    privileged: Stance = "deny"
    """Pods with a privileged container: it sees every card."""
    host_pid: Stance = "deny"
    """Pods in the node's process namespace: they reach into other containers."""
    host_devices: Stance = "deny"
    """Pods that mount device nodes or our own files from the node."""
    hide_cards: bool = False
    """Set NVIDIA_VISIBLE_DEVICES=none in the containers of a GPU pod that ask for no card."""
    runtime_class: str = ""
    """runtimeClassName for GPU pods that name none; empty leaves it."""
    namespaces: NamespacePolicies = field(default_factory=NamespacePolicies)
