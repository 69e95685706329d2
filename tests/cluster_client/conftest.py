from collections.abc import AsyncIterator

import pytest

from gpuslice.cluster.client import KubeClient
from gpuslice.cluster.config import load_cluster_config
from gpuslice.cluster.transport import Transport
from simulator.apiserver.server import ApiServer, Options, running


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with running(Options(seed=1)) as started:
        yield started


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[KubeClient]:
    async with Transport(load_cluster_config(server.kubeconfig())) as transport:
        yield KubeClient(transport)
