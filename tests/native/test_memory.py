"""Memory: every way of allocating counts, nothing goes over, everything comes back."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuslice.devices.limits import MIB, DeviceLimit, uuid_to_bytes
from tests.native.shim_rig import CONTEXT_MIB, OUT_OF_MEMORY, Client, Container, Node

Maker = Callable[..., Container]
KINDS = ["plain", "pitch", "managed", "async", "pool", "vmm", "array", "array3d", "mipmap"]
GRAIN_MIB = 2


def ready(container: Container, device: int = 0, **environment: str) -> Client:
    client = container.start(**environment)
    assert client.code(f"device {device}") == 0
    return client


def test_the_container_sees_its_own_total(container: Maker) -> None:
    with ready(container(3000)) as client:
        assert client.ask("total 0") == ["0", str(3000 * MIB)]
        assert client.total_mib() == 3000
        assert client.free_mib() == 3000 - CONTEXT_MIB
        assert client.ask("nvml 0")[1:3] == [str(3000 * MIB), str(CONTEXT_MIB * MIB)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_way_of_allocating_is_charged_refused_at_the_edge_and_given_back(container: Maker, kind: str) -> None:
    box = container(1000)
    with ready(box) as client:
        before = client.free_mib()
        assert client.alloc(100, kind) == 0
        taken = before - client.free_mib()
        assert 100 <= taken <= (200 if kind == "mipmap" else 132)
        assert client.alloc(800, kind) == OUT_OF_MEMORY, "a request beyond the share must get the code for it"
        assert client.free_mib() >= before - taken, "a refused request must leave no charge"
        assert client.code("free") == 0
        assert client.free_mib() >= before - GRAIN_MIB


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_charged_is_what_the_device_handed_out(container: Maker, kind: str) -> None:
    box = container(1000)
    with ready(box) as client:
        for _ in range(7):
            assert client.alloc(22, kind) == 0
        card = box.node.ledger()["cards"][0]
        assert box.held_mib() * MIB == card["used_bytes"]


@pytest.mark.parametrize(
    ("kind", "function", "code"),
    [
        pytest.param("async", "cuMemFree_v2", 0, id="a stream-ordered block may be freed synchronously"),
        pytest.param("pool", "cuMemFree_v2", 0, id="so may one from a pool of the program's own"),
        pytest.param("plain", "cuMemFreeAsync", 0, id="a plain block may be freed in stream order"),
    ],
)
def test_blocks_may_be_freed_by_the_other_function(container: Maker, kind: str, function: str, code: int) -> None:
    with ready(container(1000)) as client:
        before = client.free_mib()
        client.alloc(64, kind)
        assert client.code(f"freeas {function}") == code
        assert client.code("wait") == 0, "a pool gives memory back at the next synchronisation"
        assert client.free_mib() >= before - GRAIN_MIB


def test_freeing_what_is_not_there_gets_the_drivers_own_answer_and_changes_nothing(container: Maker) -> None:
    with ready(container(1000)) as client, ready_native(container) as native:
        _, address = client.ask(f"alloc plain {64 * MIB}")
        before = client.free_mib()
        for bad in ("0", "12345", str(int(address) + 4096)):
            assert client.code(f"badfree {bad}") == native.code(f"badfree {bad}")
        assert client.free_mib() == before
        assert client.code("free") == 0
        assert client.code(f"badfree {address}") != 0, "a second free is the program's fault and must be told so"
        assert client.free_mib() == before + 64


def ready_native(container: Maker) -> Client:
    """The same program without the library."""
    environment = {name: value for name, value in container().environment.items() if name != "LD_PRELOAD"}
    client = Client(environment)
    client.code("device 0")
    return client


def test_memory_stays_charged_while_it_is_mapped(container: Maker) -> None:
    """The client releases the handle of a vmm block right after mapping it."""
    with ready(container(1000)) as client:
        for _ in range(3):
            assert client.alloc(200, "vmm") == 0
        assert client.alloc(200, "vmm") == OUT_OF_MEMORY


@pytest.mark.parametrize(
    "size", [pytest.param(4096, id="4 KiB"), pytest.param(300_000, id="300 kB"), pytest.param(1 << 20, id="1 MiB")]
)
def test_small_blocks_are_charged_by_the_page(container: Maker, size: int) -> None:
    box = container(400)
    with ready(box) as client:
        granted = int(client.ask(f"fill {size}")[1])
        card = box.node.ledger()["cards"][0]
        assert card["used_bytes"] <= 400 * MIB
        assert card["peak_bytes"] <= 400 * MIB
        assert granted * size >= 0.70 * 100 * MIB
        assert client.code("freeall") == 0
        assert client.free_mib() >= 400 - CONTEXT_MIB - GRAIN_MIB


def test_a_second_context_is_charged_and_refused_when_it_does_not_fit(container: Maker) -> None:
    with ready(container(700)) as client:
        assert client.code("context 0") == 0
        assert client.free_mib() == 100
        assert client.code("context 0") == OUT_OF_MEMORY
        assert client.code("free") == 0
        assert client.free_mib() == 400


def test_memory_of_a_destroyed_context_comes_back(container: Maker) -> None:
    with ready(container(1000)) as client:
        before = client.free_mib()
        assert client.code("context 0") == 0
        assert client.alloc(100) == 0
        assert client.code("fork pid") == 0
        client.code("freeall")
        assert client.free_mib() <= before


def test_two_processes_share_one_quota(container: Maker) -> None:
    box = container(1500)
    with ready(box) as first, ready(box) as second:
        assert first.alloc(500) == 0
        assert second.free_mib() == 1500 - 2 * CONTEXT_MIB - 500
        assert second.alloc(500) == OUT_OF_MEMORY
        assert second.alloc(300) == 0
        assert first.code("free") == 0
        assert second.alloc(500) == 0


def test_containers_on_one_card_do_not_share(container: Maker) -> None:
    with ready(container(1000)) as first, ready(container(2000)) as second:
        assert first.alloc(700) == 0
        assert second.free_mib() == 2000 - CONTEXT_MIB
        assert second.alloc(1700) == 0


@pytest.mark.parametrize("visible", ["0,1", "1,0", "1", "uuid-reversed"])
def test_visible_devices_cannot_confuse_whose_memory_it_is(node: Node, visible: str) -> None:
    uuids = node.uuids()
    box = Container(node, "box", [DeviceLimit(uuids[0], 1000), DeviceLimit(uuids[1], 2000)])
    shares = {"0,1": [1000, 2000], "1,0": [2000, 1000], "1": [2000], "uuid-reversed": [2000, 1000]}[visible]
    value = ",".join(reversed(uuids)) if visible == "uuid-reversed" else visible
    with box.start(CUDA_VISIBLE_DEVICES=value) as client:
        for device, share in enumerate(shares):
            assert client.code(f"device {device}") == 0
            assert client.total_mib() == share
            assert client.alloc(share - CONTEXT_MIB) == 0
            assert client.alloc(GRAIN_MIB) == OUT_OF_MEMORY


def test_a_card_that_is_not_in_the_limits_is_closed(container: Maker) -> None:
    box = container(1000, cards=1)
    with box.start() as client:
        assert client.code("device 1") == OUT_OF_MEMORY
        assert client.ask("total 1") == ["0", "0"]
        assert "not among the devices" in client.close()


def test_raised_and_lowered_limits_are_in_force_at_once(container: Maker) -> None:
    box = container(1000)
    uuid = box.node.uuids()[0]
    with ready(box) as client:
        assert client.alloc(1000) == OUT_OF_MEMORY
        box.set_limits(DeviceLimit(uuid, 2000))
        assert client.total_mib() == 2000
        assert client.alloc(1000) == 0
        box.set_limits(DeviceLimit(uuid, 800))
        assert (client.free_mib(), client.total_mib()) == (0, 800)
        assert client.alloc(GRAIN_MIB) == OUT_OF_MEMORY
        assert client.code("free") == 0
        assert client.alloc(400) == 0


def test_memory_beyond_the_device_share_may_live_on_the_host_where_that_is_allowed(node: Node) -> None:
    box = Container(node, "box", [DeviceLimit(node.uuids()[0], 2000, spill_mib=1000)])
    with ready(box) as client:
        assert client.alloc(600) == 0
        assert client.alloc(600) == 0, "the part beyond 1000 MiB becomes managed memory"
        held = box.state().processes[0].held_bytes[0]
        assert (held["data"] // MIB, held["managed"] // MIB) == (600, 600)
        assert client.alloc(600) == OUT_OF_MEMORY
        assert client.code("free") == 0
        assert client.free_mib() == 2000 - CONTEXT_MIB - 600


def test_without_limits_nothing_changes(node: Node) -> None:
    environment = {**node.environment, "LD_PRELOAD": str(Container(node, "none").environment["LD_PRELOAD"])}
    with Client(environment) as client:
        assert client.code("device 0") == 0
        assert client.total_mib() > 80_000
        assert client.alloc(70_000) == 0


def test_a_forked_child_takes_nothing_of_its_parents(container: Maker) -> None:
    box = container(1000)
    with ready(box) as client:
        assert client.alloc(100) == 0
        assert int(client.ask("fork pid")[1]) != client.process.pid
        assert client.alloc(100) == 0
        assert len(box.state().processes) == 1
        assert client.free_mib() == 1000 - CONTEXT_MIB - 200


def test_process_lists_show_the_containers_own_processes_by_its_own_pids(container: Maker) -> None:
    box = container(3000)
    with ready(box) as first, ready(box) as second, ready(container(1000)):
        first.alloc(100)
        second.alloc(200)
        _, count, *entries = first.ask("processes 0")
        assert count == "2"
        assert set(entries) == {
            f"{first.process.pid}:{(100 + CONTEXT_MIB) * MIB}",
            f"{second.process.pid}:{(200 + CONTEXT_MIB) * MIB}",
        }


def test_a_mig_instance_is_a_device_like_any_other(built: None, tmp_path: Path) -> None:
    instance = "MIG-11111111-2222-3333-4444-555555555555"
    cards = f"[{{model: A100-SXM4-80GB, mig: [{{profile: 3g.40gb, uuid: {instance}}}]}}]"
    box = Container(Node(tmp_path / "node", cards=cards), "box", [DeviceLimit(instance, 2000)])
    with box.start(CUDA_VISIBLE_DEVICES=instance) as client:
        assert client.code("device 0") == 0
        assert client.total_mib() == 2000
        assert client.alloc(1650) == 0
        assert client.alloc(100) == OUT_OF_MEMORY


@pytest.mark.parametrize("visible", ["1", "0,1", "1,0"])
def test_the_context_of_each_card_is_measured_on_that_card(node: Node, visible: str) -> None:
    uuids = node.uuids()
    box = Container(node, "box", [DeviceLimit(uuid, 1000) for uuid in uuids])
    with box.start(CUDA_VISIBLE_DEVICES=visible) as client:
        for ordinal in range(len(visible.split(","))):
            assert client.code(f"device {ordinal}") == 0
            assert client.free_mib() == 1000 - CONTEXT_MIB
    rows = {use.uuid_bytes: use.context_bytes // MIB for use in box.state().devices}
    used = [uuids[int(index)] for index in visible.split(",")]
    assert all(rows[uuid_to_bytes(uuid)] == CONTEXT_MIB for uuid in used)
