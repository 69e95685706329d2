"""The kubelets that the contract holds for: the stub always, the real one under the `cluster` marker."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.contract.kubelet.kubelets import BOTH
from tests.contract.kubelet.node_daemon import NodeDaemon
from tests.contract.kubelet.probe import Probe
from tests.contract.kubelet.rig import Rig, rig_on
from tests.contract.kubelet.stub_machine import stub_machine


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def real_node(request: pytest.FixtureRequest) -> Iterator[object]:
    """The real node, started once; its Python is imported only where it is wanted."""
    from tests.contract.kubelet.real_machine import real_machine

    with real_machine(lambda: request.session.testsfailed) as machine:
        yield machine


@pytest.fixture(params=BOTH)
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    """A node whose kubelet runs, without pods."""
    if request.param == "real":
        async with rig_on(request.getfixturevalue("real_node")) as rig:
            yield rig
        return
    # A socket's path has 107 bytes, of which pytest's own directories take most.
    with tempfile.TemporaryDirectory(prefix="gs") as folder:
        async with stub_machine(Path(folder)) as machine, rig_on(machine) as rig:
            yield rig


@pytest.fixture
async def probe(rig: Rig) -> AsyncIterator[Probe]:
    """A plugin that is not registered yet."""
    made = Probe(rig.places)
    yield made
    await made.close()


@pytest.fixture
async def registered(rig: Rig, probe: Probe) -> Probe:
    """A plugin whose devices the node offers, and has in its record."""
    await probe.register()
    await rig.until_offered(probe.resource, 6)
    await rig.until(lambda: rig.remembers(probe.resource), "the checkpoint has the resource")
    return probe


@pytest.fixture
async def daemon(rig: Rig) -> AsyncIterator[NodeDaemon]:
    """The product's node daemon, registered."""
    async with NodeDaemon(rig) as made:
        await made.start()
        yield made
