from collections.abc import AsyncIterator

import pytest

from gpuslice.cluster.client import KubeClient
from gpuslice.cluster.config import load_cluster_config
from gpuslice.cluster.lean import LeanTransport
from gpuslice.cluster.transport import Transport
from simulator.apiserver.server import ApiServer, Options, running


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with running(Options(seed=1)) as started:
        yield started


@pytest.fixture(params=[Transport, LeanTransport], ids=["aiohttp", "lean"])
async def client(server: ApiServer, request: pytest.FixtureRequest) -> AsyncIterator[KubeClient]:
    async with request.param(load_cluster_config(server.kubeconfig())) as transport:
        yield KubeClient(transport)
