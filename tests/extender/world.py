"""A cluster in virtual time: embedded API server, extenders with transports of their own, scheduler, users, auditor."""

import asyncio
import contextlib
import dataclasses
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec
from prometheus_client import CollectorRegistry

from extender.assembly import Extender
from extender.daemon import background_tasks, build_verbs
from extender.settings import ExtenderSettings
from extender.verbs import Verbs
from gpuslice.cluster.client import KubeClient
from gpuslice.cluster.config import load_cluster_config
from gpuslice.cluster.moments import SpareMoments
from gpuslice.cluster.transport import Transport
from gpuslice.cluster.wire import ApiTransport
from simulator.apiserver import Options, User, deletion
from simulator.apiserver.server import ApiServer, running
from tests.extender import virtual
from tests.extender.objects import container, node, pod
from tests.extender.scheduler import findings

SETTINGS = ExtenderSettings(
    namespace="default", lease_name="extender", lease_seconds=15.0, node_policy="binpack", card_policy="binpack"
)


@dataclass
class Replica:
    """One extender process."""

    extender: Extender
    verbs: Verbs
    stall: virtual.Stall
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def call(self, verb: str, body: object) -> tuple[int, Any]:
        await self.stall.passed()
        reply = await self.verbs.call(f"/{verb}", msgspec.json.encode(body))
        return reply.status, json.loads(reply.body)

    def leads(self) -> bool:
        return self.extender.leadership.not_ready() is None


class _Stallable:
    """A transport whose answers a stopped process does not get to see before it goes on."""

    def __init__(self, inner: Transport, stall: virtual.Stall) -> None:
        self._inner = inner
        self._stall = stall

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._inner.__aexit__(*failure)

    async def request(self, method: str, path: str, **more: Any) -> bytes:
        await self._stall.passed()
        try:
            return await self._inner.request(method, path, **more)
        finally:
            await self._stall.passed()

    async def stream(self, path: str, **more: Any) -> AsyncGenerator[bytes, None]:
        await self._stall.passed()
        async for line in self._inner.stream(path, **more):
            await self._stall.passed()
            yield line


class World:
    """The parts, and what a test does with them."""

    def __init__(self, server: ApiServer, draw: random.Random, stack: AsyncExitStack) -> None:
        self.server = server
        self.draw = draw
        self.replicas: list[Replica] = []
        self._stack = stack
        self._numbers = iter(range(1_000_000))
        self.bindings = 0

    async def add_replica(self, name: str, **settings: Any) -> Replica:
        """Start an extender."""
        stall = virtual.Stall()
        config = load_cluster_config(self.server.kubeconfig(User(f"{name}-token", name, ("system:masters",))))
        timing = virtual.timing(random.Random(self.draw.random()), stall)
        moments = SpareMoments()
        inner = Transport(config, connections=16, moments=moments)
        transport: ApiTransport = _Stallable(inner, stall)
        client = KubeClient(await self._stack.enter_async_context(transport))
        chosen = dataclasses.replace(SETTINGS, identity=name, **settings)
        extender = Extender(chosen, client, timing=timing, moments=moments)
        replica = Replica(extender, build_verbs(extender, CollectorRegistry()), stall)
        replica.tasks = [asyncio.create_task(work) for work in background_tasks(extender)]
        self.replicas.append(replica)
        return replica

    async def stop(self) -> None:
        tasks = [task for replica in self.replicas for task in replica.tasks]
        for replica in self.replicas:
            replica.stall.resume()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- users -------------------------------------------------------------------------------------------------------

    async def create_pod(self, memory_mib: int = 8192, **spec: Any) -> dict[str, Any]:
        return await self.server.create(pod(f"p{next(self._numbers)}", container(memory_mib=memory_mib), **spec))

    async def delete_pod(self, name: str) -> None:
        """As the kubelet does in the end: gone at once."""
        call = self.server._call("v1", "Pod", "default", name)
        with contextlib.suppress(Exception):
            await deletion.delete(self.server.state, call, {"gracePeriodSeconds": 0})

    def pods(self) -> list[dict[str, Any]]:
        return self.server.list("v1", "Pod")

    def bound(self) -> list[dict[str, Any]]:
        return [found for found in self.pods() if found["spec"].get("nodeName")]

    async def churn(self, *, most: int, pause_seconds: float = 0.4) -> None:
        """Create and delete pods until cancelled."""
        while True:
            await asyncio.sleep(self.draw.uniform(0, 2 * pause_seconds))
            living = self.pods()
            if living and (len(living) >= most or self.draw.random() < 0.4):
                await self.delete_pod(self.draw.choice(living)["metadata"]["name"])
            else:
                await self.create_pod(self.draw.choice((1000, 4000, 8192, 16_384)))

    # -- kube-scheduler ----------------------------------------------------------------------------------------------

    async def schedule(self) -> None:
        """Try every pending pod again and again, with whatever replica leads, until cancelled."""
        binding: set[asyncio.Task[None]] = set()
        while True:
            await asyncio.sleep(0.05)
            for found in self.pods():
                if found["spec"].get("nodeName"):
                    continue
                for replica in self.replicas:
                    await self._cycle(replica, found, binding)

    async def _cycle(self, replica: Replica, found: dict[str, Any], binding: set[asyncio.Task[None]]) -> None:
        names = [each["metadata"]["name"] for each in self.server.list("v1", "Node")]
        if not replica.stall._running.is_set():
            return
        status, answer = await replica.call("filter", {"Pod": found, "NodeNames": names})
        if status == 200 and answer["NodeNames"]:
            task = asyncio.create_task(self._bind(replica, found, self.draw.choice(answer["NodeNames"])))
            binding.add(task)
            task.add_done_callback(binding.discard)

    async def _bind(self, replica: Replica, found: dict[str, Any], where: str) -> None:
        meta = found["metadata"]
        args = {"PodName": meta["name"], "PodNamespace": "default", "PodUID": meta["uid"], "Node": where}
        status, answer = await replica.call("bind", args)
        self.bindings += int(status == 200 and not answer["Error"])

    # -- truth -------------------------------------------------------------------------------------------------------

    async def watch_over(self) -> None:
        """Let the auditor look after every moment, until cancelled."""
        while True:
            assert findings(self.server) == []
            await asyncio.sleep(0.1)

    def agrees(self, replica: Replica) -> bool:
        """Whether a replica's ledger holds exactly what the API server has bound."""
        ledger = replica.extender.engine.ledger
        ledger.check_invariants()
        held = {uid for uid, holding in ledger.holdings.items() if holding.seen}
        return held == {found["metadata"]["uid"] for found in self.bound()} == set(ledger.holdings)

    async def until(self, true: Callable[[], object], *, seconds: float) -> None:
        """Wait in virtual time."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not true():
            assert asyncio.get_running_loop().time() < deadline, f"not within {seconds} virtual seconds"
            await asyncio.sleep(0.05)


@asynccontextmanager
async def world(seed: int, *, nodes: int = 3, cards: int = 2) -> AsyncIterator[World]:
    """Run a cluster until the block ends."""
    options = Options(clock=virtual.now, seed=seed, gzip=False)
    async with running(options) as server, AsyncExitStack() as stack:
        made = World(server, random.Random(seed), stack)
        for number in range(nodes):
            await server.create(node(f"n{number}", cards))
        try:
            yield made
        finally:
            await made.stop()


@asynccontextmanager
async def meanwhile(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run endless works beside the block; the failure of one fails the block."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
