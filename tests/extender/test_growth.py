"""What an extender keeps does not grow with the pods it has seen: refused, bound, deleted, never there, or nonsense.

Every collection that can be reached from the extender is measured, so that one added later is measured as well.
"""

import asyncio
import os
import random
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from bench.harness import resident_mib
from tests.extender.objects import container, pod, priority_classes
from tests.extender.virtual import VirtualLoop
from tests.extender.world import Replica, World, meanwhile, world

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]
BOUNDED = {
    # Events written lately, whose count is raised instead of writing them again.
    "extender.recorder._known": 1000,
    # Requests by what is written in the pod; verdicts and the mix by request.
    "extender.engine._reader._known": 4096,
    "extender.engine.ledger.scores._known": 256,
    "extender.engine.ledger.scores._states._known": 4096,
    "extender.engine.ledger.observer._counts": 4096,
    "extender.engine.ledger.observer._outlook.counts": 4096,
    "extender.engine.ledger.fleet.views": 2048,
    "extender.engine._names._lists": 8,
    "extender.engine._simulation._templates": 64,
    "extender.engine._verdicts": 32,
    "extender.engine.dossiers._by_uid": 5000,
}
"""Caches with a capacity of their own: how many entries each may have."""
WHOLE = {"extender.engine.history._records"}
"""Not looked into: so many decisions are kept, each with the nodes that it was about."""
QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "q", "namespace": "default"},
    "spec": {"hard": {"limits.nvidia.com/gpumem": "60000"}},
}


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualLoop}


def sizes(replica: Replica) -> Counter[str]:
    """Return how many things each collection holds, by the path that leads to it."""
    found: Counter[str] = Counter()
    visited: set[int] = set()
    todo: deque[tuple[str, object]] = deque([("extender", replica.extender), ("verbs", replica.verbs)])
    while todo:
        path, thing = todo.popleft()
        if id(thing) in visited:
            continue
        visited.add(id(thing))
        if isinstance(thing, (dict, OrderedDict, Counter)):
            found[path] += len(thing)
            todo += [(f"{path}[]", value) for value in thing.values() if path not in WHOLE]
        elif isinstance(thing, (list, set, deque)):
            found[path] += len(thing)
            todo += [(f"{path}[]", value) for value in thing]
        elif type(thing).__module__.split(".")[0] in ("extender", "gpuslice"):
            todo += [(f"{path}.{name}", value) for name, value in attributes(thing).items()]
    return found


def attributes(thing: object) -> Mapping[str, object]:
    names = {name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())}
    names |= set(getattr(thing, "__dict__", ()))
    return {name: getattr(thing, name) for name in sorted(names) if not name.startswith("__") and hasattr(thing, name)}


async def nonsense(here: World, replica: Replica, draw: random.Random) -> None:
    """Post what nobody should: other shapes, pods that are not there, broken JSON."""
    ghost = pod(f"ghost-{draw.randrange(10**9)}", container(memory_mib=draw.choice((10, 99_999))))
    ghost["metadata"]["uid"] = f"ghost-{draw.randrange(10**9)}"
    names = [f"n{draw.randrange(5)}" for _ in range(draw.randrange(4))]
    bodies: list[object] = [
        {"Pod": ghost, "NodeNames": names},
        {"Pod": {**ghost, "spec": {"containers": [{"name": str(draw.random())}]}}, "NodeNames": names},
        {"Pod": None, "NodeNames": names},
        {"Pod": ghost, "Nodes": {"items": [{"metadata": {"name": str(draw.random())}}]}},
        {"PodName": "x", "PodNamespace": "default", "PodUID": str(draw.random()), "Node": "n1"},
        {"Pod": ghost, "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": str(draw.random())}]}}},
        draw.random(),
    ]
    for verb in ("filter", "prioritize", "preempt", "bind"):
        raw = msgspec.json.encode(draw.choice(bodies))
        if draw.random() < 0.2:
            raw = raw[: draw.randrange(len(raw))]
        reply = await replica.verbs.call(f"/{verb}", raw)
        assert reply.status < 500, (verb, raw, reply.body)


async def some_life(here: World, replica: Replica, pods: int, draw: random.Random) -> None:
    """Let pods come, be refused, be bound, be evicted for others and go; then let everything come to rest."""
    async with meanwhile(here.schedule()):
        for number in range(pods):
            urgent = {"priorityClassName": "high"} if draw.random() < 0.1 else {}
            await here.create_pod(draw.choice((1000, 4000, 8192, 16_384, 99_999)), **urgent)
            await nonsense(here, replica, draw)
            await asyncio.sleep(draw.uniform(0, 0.3))
            living = here.pods()
            while len(living) > 8:
                await here.delete_pod(living.pop(draw.randrange(len(living)))["metadata"]["name"])
            if number % 40 == 20:
                here.server.expire_watches()
        for each in here.pods():
            await here.delete_pod(each["metadata"]["name"])
    await asyncio.sleep(300)
    assert not here.pods()


async def grows_by(pods: int) -> tuple[dict[str, int], float]:
    draw = random.Random(5)
    async with world(5, nodes=2, cards=1) as here:
        await here.server.create(QUOTA)
        for made in priority_classes():
            await here.server.create(made)
        replica = await here.add_replica("a", leader_elect=False, kept_decisions=20)
        await here.until(replica.leads, seconds=10)
        await some_life(here, replica, pods, draw)
        before, resident = sizes(replica), resident_mib(os.getpid())
        await some_life(here, replica, pods, draw)
        after = sizes(replica)
        replica.extender.engine.ledger.check_invariants()
        assert not replica.extender.engine.ledger.holdings
        assert replica.extender.preemption.evictions > 0
        grown = {path: count for path, count in after.items() if count > before[path]}
        growth = {path: n for path, n in grown.items() if n > BOUNDED.get(path, 0)}
        return growth, resident_mib(os.getpid()) - resident


async def test_nothing_that_is_kept_grows_with_the_pods_seen() -> None:
    growth, _ = await grows_by(60)
    assert growth == {}


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_thousands_of_pods_leave_nothing_behind() -> None:
    growth, more_mib = await grows_by(1500)
    assert growth == {}
    assert more_mib < 8
