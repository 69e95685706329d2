"""The process: probes, HTTP, background tasks, and their end."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

import structlog
from prometheus_client import CollectorRegistry

from extender.assembly import COMPONENT, Extender
from extender.metrics import LedgerCollector, Metrics
from extender.routes import build_app
from extender.settings import ExtenderSettings
from extender.verbs import Verbs
from gpuslice.cluster.client import KubeClient
from gpuslice.cluster.config import load_cluster_config
from gpuslice.cluster.moments import SpareMoments
from gpuslice.cluster.transport import Transport
from gpuslice.service.certificates import ServingCertificate
from gpuslice.service.health import Health, HealthServer
from gpuslice.service.listener import open_socket, serve_http
from gpuslice.service.process import until_stopped, write_ports

log = structlog.get_logger(__name__)

TICK_SECONDS = 1.0


def background_tasks(extender: Extender) -> list[Coroutine[object, object, None]]:
    """What runs beside the HTTP server."""
    tasks = [
        extender.feed.nodes.run(),
        extender.feed.pods.run(),
        extender.feed.quotas.run(),
        extender.waker.run(),
        extender.recorder.run(),
        _tick(extender),
    ]
    if extender.settings.preemption:
        tasks += [extender.feed.budgets.run(), extender.preemption.run()]
    if extender.leadership.elector is not None:
        tasks.append(extender.leadership.elector.run())
    return tasks


async def _tick(extender: Extender) -> None:
    while True:
        await extender.timing.sleep(TICK_SECONDS)
        extender.tick()


def build_verbs(extender: Extender, registry: CollectorRegistry) -> Verbs:
    """Put the verbs in front of the parts."""
    registry.register(LedgerCollector(extender.engine.ledger, extender.counters, extender.gauges))
    return Verbs(extender, extender.binder, Metrics(registry), not_ready=extender.leadership.not_ready)


async def serve(settings: ExtenderSettings, stopping: asyncio.Event) -> None:
    """Run the extender until ``stopping`` is set."""
    config = load_cluster_config(settings.kubeconfig, settings.context)
    listening = open_socket(settings.listen)
    registry, health = CollectorRegistry(), Health()
    certificate = _certificate(settings)
    connections, moments = settings.api_connections, SpareMoments()
    async with Transport(config, connections=connections, user_agent=COMPONENT, moments=moments) as transport:
        extender = Extender(settings, KubeClient(transport), moments=moments)
        health.ready["extender"] = extender.leadership.not_ready
        host, port = settings.metrics_host, settings.metrics_port
        async with HealthServer(health, registry, host=host, port=port) as probes:
            ports = {"listen": listening.getsockname()[1], "metrics": probes.port}

            def started() -> None:
                log.info("listening", **ports)
                write_ports(settings.ports_file, ports)

            background = background_tasks(extender) + ([certificate.follow()] if certificate else [])
            tls = certificate.context if certificate else None
            verbs = build_verbs(extender, registry)
            serving = serve_http(
                build_app(verbs), listening, stopping, direct=verbs.direct, tls=tls, on_started=started
            )
            await until_stopped(stopping, *background, serving=_after(serving, verbs.direct.finish))


async def _after(first: Coroutine[object, object, None], then: Callable[[], Awaitable[None]]) -> None:
    await first
    await then()


def _certificate(settings: ExtenderSettings) -> ServingCertificate | None:
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return ServingCertificate(settings.tls_cert, settings.tls_key, client_authority=settings.tls_client_ca)
