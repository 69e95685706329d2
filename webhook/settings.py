"""Command line of the webhook."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from gpuslice.devices.errors import BadConfiguration
from gpuslice.devices.families import Families, load_builtin, load_files
from gpuslice.service.settings import DaemonSettings, Flag
from webhook.namespaces import NamespacePolicies, parse_namespace_policies
from webhook.policy import DAEMONS, DEFAULT_NAMESPACE, DEFAULT_SCHEDULER, Policy, Stance, service_account


@dataclass(frozen=True, kw_only=True)
class WebhookSettings(DaemonSettings):
    """Judge and complete pods that ask for devices."""

    listen: Annotated[str, Flag("HOST:PORT for the API server's calls, over TLS")] = "0.0.0.0:9443"
    tls_cert: Annotated[Path | None, Flag("PEM file with the serving certificate; read again when it changes")] = None
    tls_key: Annotated[Path | None, Flag("PEM file with its key")] = None
    tls_client_ca: Annotated[Path | None, Flag("PEM file; only clients it certifies are served (mutual TLS)")] = None
    self_signed: Annotated[Path | None, Flag("make ca.crt, tls.crt and tls.key in this folder if they are absent")] = (
        None
    )
    self_signed_host: Annotated[tuple[str, ...], Flag("DNS name or IP address in the self-signed certificate")] = ()
    system_namespace: Annotated[str, Flag("namespace of the daemons")] = DEFAULT_NAMESPACE
    trusted_user: Annotated[
        tuple[str, ...], Flag("user that may write our annotations, besides the daemons' service accounts")
    ] = ()
    scheduler_name: Annotated[str, Flag("schedulerName set on pods with devices")] = DEFAULT_SCHEDULER
    other_scheduler: Annotated[tuple[str, ...], Flag("schedulerName that pods with devices may keep")] = ()
    privileged: Annotated[Stance, Flag("pods with devices and a privileged container")] = "deny"
    host_pid: Annotated[Stance, Flag("pods with devices and hostPID")] = "deny"
    host_devices: Annotated[Stance, Flag("pods with devices and a hostPath to devices")] = "deny"
    hide_cards: Annotated[bool, Flag("set NVIDIA_VISIBLE_DEVICES=none where a GPU pod's container asks for none")] = (
        False
    )
    runtime_class: Annotated[str, Flag("runtimeClassName for pods with devices that name none")] = ""
    namespace_policy: Annotated[Path | None, Flag("YAML with defaults and ceilings by namespace; followed")] = None
    certificate_poll_seconds: Annotated[float, Flag("how often the certificate files are looked at")] = 10.0
    policy_poll_seconds: Annotated[float, Flag("how often the namespace policy file is looked at")] = 5.0
    device_files: Annotated[tuple[Path, ...], Flag("YAML of a device family; replaces the built-in ones")] = ()

    def certificate_files(self) -> tuple[Path, Path]:
        """Return certificate and key.

        Raises:
            BadConfiguration: Neither a pair nor a folder for a self-signed one was given.
        """
        if self.tls_cert is not None and self.tls_key is not None:
            return self.tls_cert, self.tls_key
        if self.self_signed is not None:
            return self.self_signed / "tls.crt", self.self_signed / "tls.key"
        raise BadConfiguration(
            "command line",
            "--tls-cert",
            "is required with --tls-key: the API server calls webhooks over TLS only",
            "give both, or --self-signed FOLDER",
        )

    def families(self) -> Families:
        """Return the device families to admit."""
        return load_files(self.device_files) if self.device_files else load_builtin()

    def policy(self) -> Policy:
        """Return the policy, with the namespace rules as the file says now.

        Raises:
            BadConfiguration: The file is unreadable or wrong.
        """
        daemons = {service_account(self.system_namespace, name) for name in DAEMONS}
        return Policy(
            scheduler_name=self.scheduler_name,
            other_schedulers=frozenset(self.other_scheduler),
            trusted_users=frozenset(daemons | set(self.trusted_user)),
            privileged=self.privileged,
            host_pid=self.host_pid,
            host_devices=self.host_devices,
            hide_cards=self.hide_cards,
            runtime_class=self.runtime_class,
            namespaces=self._namespaces(),
        )

    def _namespaces(self) -> NamespacePolicies:
        path = self.namespace_policy
        if path is None:
            return NamespacePolicies()
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadConfiguration(str(path), "file", str(error), "give a readable YAML file") from error
        return parse_namespace_policies(text, str(path))
