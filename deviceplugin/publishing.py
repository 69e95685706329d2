"""The node's annotations: what the scheduler reads. Written when their content changes, never as a heartbeat."""

import asyncio
from collections.abc import Callable, Mapping

import structlog

from gpuslice.cluster.client import KubeClient
from gpuslice.cluster.errors import ApiError, Unreachable
from gpuslice.cluster.resources import NODES

log = structlog.get_logger(__name__)

_RETRY_SECONDS = 2.0


class Publisher:
    """Keeps the node's annotations equal to what `wanted` says."""

    def __init__(self, client: KubeClient, node: str, wanted: Callable[[], Mapping[str, str] | None]) -> None:
        self._client = client
        self._node = node
        self._wanted = wanted
        self._seen: Mapping[str, str] | None = None
        self._written: Mapping[str, str] = {}
        self._wake = asyncio.Event()
        self.writes = 0

    def seen(self, node_annotations: Mapping[str, str]) -> None:
        """Take note of what the node object says now. Most changes of a node are the kubelet's heartbeats."""
        self._seen = node_annotations
        if not self._written or not _says(node_annotations, self._written):
            self._wake.set()

    def changed(self) -> None:
        """Take note that the inventory may have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Write whenever something differs, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            wanted = self._wanted()
            if wanted is None or self._seen is None:
                continue
            self._written = wanted
            if _says(self._seen, wanted):
                continue
            try:
                await self._client.patch(NODES, self._node, {"metadata": {"annotations": dict(wanted)}})
                self._seen = {**self._seen, **wanted}
                self.writes += 1
                log.info("cards_published", node=self._node)
            except (ApiError, Unreachable) as error:
                log.warning("cards_not_published", node=self._node, error=str(error))
                await asyncio.sleep(_RETRY_SECONDS)
                self._wake.set()


def _says(found: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(found.get(key) == value for key, value in wanted.items())
