# ruff: noqa: E402  the footprint must be prepared before large modules are loaded
"""`python -m deviceplugin`."""

from deviceplugin import footprint

footprint.prepare()

import asyncio
import importlib
import sys
from collections.abc import Sequence

from deviceplugin.daemon import Daemon
from deviceplugin.settings import PluginSettings
from gpuslice.devices.errors import BadConfiguration
from gpuslice.service.logs import configure_logging
from gpuslice.service.process import run_daemon, until_stopped, write_ports
from gpuslice.service.settings import load_settings


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon; returns the exit code."""
    try:
        settings = load_settings(PluginSettings, argv, program="gpuslice device-plugin")
    except BadConfiguration as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    configure_logging(settings.effective_log_level, settings.log_format)

    footprint.settle()

    async def serve(stopping: asyncio.Event) -> None:
        daemon = Daemon(settings)
        await daemon.prepare()
        ended = asyncio.Event()
        await until_stopped(ended, daemon.run(), _leave(daemon, stopping, ended), _answer_probes(daemon))

    return run_daemon(serve, small=True)


async def _leave(daemon: Daemon, stopping: asyncio.Event, ended: asyncio.Event) -> None:
    await stopping.wait()
    await daemon.hand_over()
    ended.set()
    await asyncio.Event().wait()


async def _answer_probes(daemon: Daemon) -> None:
    """Serve probes and metrics; loaded in a thread, so that it does not come before the registration."""
    service = await asyncio.to_thread(importlib.import_module, "gpuslice.service.health")
    settings, health = daemon.settings, service.Health()
    health.ready["kubelet"] = lambda: _not_ready(daemon)
    async with service.HealthServer(
        health, daemon.registry, host=settings.metrics_host, port=settings.metrics_port
    ) as server:
        write_ports(settings.ports_file, {"metrics": server.port})
        await asyncio.Event().wait()


def _not_ready(daemon: Daemon) -> str | None:
    """A standby is ready: readiness is what makes a rolling update end the old process."""
    if not daemon.active:
        return None
    missing = [name for name, registrar in daemon.registrars.items() if not registrar.registered.is_set()]
    return f"not registered with the kubelet: {', '.join(missing)}" if missing else None


if __name__ == "__main__":
    sys.exit(main())
