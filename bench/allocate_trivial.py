"""A device plugin that decides nothing: the baseline of the allocate benchmark.

Registers as many devices as told and answers every call with a constant: what it costs is the price of the wire.
"""

# ruff: noqa: ARG002, N802  the kubelet API fixes names and signatures

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from gpuslice.proto.deviceplugin.v1beta1 import api_pb2 as pb
from gpuslice.proto.deviceplugin.v1beta1 import api_pb2_grpc as rpc

RESOURCE = "nvidia.com/gpu"
_Context = Any
_SLOTS = 10


def trivial_cards(devices: int) -> list[str]:
    """Return the cards that so many devices are slices of."""
    return [f"GPU-00000000-0000-4000-8000-{n:012d}" for n in range(devices // _SLOTS)]


class Trivial(rpc.DevicePluginServicer):
    """Says yes."""

    def __init__(self, devices: int) -> None:
        self._ids = [f"{card}::{slot}" for card in trivial_cards(devices) for slot in range(_SLOTS)]

    async def GetDevicePluginOptions(self, request: pb.Empty, context: _Context) -> pb.DevicePluginOptions:
        """Want both optional calls."""
        return pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)

    async def ListAndWatch(self, request: pb.Empty, context: _Context) -> AsyncIterator[pb.ListAndWatchResponse]:
        """Send one list."""
        yield pb.ListAndWatchResponse(devices=[pb.Device(ID=name, health="Healthy") for name in self._ids])
        await asyncio.Event().wait()

    async def GetPreferredAllocation(
        self, request: pb.PreferredAllocationRequest, context: _Context
    ) -> pb.PreferredAllocationResponse:
        """Prefer the first."""
        response = pb.PreferredAllocationResponse()
        for container in request.container_requests:
            response.container_responses.add(deviceIDs=container.available_deviceIDs[: container.allocation_size])
        return response

    async def Allocate(self, request: pb.AllocateRequest, context: _Context) -> pb.AllocateResponse:
        """Give nothing."""
        return pb.AllocateResponse(container_responses=[pb.ContainerAllocateResponse(envs={"A": "B"})])

    async def PreStartContainer(
        self, request: pb.PreStartContainerRequest, context: _Context
    ) -> pb.PreStartContainerResponse:
        """Agree."""
        return pb.PreStartContainerResponse()


async def serve(directory: Path, devices: int) -> None:
    """Register and serve until killed."""
    server = grpc.aio.server()
    rpc.add_DevicePluginServicer_to_server(Trivial(devices), server)
    server.add_insecure_port(f"unix:{directory / 'trivial.sock'}")
    await server.start()
    options = (("grpc.default_authority", "localhost"),)
    async with grpc.aio.insecure_channel(f"unix:{directory / 'kubelet.sock'}", options=options) as channel:
        request = pb.RegisterRequest(version="v1beta1", endpoint="trivial.sock", resource_name=RESOURCE)
        await rpc.RegistrationStub(channel).Register(request)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
