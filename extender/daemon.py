"""Puts the extender together and keeps it running."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine

import structlog
from prometheus_client import CollectorRegistry

from extender.binding import Binder
from extender.engine import Engine, Invalid, Notice, Refusal, Terms
from extender.feed import Feed
from extender.reports import CONFLICT, Reports
from extender.routes import Contained, build_app
from extender.settings import ExtenderSettings
from extender.waking import Waker
from gpuslice.cluster.client import KubeClient
from gpuslice.cluster.config import load_cluster_config
from gpuslice.cluster.events import EventRecorder, Subject
from gpuslice.cluster.lease import ElectionTerms, LeaderElector
from gpuslice.cluster.transport import Transport
from gpuslice.devices.families import load_builtin, load_files
from gpuslice.placement import events
from gpuslice.placement.explain import summary
from gpuslice.placement.policies.registry import PolicyDefaults
from gpuslice.service.certificates import ServingCertificate
from gpuslice.service.health import Health, HealthServer
from gpuslice.service.listener import open_socket, serve_http
from gpuslice.service.process import until_stopped, write_ports

log = structlog.get_logger(__name__)

TICK_SECONDS = 1.0
STALE_SECONDS = 60.0
"""With watches silent for so long, assumed shares do not run out: the pod may be bound and we cannot see it."""
COMPONENT = "gpuslice-scheduler"


class Leadership:
    """Who may answer and bind: the holder of the Lease, once it has read all pods after taking it."""

    def __init__(self, elector: LeaderElector | None) -> None:
        self.elector = elector
        self.feed: Feed | None = None
        self._lists_needed = 1

    def leads(self) -> bool:
        """Whether we hold the Lease at this moment."""
        return self.elector is None or self.elector.leads()

    def changed(self, leads: bool) -> None:
        """Read all pods again after taking the Lease: the last leader's bindings must all be known."""
        if leads and self.feed is not None and self.feed.loaded:
            self._lists_needed = self.feed.pods.lists + 1
            self.feed.relist_pods()

    def not_ready(self) -> str | None:
        """Reason for a 503."""
        if self.feed is None or not self.feed.loaded:
            return "the lists of nodes and pods have not arrived yet"
        if not self.leads():
            return f"not the leader; it is {self.elector.holder if self.elector else ''!r}"
        if self.feed.pods.lists < self._lists_needed:
            return "leader since a moment; reading all pods first"
        return None


class Extender:
    """The parts, wired."""

    def __init__(self, settings: ExtenderSettings, client: KubeClient) -> None:
        self.settings = settings
        self.recorder = EventRecorder(client, COMPONENT, settings.identity)
        self.reports = Reports(self.recorder)
        self.leadership = Leadership(self._elector(client))
        self.waker = Waker(client, leads=self.leadership.leads)
        families = load_files(settings.device_files) if settings.device_files else load_builtin()
        self.engine = Engine(
            families,
            self._terms(),
            clock=time.monotonic,
            wall_clock=time.time,
            act=self._act,
            notice=self._notice,
        )
        self.feed = self.leadership.feed = Feed(client, families, self.engine.apply)
        self.binder = Binder(
            client, self.engine, leads=self.leadership.leads, timeout_seconds=settings.bind_timeout_seconds
        )

    def _elector(self, client: KubeClient) -> LeaderElector | None:
        settings = self.settings
        if not settings.leader_elect:
            return None
        terms = ElectionTerms(
            settings.namespace,
            settings.lease_name,
            settings.identity,
            settings.lease_seconds,
            settings.renew_deadline_seconds,
            settings.lease_retry_seconds,
        )
        return LeaderElector(client, terms, on_change=self.leadership.changed)

    def _terms(self) -> Terms:
        settings = self.settings
        return Terms(
            defaults=PolicyDefaults(node=settings.node_policy, card=settings.card_policy),
            offer_at_most=settings.best_nodes if settings.scoring == "filter" else None,
            assume_seconds=settings.assume_seconds,
            reserve_seconds=settings.reserve_seconds,
            kept_decisions=settings.kept_decisions,
        )

    def _act(self, command: events.Command) -> None:
        """Carry out what the ledger asks for."""
        match command:
            case events.Wake(pods):
                self.waker.wake(pods, "a share was released")
            case events.ReservationReady(key, node):
                self.waker.wake((key,), f"its reservation on node {node} is ready")
            case events.Conflict(node, card, problem, pods):
                log.error("card_overcommitted", node=node, card=card, problem=problem, pods=pods)
                if self.leadership.leads():
                    text = f"card {card}: {problem}; pods {', '.join(pods)}"
                    self.recorder.record(Subject.node(node), "Warning", CONFLICT, text)
            case events.Expired(key, node):
                log.warning("assumed_share_expired", pod=str(key), node=node)
            case events.ReservationLost(key, node, reason):
                log.warning("reservation_lost", pod=str(key), node=node, reason=reason)

    def _notice(self, notice: Notice) -> None:
        """Tell people about a pod that fits nowhere."""
        match notice:
            case Refusal(dossier, decision):
                cause = tuple(sorted(decision.counts()))
                self.reports.refused(dossier.key, cause, summary(decision))
                log.info("pod_refused", pod=str(dossier.key), reasons=decision.counts())
            case Invalid(key, problems):
                self.reports.refused(key, problems, "; ".join(map(str, problems)))
                log.info("pod_invalid", pod=str(key), problems=[str(problem) for problem in problems])

    async def tick(self) -> None:
        """Let time pass in the ledger while our view of the pods is fresh."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if self.feed.pods.behind_seconds < STALE_SECONDS:
                self.engine.tick()


def background_tasks(extender: Extender) -> list[Coroutine[object, object, None]]:
    """What runs beside the HTTP server."""
    tasks = [
        extender.feed.nodes.run(),
        extender.feed.pods.run(),
        extender.waker.run(),
        extender.recorder.run(),
        extender.tick(),
    ]
    if extender.leadership.elector is not None:
        tasks.append(extender.leadership.elector.run())
    return tasks


def build_application(extender: Extender) -> Contained:
    """Put the HTTP side in front of the parts."""
    not_ready = extender.leadership.not_ready
    return Contained(build_app(extender.engine, extender.binder, extender.engine, not_ready=not_ready))


async def serve(settings: ExtenderSettings, stopping: asyncio.Event) -> None:
    """Run the extender until ``stopping`` is set."""
    config = load_cluster_config(settings.kubeconfig, settings.context)
    listening = open_socket(settings.listen)
    registry, health = CollectorRegistry(), Health()
    certificate = _certificate(settings)
    async with Transport(config, connections=settings.api_connections, user_agent=COMPONENT) as transport:
        extender = Extender(settings, KubeClient(transport))
        health.ready["extender"] = extender.leadership.not_ready
        host, port = settings.metrics_host, settings.metrics_port
        async with HealthServer(health, registry, host=host, port=port) as probes:
            ports = {"listen": listening.getsockname()[1], "metrics": probes.port}

            def started() -> None:
                log.info("listening", **ports)
                write_ports(settings.ports_file, ports)

            background = background_tasks(extender) + ([certificate.follow()] if certificate else [])
            tls = certificate.context if certificate else None
            serving = serve_http(build_application(extender), listening, stopping, tls=tls, on_started=started)
            await until_stopped(stopping, *background, _after(serving, extender.binder.finish))


async def _after(first: Coroutine[object, object, None], then: Callable[[], Awaitable[None]]) -> None:
    await first
    await then()


def _certificate(settings: ExtenderSettings) -> ServingCertificate | None:
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return ServingCertificate(settings.tls_cert, settings.tls_key, client_authority=settings.tls_client_ca)
