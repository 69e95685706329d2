"""The extender as kube-scheduler calls it: HTTP/1.1 POST, CamelCase JSON, node names only (nodeCacheCapable)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
import msgspec

from gpuslice.devices.errors import GpusliceError

Object = Mapping[str, Any]
_Answer = TypeVar("_Answer")


class ExtenderFailed(GpusliceError):
    """The extender did not give a usable answer; the pod is tried again after a back-off."""

    def __init__(self, verb: str, problem: str) -> None:
        super().__init__(f"extender {verb}: {problem}")
        self.verb = verb


class FilterResult(msgspec.Struct, rename="pascal"):
    """ExtenderFilterResult."""

    node_names: list[str] | None = None
    failed_nodes: dict[str, str] | None = None
    failed_and_unresolvable_nodes: dict[str, str] | None = None
    error: str = ""


class HostPriority(msgspec.Struct, rename="pascal"):
    """One node's score, 0..10."""

    host: str
    score: int


class BindingResult(msgspec.Struct, rename="pascal"):
    """ExtenderBindingResult."""

    error: str = ""


@dataclass(frozen=True, slots=True)
class ExtenderConfig:
    """What a KubeSchedulerConfiguration says of an extender."""

    url: str
    managed_resources: frozenset[str]
    http_timeout_seconds: float = 5.0
    prioritize: bool = True


class ExtenderClient:
    """One extender; shares the caller's HTTP session."""

    def __init__(self, config: ExtenderConfig, session: aiohttp.ClientSession) -> None:
        self.config = config
        self._session = session

    async def filter(self, pod: Object, node_names: Sequence[str]) -> FilterResult:
        """Ask which of the nodes fit."""
        body = {"Pod": pod, "Nodes": None, "NodeNames": list(node_names)}
        result = await self._post("filter", body, FilterResult)
        if result.error:
            raise ExtenderFailed("filter", result.error)
        return result

    async def prioritize(self, pod: Object, node_names: Sequence[str]) -> dict[str, int]:
        """Ask for the nodes' scores."""
        body = {"Pod": pod, "Nodes": None, "NodeNames": list(node_names)}
        scores = await self._post("prioritize", body, list[HostPriority])
        return {score.host: score.score for score in scores}

    async def bind(self, pod: Object, node: str) -> None:
        """Have the extender bind the pod."""
        metadata = pod["metadata"]
        body = {
            "PodName": metadata["name"],
            "PodNamespace": metadata["namespace"],
            "PodUID": metadata["uid"],
            "Node": node,
        }
        result = await self._post("bind", body, BindingResult)
        if result.error:
            raise ExtenderFailed("bind", result.error)

    async def _post(self, verb: str, body: object, kind: type[_Answer]) -> _Answer:
        timeout = aiohttp.ClientTimeout(total=self.config.http_timeout_seconds)
        url = f"{self.config.url}/{verb}"
        try:
            async with self._session.post(
                url, data=msgspec.json.encode(body), headers={"Content-Type": "application/json"}, timeout=timeout
            ) as answer:
                content = await answer.read()
                if answer.status != 200:
                    raise ExtenderFailed(verb, f"HTTP {answer.status}: {content[:200].decode(errors='replace')}")
                return msgspec.json.decode(content, type=kind)
        except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError) as error:
            raise ExtenderFailed(verb, str(error) or type(error).__name__) from error
