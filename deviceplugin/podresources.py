"""Asking the kubelet which pods it knows and which devices they hold.

Only `List`, and only inside GetPreferredAllocation: on current kubelets a List during a running Allocate can drop the
reservation in flight and so cause a duplicate allocation. The kubelet allows a burst of 10 calls and 100 per second,
and refuses the others: the next one is allowed 10 ms later.
"""

import asyncio
import os
from collections.abc import Iterator, KeysView, Mapping
from pathlib import Path

import grpc

from deviceplugin.book import Listing
from gpuslice.proto.podresources.v1 import api_pb2 as pb
from gpuslice.proto.podresources.v1 import api_pb2_grpc as rpc

# With all attempts.
_CALL_SECONDS = 1.0
_RETRY_SECONDS = 0.01
_ATTEMPTS = 10
_OPTIONS = (
    ("grpc.default_authority", "localhost"),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
)


class PodResources:
    """A client of the pod resources socket. Made on first use, inside the event loop."""

    def __init__(self, socket: Path | None) -> None:
        self._socket = socket
        self._channel: grpc.aio.Channel | None = None
        self._stub: rpc.PodResourcesListerAsyncStub | None = None
        self.failures = 0

    async def list(self, resource: str) -> Listing | None:
        """Return every pod's devices of one resource, or None when the kubelet does not answer in time."""
        # To dial a socket that is not there makes the channel wait before it dials again, also once it is there.
        if not self._has_socket():
            return None
        stub = self._stub or self._open()
        clock = asyncio.get_running_loop().time
        deadline = clock() + _CALL_SECONDS
        for attempt in range(_ATTEMPTS):
            try:
                answer = await stub.List(pb.ListPodResourcesRequest(), timeout=deadline - clock())
            except grpc.aio.AioRpcError as error:
                self.failures += 1
                if error.code() is grpc.StatusCode.UNAVAILABLE and stub is self._stub:
                    # Nobody listens there any more, or not yet: the same wait, which a new channel does not know.
                    await self.close()
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED or attempt == _ATTEMPTS - 1:
                    return None
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return _Listed(answer, resource)
        return None

    def _has_socket(self) -> bool:
        return self._socket is not None and os.path.exists(self._socket)

    def _open(self) -> "rpc.PodResourcesListerAsyncStub":
        self._channel = grpc.aio.insecure_channel(f"unix:{self._socket}", options=_OPTIONS)
        self._stub = rpc.PodResourcesListerStub(self._channel)
        return self._stub

    async def close(self) -> None:
        """Close the connection; calls on it may end. The next call opens another."""
        channel, self._channel, self._stub = self._channel, None, None
        if channel is not None:
            await channel.close(_CALL_SECONDS)


class _Listed(Mapping[tuple[str, str], Mapping[str, frozenset[str]]]):
    """What the kubelet listed, read on demand: of all the pods of a node, the few in admission are looked at."""

    def __init__(self, answer: pb.ListPodResourcesResponse, resource: str) -> None:
        self._pods = {(pod.namespace, pod.name): pod for pod in answer.pod_resources}
        self._resource = resource

    def __getitem__(self, pod: tuple[str, str]) -> Mapping[str, frozenset[str]]:
        return {
            # A resource has one entry per NUMA node.
            container.name: frozenset(
                device
                for devices in container.devices
                if devices.resource_name == self._resource
                for device in devices.device_ids
            )
            for container in self._pods[pod].containers
        }

    def keys(self) -> KeysView[tuple[str, str]]:
        """Return the pods; a dictionary's own view, which is quick to look into."""
        return self._pods.keys()

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._pods)

    def __len__(self) -> int:
        return len(self._pods)
