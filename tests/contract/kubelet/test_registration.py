"""How plugins come and go."""

import grpc
import pytest

from tests.contract.kubelet.probe import IDS, Probe, Wiretap
from tests.contract.kubelet.rig import Rig, container, pod

pytestmark = pytest.mark.anyio


async def test_it_dials_back_inside_register_with_authority_localhost(rig: Rig, probe: Probe) -> None:
    tap = Wiretap()
    async with tap.before(rig.places, await probe.serve()) as endpoint:
        await probe.register(endpoint)
        # What the kubelet asks next may have come by now.
        assert probe.calls[:1] == ["options"]
        assert tap.names_localhost()
        await probe.close()


@pytest.mark.parametrize(
    ("resource", "version", "problem"),
    [
        pytest.param("foo", "v1beta1", "is invalid", id="no domain"),
        pytest.param("x.kubernetes.io/foo", "v1beta1", "is invalid", id="Kubernetes' own domain"),
        pytest.param("requests.example.com/foo", "v1beta1", "is invalid", id="a quota's prefix"),
        pytest.param("", "v1alpha", "is not supported", id="another version"),
    ],
)
async def test_a_registration_is_refused(rig: Rig, probe: Probe, resource: str, version: str, problem: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=problem):
        await probe.register(resource=resource, version=version)
    assert probe.calls == []


async def test_a_device_that_is_not_healthy_is_capacity_and_not_allocatable(rig: Rig, registered: Probe) -> None:
    await registered.offer(IDS[:4])
    await rig.until_devices(registered.resource, 6, 4)
    await registered.offer(IDS)
    await rig.until_devices(registered.resource, 6, 6)


async def test_a_plugin_that_goes_takes_allocatable_to_zero_and_leaves_capacity(rig: Rig, registered: Probe) -> None:
    await registered.stop()
    await rig.until_devices(registered.resource, 6, 0)


async def test_the_end_of_an_old_stream_also_stops_a_newer_registration(rig: Rig, registered: Probe) -> None:
    await registered.register()
    await rig.until(lambda: registered.streams == 2, "the second stream")
    await registered.stop(0)
    await rig.until_devices(registered.resource, 6, 0)
    await rig.until(lambda: registered.streams == 0, "the newer stream has ended too")


async def test_a_restart_ends_streams_and_removes_sockets_but_no_files(rig: Rig, registered: Probe) -> None:
    notes = rig.places.plugins / "notes.txt"
    notes.touch()
    sockets = set(rig.places.plugins.glob("probe-*.sock"))
    await rig.restart_kubelet()
    assert {path for path in sockets if path.exists()} == set()
    assert notes.exists()
    await rig.until(lambda: registered.streams == 0, "the stream has ended")
    await registered.register()
    await rig.until_offered(registered.resource, 6)
    notes.unlink()


async def test_a_resource_that_nobody_ever_registered_is_not_a_device(rig: Rig, probe: Probe) -> None:
    made = await rig.create(pod("plain", container("main", probe.resource, 1)))
    await rig.running(made)
    assert rig.recorded(probe.resource) == {}
