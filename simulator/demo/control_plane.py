"""The part of the embedded cluster that has no node: API server, webhook, extender, scheduler loop.

The API server and the scheduler loop live in this process; the daemons under test are processes of their own, reached
over their real wires, and are restarted when they die.
"""

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gpuslice.cluster.client import KubeClient
from gpuslice.cluster.config import load_cluster_config
from gpuslice.cluster.transport import Transport
from gpuslice.devices.families import load_builtin
from simulator.apiserver import ApiServer, Options, User, running, service_account
from simulator.demo.supervisor import DaemonSpec, Ports, Supervisor
from simulator.scheduler.extender_client import ExtenderConfig
from simulator.scheduler.loop import SchedulerLoop
from webhook.registration import Registration, mutating_configuration, validating_configuration

SYSTEM_NAMESPACE = "gpuslice-system"
SCHEDULER_NAME = "gpuslice-scheduler"
SOMEBODY = User("demo-user-token", "demo-user", ("system:authenticated",))
"""Who applies the manifests: nobody special, so that admission treats the pods as a user's."""


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """Handles on the running parts."""

    server: ApiServer
    supervisor: Supervisor
    scheduler: SchedulerLoop
    user: KubeClient
    """Acts as an ordinary user."""
    admin: KubeClient
    folder: Path


COMMON_FLAGS = ("--log-format", "text", "--metrics-host", "127.0.0.1")


@asynccontextmanager
async def control_plane(folder: Path) -> AsyncIterator[ControlPlane]:
    """Run everything but the nodes, below ``folder``; ready when entered, gone when left."""
    logs = folder / "logs"
    logs.mkdir(parents=True)
    supervisor = Supervisor(logs)
    options = Options(tls=True, data=folder / "api-server", users=(SOMEBODY,))
    async with running(options) as server, asyncio.TaskGroup() as tasks:
        await server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE}})
        async with _client(server, SOMEBODY) as user, _client(server, None) as admin:
            try:
                extender_url = await _start_daemons(server, supervisor, folder)
                scheduler = SchedulerLoop(
                    admin,
                    ExtenderConfig(extender_url, load_builtin().resource_names),
                    name=SCHEDULER_NAME,
                    clock=time.monotonic,
                )
                others = SchedulerLoop(
                    admin, ExtenderConfig("", frozenset()), name="default-scheduler", clock=time.monotonic
                )
                loops = [tasks.create_task(loop.run()) for loop in (scheduler, others)]
                yield ControlPlane(server, supervisor, scheduler, user, admin, folder)
                for loop in loops:
                    loop.cancel()
            finally:
                await supervisor.stop()


@asynccontextmanager
async def _client(server: ApiServer, user: User | None) -> AsyncIterator[KubeClient]:
    kubeconfig = server.kubeconfig() if user is None else server.kubeconfig(user)
    async with Transport(load_cluster_config(kubeconfig), connections=8) as transport:
        yield KubeClient(transport)


async def _start_daemons(server: ApiServer, supervisor: Supervisor, folder: Path) -> str:
    """Start webhook and extender, register the webhook, and return the extender's address."""
    certificates = folder / "webhook"
    supervisor.start(_webhook(supervisor, certificates))
    supervisor.start(_extender(server, supervisor))
    webhook_ports, extender_ports = await asyncio.gather(
        supervisor.wait_ready("webhook"), supervisor.wait_ready("extender")
    )
    authority = base64.b64encode((certificates / "ca.crt").read_bytes()).decode()
    registration = Registration(client={"url": f"https://127.0.0.1:{webhook_ports['listen']}"}, authority=authority)
    families = load_builtin()
    await server.create(mutating_configuration(registration, families))
    await server.create(validating_configuration(registration, families))
    return f"http://127.0.0.1:{extender_ports['listen']}"


def _webhook(supervisor: Supervisor, certificates: Path) -> DaemonSpec:
    def arguments(ports: Ports) -> Sequence[str]:
        return (
            *("--self-signed", str(certificates), "--self-signed-host", "127.0.0.1"),
            *addresses(ports, supervisor.ports_file("webhook")),
            *COMMON_FLAGS,
        )

    return DaemonSpec("webhook", "webhook", arguments)


def _extender(server: ApiServer, supervisor: Supervisor) -> DaemonSpec:
    kubeconfig = server.kubeconfig(service_account(SYSTEM_NAMESPACE, "gpuslice-scheduler"))

    def arguments(ports: Ports) -> Sequence[str]:
        return (
            *("--kubeconfig", str(kubeconfig), "--no-leader-elect"),
            *addresses(ports, supervisor.ports_file("extender")),
            *COMMON_FLAGS,
        )

    return DaemonSpec("extender", "extender", arguments)


def addresses(ports: Ports, ports_file: Path) -> tuple[str, ...]:
    """Return the address flags of a daemon: free ports at first, the same ones after a restart."""
    return (
        *("--listen", f"127.0.0.1:{ports.get('listen', 0)}"),
        *("--metrics-port", str(ports.get("metrics", 0))),
        *("--ports-file", str(ports_file)),
    )
