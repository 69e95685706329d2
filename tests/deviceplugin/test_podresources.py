"""The kubelet's listing while the kubelet comes and goes, over a real socket."""

import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from deviceplugin.podresources import PodResources
from gpuslice.proto.podresources.v1 import api_pb2_grpc as rpc
from simulator.kubelet import servers
from simulator.kubelet.devicemanager import DeviceManager

pytestmark = pytest.mark.anyio


@contextlib.asynccontextmanager
async def kubelet(path: Path) -> AsyncIterator[None]:
    server = grpc.aio.server()
    rpc.add_PodResourcesListerServicer_to_server(servers.PodResources(DeviceManager(path.parent, tuple), tuple), server)
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    yield
    await server.stop(0)


@pytest.mark.parametrize("left", [False, True], ids=["the socket goes", "the socket stays, and nobody listens"])
@pytest.mark.parametrize("known", [False, True], ids=["never asked before", "it answered before"])
async def test_the_first_question_after_the_kubelet_is_back_is_answered(
    short_path: Path, left: bool, known: bool
) -> None:
    path = short_path / "k.sock"
    client = PodResources(path)
    answered = []
    if known:
        async with kubelet(path):
            answered.append(await client.list("r") is not None)
    if left:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    answered += [await client.list("r") is not None for _ in range(3)]
    async with kubelet(path):
        answered.append(await client.list("r") is not None)
        await client.close()
    assert answered == [*[True] * known, False, False, False, True]


async def test_without_a_socket_nobody_is_asked() -> None:
    client = PodResources(None)
    assert (await client.list("r"), client.failures) == (None, 0)
