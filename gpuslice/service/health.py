"""/livez, /readyz and /metrics of a daemon, on a port of their own."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

Check = Callable[[], str | None]
"""Gives None when all is well, else what is wrong, in a few words."""


@dataclass(slots=True)
class Health:
    """The checks behind the probes; a daemon adds its own before it starts to listen."""

    live: dict[str, Check] = field(default_factory=dict)
    ready: dict[str, Check] = field(default_factory=dict)

    @staticmethod
    def failures(checks: Mapping[str, Check]) -> list[str]:
        """Lines ``name: problem`` of the checks that fail."""
        return [f"{name}: {problem}" for name, check in checks.items() if (problem := check()) is not None]


class HealthServer:
    """Serves the probes; use as an async context manager. ``port`` is the one really bound."""

    def __init__(self, health: Health, registry: CollectorRegistry, *, host: str, port: int) -> None:
        self._health = health
        self._registry = registry
        self._host = host
        self.port = port
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/healthz", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2, handle_signals=False)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self.port).start()
        self.port = int(self._runner.addresses[0][1])
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _livez(self, _: web.Request) -> web.Response:
        return _answer(self._health.failures(self._health.live))

    async def _readyz(self, _: web.Request) -> web.Response:
        return _answer(self._health.failures(self._health.live | self._health.ready))

    async def _metrics(self, _: web.Request) -> web.Response:
        # Rendering tens of thousands of series takes long enough to delay a scheduling call.
        body = await asyncio.to_thread(generate_latest, self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _answer(failures: list[str]) -> web.Response:
    return web.Response(status=503 if failures else 200, text="\n".join(failures) + "\n" if failures else "ok\n")
