"""The scheduling loop: watch, filter in-tree, ask the extender, bind, say why not.

Serial like kube-scheduler's: one pod is decided at a time, bindings run beside the next cycle.
"""

import asyncio
import datetime as dt
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import aiohttp
import msgspec
import structlog

from gpuslice.cluster.client import KubeClient, Scope
from gpuslice.cluster.errors import ApiError, Expired, Unreachable
from gpuslice.cluster.resources import NODES, PODS, Resource
from simulator.scheduler.extender_client import ExtenderClient, ExtenderConfig, ExtenderFailed
from simulator.scheduler.queue import SchedulingQueue

RELIST_SECONDS = 0.2
"""Pause before listing again after a broken watch."""

Object = dict[str, Any]
log = structlog.get_logger(__name__)


class SchedulerLoop:
    """One scheduler for the pods that name it."""

    def __init__(self, client: KubeClient, extender: ExtenderConfig, *, name: str, clock: Callable[[], float]) -> None:
        self._client = client
        self._config = extender
        self._name = name
        self._clock = clock
        self._queue = SchedulingQueue()
        self._pods: dict[str, Object] = {}
        self._nodes: dict[str, Object] = {}
        self._changed = asyncio.Event()
        self.filter_calls: Counter[str] = Counter()
        """Pod UID to the number of /filter calls made for it."""
        self.failures: dict[str, str] = {}
        """Pod UID to what went wrong last when it was scheduled or bound."""

    async def run(self) -> None:
        """Schedule until cancelled."""
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(PODS, self._pods, self._pod_seen, self._pod_gone))
            tasks.create_task(self._follow(NODES, self._nodes, self._node_seen, self._node_gone))
            extender = ExtenderClient(self._config, session)
            while True:
                uid = self._queue.pop(self._clock())
                if uid is None:
                    await self._wait()
                    continue
                await self._schedule_one(uid, extender, tasks)

    async def _wait(self) -> None:
        self._changed.clear()
        wanted = self._queue.next_time()
        timeout = None if wanted is None else max(wanted - self._clock(), 0.0)
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            return

    # ---- one cycle

    async def _schedule_one(self, uid: str, extender: ExtenderClient, tasks: asyncio.TaskGroup) -> None:
        pod = self._pods[uid]
        wakes = self._queue.wakes
        names, refusals = self._in_tree(pod)
        managed = _asks_for(pod, extender.config.managed_resources)
        try:
            if managed and names:
                self.filter_calls[uid] += 1
                answer = await extender.filter(pod, names)
                refusals |= (answer.failed_nodes or {}) | (answer.failed_and_unresolvable_nodes or {})
                names = answer.node_names or []
            if not names:
                await self._refuse(pod, refusals)
                self._queue.refused(uid, self._clock(), wakes_before=wakes)
                return
            scores = await extender.prioritize(pod, names) if managed and extender.config.prioritize else {}
        except ExtenderFailed as error:
            log.warning("scheduling_failed", pod=_full_name(pod), error=str(error))
            self.failures[uid] = str(error)
            self._queue.failed(uid, self._clock())
            return
        best = min(names, key=lambda name: (-scores.get(name, 0), name))
        self._queue.remove(uid)
        tasks.create_task(self._bind(pod, best, extender if managed else None))

    def _in_tree(self, pod: Object) -> tuple[list[str], dict[str, str]]:
        """Apply the few in-tree filters that an embedded cluster needs: cordon, readiness, nodeSelector."""
        fitting: list[str] = []
        refusals: dict[str, str] = {}
        selector: Mapping[str, str] = pod["spec"].get("nodeSelector") or {}
        for name, node in sorted(self._nodes.items()):
            labels: Mapping[str, str] = node["metadata"].get("labels") or {}
            if node.get("spec", {}).get("unschedulable"):
                refusals[name] = "node(s) were unschedulable"
            elif not _is_ready(node):
                refusals[name] = "node(s) had untolerated taint {node.kubernetes.io/not-ready: }"
            elif any(labels.get(key) != value for key, value in selector.items()):
                refusals[name] = "node(s) didn't match Pod's node affinity/selector"
            else:
                fitting.append(name)
        return fitting, refusals

    async def _bind(self, pod: Object, node: str, extender: ExtenderClient | None) -> None:
        metadata = pod["metadata"]
        try:
            if extender is not None:
                await extender.bind(pod, node)
            else:
                await self._client.bind_pod(
                    metadata["namespace"], metadata["name"], uid=metadata["uid"], node=node, annotations={}
                )
        except (ExtenderFailed, ApiError, Unreachable) as error:
            log.warning("bind_failed", pod=_full_name(pod), node=node, error=str(error))
            self.failures[metadata["uid"]] = str(error)
            if metadata["uid"] in self._pods and not self._pods[metadata["uid"]]["spec"].get("nodeName"):
                self._enqueue(self._pods[metadata["uid"]])
                self._queue.failed(metadata["uid"], self._clock())
                self._changed.set()

    async def _refuse(self, pod: Object, refusals: Mapping[str, str]) -> None:
        """Write the condition that `kubectl describe pod` shows; unchanged texts write nothing."""
        counts = Counter(refusals.values())
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
        message = f"0/{len(self._nodes)} nodes are available: {reasons}." if reasons else "no nodes available"
        conditions = pod.get("status", {}).get("conditions") or ()
        if any(c["type"] == "PodScheduled" and c.get("message") == message for c in conditions):
            return
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            "lastTransitionTime": dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        metadata = pod["metadata"]
        try:
            await self._client.patch(
                PODS,
                metadata["name"],
                {"status": {"conditions": [condition]}},
                namespace=metadata["namespace"],
                subresource="status",
            )
        except (ApiError, Unreachable) as error:
            log.warning("condition_not_written", pod=_full_name(pod), error=str(error))

    # ---- events

    def _pod_seen(self, old: Object | None, new: Object) -> None:
        uid = new["metadata"]["uid"]
        if new["spec"].get("nodeName"):
            self._queue.remove(uid)
            ended = new.get("status", {}).get("phase") in ("Succeeded", "Failed")
            if old is not None and old["spec"].get("nodeName") and (ended or _labelling(old) != _labelling(new)):
                self._queue.wake_all()
            return
        if new["spec"].get("schedulerName") != self._name or new["spec"].get("schedulingGates"):
            return
        if new["metadata"].get("deletionTimestamp"):
            self._queue.remove(uid)
            return
        self._enqueue(new)
        if old is not None and (
            _labelling(old) != _labelling(new)
            or old.get("status", {}).get("conditions") != new.get("status", {}).get("conditions")
        ):
            self._queue.wake(uid)

    def _enqueue(self, pod: Object) -> None:
        self._queue.add(pod["metadata"]["uid"], name=_full_name(pod), priority=pod["spec"].get("priority") or 0)

    def _pod_gone(self, old: Object) -> None:
        self._queue.remove(old["metadata"]["uid"])
        if old["spec"].get("nodeName"):
            self._queue.wake_all()

    def _node_seen(self, old: Object | None, new: Object) -> None:
        if old is None or _scheduling_view(old) != _scheduling_view(new):
            self._queue.wake_all()

    def _node_gone(self, old: Object) -> None:
        """A node that goes frees nobody."""

    async def _follow(
        self,
        resource: Resource,
        known: dict[str, Object],
        seen: Callable[[Object | None, Object], None],
        gone: Callable[[Object], None],
    ) -> None:
        """Keep ``known`` equal to the API server's objects and report every difference."""
        key = "name" if resource is NODES else "uid"
        while True:
            try:
                async for kind, item in self._events(resource, known, key):
                    identity = item["metadata"][key]
                    if kind == "DELETED":
                        if known.pop(identity, None) is not None:
                            gone(item)
                    else:
                        old = known.get(identity)
                        known[identity] = item
                        seen(old, item)
                    self._changed.set()
            except (ApiError, Unreachable) as error:
                if isinstance(error, ApiError) and not (error.is_transient or isinstance(error, Expired)):
                    raise
                await asyncio.sleep(RELIST_SECONDS)

    async def _events(
        self, resource: Resource, known: Mapping[str, Object], key: str
    ) -> AsyncIterator[tuple[str, Object]]:
        """Yield (type, object): first the difference to a fresh list, then the watch."""
        listing = msgspec.json.decode(await self._client.transport.request("GET", resource.path(), timeout_seconds=60))
        items: list[Object] = listing["items"]
        present = {item["metadata"][key] for item in items}
        for identity in [identity for identity in known if identity not in present]:
            yield "DELETED", known[identity]
        for item in items:
            yield "ADDED", item
        version = listing["metadata"]["resourceVersion"]
        while True:
            async for line in self._client.watch(Scope(resource), version, timeout_seconds=300):
                item = msgspec.json.decode(line.object)
                version = item["metadata"]["resourceVersion"]
                if line.type != "BOOKMARK":
                    yield line.type, item


def _full_name(pod: Object) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _labelling(item: Object) -> tuple[object, object]:
    return item["metadata"].get("labels"), item["metadata"].get("annotations")


def _is_ready(node: Object) -> bool:
    conditions = node.get("status", {}).get("conditions") or ()
    return all(c["status"] == "True" for c in conditions if c["type"] == "Ready")


def _scheduling_view(node: Object) -> tuple[object, ...]:
    """What of a node wakes refused pods; heartbeats do not."""
    status = node.get("status", {})
    conditions = [(c["type"], c["status"]) for c in status.get("conditions") or ()]
    return _labelling(node), node.get("spec"), status.get("allocatable"), conditions


def _asks_for(pod: Object, resources: frozenset[str]) -> bool:
    """Tell whether kube-scheduler would call the extender: some container names a managed resource."""
    spec = pod["spec"]
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        wanted = container.get("resources") or {}
        if resources & ({*(wanted.get("limits") or ()), *(wanted.get("requests") or ())}):
            return True
    return False
