# ruff: noqa: N802  the kubelet API fixes the names
"""A device plugin that notes what a kubelet does to it, and does as the row says."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc

from gpuslice.proto.deviceplugin.v1beta1 import api_pb2 as pb
from gpuslice.proto.deviceplugin.v1beta1 import api_pb2_grpc as rpc
from tests.contract.kubelet.machines import Places

IDS = tuple(f"d{number}" for number in range(6))
_CHANNEL = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))
_HUFFMAN_LOCALHOST = bytes.fromhex("a0e41d139d09")
"""`localhost` in the code of RFC 7541, appendix B, in which Go's HTTP/2 sends it."""
_numbers = itertools.count()


class Probe(rpc.DevicePluginServicer):
    """A plugin of six devices on a socket of its own.

    Attributes:
        resource: What it offers; a name of its own, so that rows on one kubelet do not meet.
        calls: Names of the calls in order: options, prefer, allocate, start.
        allocated: IDs of each Allocate, in the order in which they came.
        started: IDs of each PreStartContainer.
        available: What each GetPreferredAllocation could choose from.
        prefer: Answer to GetPreferredAllocation.
        refuse_start, refuse_allocate: Words to refuse with; empty to agree.
        hold: Allocate waits for it.
        streams: ListAndWatch streams that are open.
    """

    def __init__(self, places: Places, numa: int | None = None) -> None:
        self.resource = f"example.com/probe{next(_numbers)}"
        self.calls: list[str] = []
        self.allocated: list[tuple[str, ...]] = []
        self.started: list[tuple[str, ...]] = []
        self.available: list[frozenset[str]] = []
        self.prefer: Sequence[str] = ()
        self.refuse_start = self.refuse_allocate = ""
        self.hold = asyncio.Event()
        self.hold.set()
        self.streams = 0
        self._numa = numa
        self._places = places
        self._healthy: frozenset[str] = frozenset(IDS)
        self._changed = asyncio.Condition()
        self._servers: list[grpc.aio.Server] = []

    # -- its own life ------------------------------------------------------------------------------------------------

    async def serve(self) -> str:
        """Serve on a new socket and return the socket's name."""
        name = f"probe-{next(_numbers)}.sock"
        server = grpc.aio.server()
        rpc.add_DevicePluginServicer_to_server(self, server)
        server.add_insecure_port(f"unix:{self._places.plugins / name}")
        await server.start()
        self._servers.append(server)
        return name

    async def register(self, endpoint: str = "", resource: str = "", version: str = "v1beta1") -> None:
        """Register as a plugin does, by default serving on a new socket first."""
        endpoint = endpoint or await self.serve()
        async with grpc.aio.insecure_channel(f"unix:{self._places.registration}", options=_CHANNEL) as channel:
            request = pb.RegisterRequest(
                version=version, endpoint=endpoint, resource_name=resource or self.resource, options=_OPTIONS
            )
            await rpc.RegistrationStub(channel).Register(request)

    async def offer(self, healthy: Sequence[str]) -> None:
        """Send a new list."""
        async with self._changed:
            self._healthy = frozenset(healthy)
            self._changed.notify_all()

    async def stop(self, number: int = 0) -> None:
        """End one of its servers, and with it the stream, the oldest first."""
        await self._servers.pop(number).stop(None)

    async def close(self) -> None:
        """End all of its servers."""
        self.hold.set()
        while self._servers:
            await self.stop()

    # -- the kubelet's calls -----------------------------------------------------------------------------------------

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Any) -> pb.DevicePluginOptions:
        self.calls.append("options")
        return _OPTIONS

    async def ListAndWatch(self, request: pb.Empty, context: Any) -> AsyncIterator[pb.ListAndWatchResponse]:
        self.streams += 1
        try:
            while True:
                yield pb.ListAndWatchResponse(devices=[self._device(name) for name in IDS])
                async with self._changed:
                    await self._changed.wait()
        finally:
            self.streams -= 1

    def _device(self, name: str) -> pb.Device:
        topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=self._numa)]) if self._numa is not None else None
        return pb.Device(ID=name, health="Healthy" if name in self._healthy else "Unhealthy", topology=topology)

    async def GetPreferredAllocation(self, request: Any, context: Any) -> pb.PreferredAllocationResponse:
        self.calls.append("prefer")
        self.available.append(frozenset(request.container_requests[0].available_deviceIDs))
        answer = pb.ContainerPreferredAllocationResponse(deviceIDs=self.prefer)
        return pb.PreferredAllocationResponse(container_responses=[answer])

    async def Allocate(self, request: pb.AllocateRequest, context: Any) -> pb.AllocateResponse:
        ids = tuple(request.container_requests[0].devices_ids)
        self.calls.append("allocate")
        self.allocated.append(ids)
        await self.hold.wait()
        if self.refuse_allocate:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.refuse_allocate)
        answer = pb.ContainerAllocateResponse(envs={"GOT": ",".join(sorted(ids))})
        return pb.AllocateResponse(container_responses=[answer])

    async def PreStartContainer(self, request: Any, context: Any) -> pb.PreStartContainerResponse:
        self.calls.append("start")
        self.started.append(tuple(request.devices_ids))
        if self.refuse_start:
            await context.abort(grpc.StatusCode.UNAVAILABLE, self.refuse_start)
        return pb.PreStartContainerResponse()


_OPTIONS = pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)


class Wiretap:
    """A socket in front of a plugin's, which keeps what the kubelet sends."""

    def __init__(self) -> None:
        self.sent = bytearray()

    @contextlib.asynccontextmanager
    async def before(self, places: Places, endpoint: str) -> AsyncIterator[str]:
        """Open the socket and return its name."""
        name = f"tap-{endpoint}"

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            inner_reader, inner_writer = await asyncio.open_unix_connection(places.plugins / endpoint)
            with contextlib.suppress(ConnectionError):
                await asyncio.gather(self._copy(reader, inner_writer, self.sent), self._copy(inner_reader, writer))

        server = await asyncio.start_unix_server(relay, places.plugins / name)
        try:
            yield name
        finally:
            server.close()

    @staticmethod
    async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, into: bytearray | None = None) -> None:
        try:
            while data := await reader.read(65536):
                if into is not None:
                    into += data
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()

    def names_localhost(self) -> bool:
        """Whether the kubelet has named `localhost` as the authority, in either of HTTP/2's two spellings."""
        return b"localhost" in self.sent or _HUFFMAN_LOCALHOST in self.sent
