"""kube-scheduler's stand-in in the test's own loop, with the extender configured."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gpuslice.cluster.client import KubeClient
from gpuslice.cluster.config import load_cluster_config
from gpuslice.cluster.transport import Transport
from gpuslice.devices.families import load_builtin
from simulator.apiserver.server import ApiServer
from simulator.scheduler.extender_client import ExtenderConfig
from simulator.scheduler.loop import SchedulerLoop
from tests.extender.stand import Stand


@asynccontextmanager
async def scheduling(server: ApiServer, stand: Stand) -> AsyncIterator[SchedulerLoop]:
    config = ExtenderConfig(url=stand.url, managed_resources=load_builtin().resource_names)
    async with Transport(load_cluster_config(server.kubeconfig())) as transport:
        loop = SchedulerLoop(KubeClient(transport), config, name="gpuslice-scheduler", clock=time.monotonic)
        task = asyncio.create_task(loop.run())
        try:
            yield loop
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def node_of(server: ApiServer, name: str, namespace: str = "default") -> str:
    """Where a pod is bound; empty while it waits or is gone."""
    found = [p for p in server.list("v1", "Pod", namespace) if p["metadata"]["name"] == name]
    return str(found[0]["spec"].get("nodeName", "")) if found else ""


def findings(server: ApiServer) -> list[str]:
    """What the independent auditor says of the API server's record."""
    from simulator.audit import audit

    return [str(found) for found in audit(server.list("v1", "Pod"), server.list("v1", "Node"))]
