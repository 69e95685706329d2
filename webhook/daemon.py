"""The webhook as a process: TLS listener, probes, and files that are followed while it runs."""

import asyncio
import gc
import sys
from collections.abc import Sequence
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry

from gpuslice.devices.errors import BadConfiguration
from gpuslice.service.certificates import ServingCertificate
from gpuslice.service.health import Health, HealthServer
from gpuslice.service.listener import open_socket, serve_http
from gpuslice.service.process import until_stopped, write_ports
from webhook.admission import Admission
from webhook.routes import make_app, make_endpoints
from webhook.settings import WebhookSettings

log = structlog.get_logger(__name__)


class CurrentAdmission:
    """The rules in force; a broken policy file is logged and the last good rules stay."""

    def __init__(self, settings: WebhookSettings) -> None:
        self._settings = settings
        self._families = settings.families()
        self.now = Admission(self._families, settings.policy())

    def refresh(self) -> None:
        """Read the policy file again."""
        try:
            policy = self._settings.policy()
        except BadConfiguration as error:
            log.warning("policy_not_loaded", error=str(error))
            return
        if policy != self.now.policy:
            self.now = Admission(self._families, policy)
            log.info("policy_reloaded", file=str(self._settings.namespace_policy))

    async def follow(self) -> None:
        """Refresh until cancelled."""
        while True:
            await asyncio.sleep(self._settings.policy_poll_seconds)
            self.refresh()


async def _make_certificate(folder: Path, hosts: Sequence[str]) -> None:
    """Make a self-signed pair in a process of its own: the library for it would stay in our memory (15 MiB).

    Raises:
        BadConfiguration: No host was given, or the folder cannot be written.
    """
    if (folder / "tls.crt").exists() and (folder / "tls.key").exists():
        return
    command = (sys.executable, "-m", "webhook.certificates", str(folder), *hosts)
    child = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, said = await child.communicate()
    if child.returncode:
        problem = said.decode(errors="replace").strip().rpartition("\n")[2]
        raise BadConfiguration("command line", "--self-signed", problem, "see --self-signed-host, or give --tls-cert")


async def serve(settings: WebhookSettings, stopping: asyncio.Event) -> None:
    """Serve until ``stopping`` is set.

    Raises:
        BadConfiguration: A file or address is wrong.
    """
    if settings.self_signed is not None:
        await _make_certificate(settings.self_signed, settings.self_signed_host)
    current = CurrentAdmission(settings)
    certificate = ServingCertificate(*settings.certificate_files(), client_authority=settings.tls_client_ca)
    registry = CollectorRegistry()
    health = Health()
    listening = open_socket(settings.listen)
    port = int(listening.getsockname()[1])
    started = asyncio.Event()
    health.ready["listener"] = lambda: None if started.is_set() else "not listening yet"
    endpoints = make_endpoints(lambda: current.now, registry)
    async with HealthServer(health, registry, host=settings.metrics_host, port=settings.metrics_port) as probes:

        def on_started() -> None:
            started.set()
            gc.freeze()  # what is loaded by now lives as long as the process; collections need not look at it again
            write_ports(settings.ports_file, {"listen": port, "metrics": probes.port})
            log.info("listening", port=port, metrics=probes.port, families=len(current.now.families.kinds))

        await until_stopped(
            stopping,
            serve_http(
                make_app(), listening, stopping, direct=endpoints, tls=certificate.context, on_started=on_started
            ),
            certificate.follow(sleep=lambda _: asyncio.sleep(settings.certificate_poll_seconds)),
            current.follow(),
        )
