"""The extender in this process, wired to an embedded API server, and driven over HTTP as kube-scheduler drives it."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
from prometheus_client import CollectorRegistry

from extender.assembly import Extender
from extender.daemon import background_tasks, build_verbs
from extender.routes import build_app
from extender.settings import ExtenderSettings
from gpuslice.cluster.client import KubeClient
from gpuslice.cluster.config import load_cluster_config
from gpuslice.cluster.transport import Transport
from gpuslice.placement.ledger import Ledger
from gpuslice.service.listener import open_socket, serve_http
from gpuslice.service.process import until_stopped
from simulator.apiserver.server import ApiServer


@dataclass
class Stand:
    """One extender under test."""

    extender: Extender
    url: str
    session: aiohttp.ClientSession
    client: KubeClient

    @property
    def ledger(self) -> Ledger:
        return self.extender.engine.ledger

    async def post(self, verb: str, body: object) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        async with self.session.post(f"{self.url}/{verb}", data=data) as answer:
            content = await answer.read()
            assert answer.headers["Content-Length"] == str(len(content))
            return answer.status, msgspec.json.decode(content)

    async def filter(self, pod: dict[str, Any], *names: str) -> dict[str, Any]:
        status, result = await self.post("filter", {"Pod": pod, "Nodes": None, "NodeNames": list(names)})
        assert status == 200, result
        assert isinstance(result, dict)
        return result

    async def prioritize(self, pod: dict[str, Any], *names: str) -> dict[str, int]:
        status, result = await self.post("prioritize", {"Pod": pod, "Nodes": None, "NodeNames": list(names)})
        assert status == 200, result
        return {item["Host"]: item["Score"] for item in result}

    async def bind(self, pod: dict[str, Any], node: str) -> str:
        meta = pod["metadata"]
        args = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
        status, result = await self.post("bind", args)
        assert status == 200, result
        return str(result["Error"])

    async def until(self, true: Callable[[], object], *, seconds: float = 5.0) -> None:
        """Wait for something that comes with a watch event."""
        async with asyncio.timeout(seconds):
            while not true():  # noqa: ASYNC110  the condition is not ours to signal
                await asyncio.sleep(0.005)


@asynccontextmanager
async def standing(server: ApiServer, **settings: Any) -> AsyncIterator[Stand]:
    """Run an extender in this event loop until the block ends."""
    base = ExtenderSettings(leader_elect=False, namespace="default", node_policy="binpack", card_policy="binpack")
    chosen = dataclasses.replace(base, **settings)
    stopping = asyncio.Event()
    async with Transport(load_cluster_config(server.kubeconfig())) as transport, aiohttp.ClientSession() as session:
        extender = Extender(chosen, KubeClient(transport))
        listening = open_socket("127.0.0.1:0")
        started = asyncio.Event()
        verbs = build_verbs(extender, CollectorRegistry())
        serving = serve_http(build_app(verbs), listening, stopping, direct=verbs.direct, on_started=started.set)
        task = asyncio.create_task(until_stopped(stopping, *background_tasks(extender), serving=serving))
        try:
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            await asyncio.wait_for(started.wait(), 5)
            stand = Stand(extender, url, session, KubeClient(transport))
            await stand.until(lambda: extender.leadership.not_ready() is None)
            yield stand
        finally:
            stopping.set()
            await task


def agrees(stand: Stand, server: ApiServer) -> bool:
    """Whether the ledger holds exactly what the API server has bound."""
    stand.ledger.check_invariants()
    bound = {p["metadata"]["uid"] for p in server.list("v1", "Pod") if p["spec"].get("nodeName")}
    return set(stand.ledger.holdings) == bound
