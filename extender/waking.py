"""Waking refused pods: one patch makes kube-scheduler look at that pod again within milliseconds, and at no other.

kube-scheduler takes up a refused pod when the pod itself changes. A condition in its status is the cheapest such
change: no admission webhook is called, nobody else reacts, and it tells a person what happened. Written only for pods
that the ledger believes to fit now, most urgent first.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import structlog

from gpuslice.cluster.backoff import Backoff
from gpuslice.cluster.client import KubeClient
from gpuslice.cluster.errors import ApiError, Conflict, NotFound, Unreachable
from gpuslice.cluster.resources import PODS
from gpuslice.cluster.timing import REAL_TIME, Timing
from gpuslice.cluster.wire import STRATEGIC_PATCH
from gpuslice.placement.events import PodKey

log = structlog.get_logger(__name__)

CONDITION = "gpuslice.io/SchedulingRetried"
MAX_ATTEMPTS = 6


class Waker:
    """Patches pods from a few workers; a pod that is queued already is not queued twice."""

    def __init__(
        self,
        client: KubeClient,
        *,
        leads: Callable[[], bool],
        gone: Callable[[PodKey], None] = lambda _: None,
        workers: int = 8,
        timing: Timing = REAL_TIME,
    ) -> None:
        """Prepare; ``gone`` hears of pods that seem not to exist: others may have the room kept for them."""
        self._client = client
        self._leads = leads
        self._gone = gone
        self._workers = workers
        self._timing = timing
        self._queue: OrderedDict[str, tuple[PodKey, str, str]] = OrderedDict()
        self._filled = asyncio.Event()
        self.patches = 0
        """Patches written so far."""

    def wake(self, pods: Iterable[PodKey], why: str, *, nominate: str = "") -> None:
        """Queue pods in the order given; ignored while somebody else leads.

        With ``nominate`` the pod names that node as its nominated one: kube-scheduler tries it before all others.
        """
        if not self._leads():
            return
        for key in pods:
            self._queue.setdefault(key.uid, (key, why, nominate))
        if self._queue:
            self._filled.set()

    async def run(self) -> None:
        """Patch queued pods until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            while not self._queue:
                self._filled.clear()
                await self._filled.wait()
            _, (key, why, nominate) = self._queue.popitem(last=False)
            await self._patch(key, why, nominate)

    async def _patch(self, key: PodKey, why: str, nominate: str) -> None:
        backoff = Backoff(0.1, 2.0, draw=self._timing.draw)
        for _ in range(MAX_ATTEMPTS):
            try:
                await self._client.patch(
                    PODS,
                    key.name,
                    self._body(key, why, nominate),
                    namespace=key.namespace,
                    subresource="status",
                    content_type=STRATEGIC_PATCH,
                )
            except (ApiError, Unreachable) as error:
                if isinstance(error, ApiError) and not error.is_transient:
                    log.info("pod_not_woken", pod=str(key), error=str(error))
                    if isinstance(error, NotFound | Conflict):
                        # The body names the UID; it is in conflict when another pod has the name by now.
                        self._gone(key)
                    return
                log.warning("wake_retried", pod=str(key), error=str(error))
                await self._timing.sleep(backoff.next_seconds())
            else:
                self.patches += 1
                log.debug("pod_woken", pod=str(key), why=why)
                return

    def _body(self, key: PodKey, why: str, nominate: str) -> dict[str, object]:
        now = self._timing.now().astimezone(UTC)
        # Time to the microsecond in the message: two wake-ups within a second must be two changes.
        condition = {
            "type": CONDITION,
            "status": "True",
            "reason": "MayFit",
            "message": f"{why}; tried again at {_micro(now)}",
            "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        nominated = {"nominatedNodeName": nominate} if nominate else {}
        return {"metadata": {"uid": key.uid}, "status": {"conditions": [condition], **nominated}}


def _micro(now: datetime) -> str:
    return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
