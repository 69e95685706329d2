"""Memory that processes of one container share stays charged as long as anybody uses it, and once."""

from collections.abc import Callable

import pytest

from gpuslice.devices.limits import MIB
from tests.native.shim_rig import CONTEXT_MIB, OUT_OF_MEMORY, Client, Container

Maker = Callable[..., Container]
QUOTA_MIB = 2000
SHARED_MIB = 500


def share(maker: Client, user: Client, kind: str) -> None:
    code, handle = maker.ask("export")
    assert code == "0"
    assert user.code(f"import {kind} {SHARED_MIB * MIB} {handle}") == 0


def used_mib(box: Container) -> int:
    return box.state().devices[0].used_bytes // MIB


def truth_mib(box: Container) -> int:
    return int(box.node.ledger()["cards"][0]["used_bytes"]) // MIB


@pytest.fixture
def box(container: Maker) -> Container:
    return container(QUOTA_MIB)


def start(box: Container) -> Client:
    client = box.start()
    assert client.code("device 0") == 0
    return client


def reap(client: Client) -> None:
    assert client.alloc(2 * QUOTA_MIB) == OUT_OF_MEMORY


@pytest.mark.parametrize("kind", ["plain", "vmm"])
def test_shared_memory_is_charged_once(box: Container, kind: str) -> None:
    with start(box) as maker, start(box) as user:
        assert maker.alloc(SHARED_MIB, kind) == 0
        share(maker, user, kind)
        assert used_mib(box) == truth_mib(box) == 2 * CONTEXT_MIB + SHARED_MIB
        assert user.code("unimport") == 0
        assert maker.code("free") == 0
        assert used_mib(box) == truth_mib(box) == 2 * CONTEXT_MIB


@pytest.mark.parametrize("kind", ["plain", "vmm"])
def test_memory_of_a_dead_maker_stays_charged_until_its_last_user_is_gone(box: Container, kind: str) -> None:
    maker, first, second = start(box), start(box), start(box)
    assert maker.alloc(SHARED_MIB, kind) == 0
    assert maker.alloc(100) == 0
    assert maker.code("free") == 0
    share(maker, first, kind)
    share(maker, second, kind)
    assert maker.alloc(100) == 0
    maker.kill()
    reap(first)
    assert used_mib(box) == truth_mib(box) == 2 * CONTEXT_MIB + SHARED_MIB
    assert first.alloc(QUOTA_MIB - 2 * CONTEXT_MIB - SHARED_MIB + 2) == OUT_OF_MEMORY
    assert first.code("unimport") == 0
    reap(first)
    assert used_mib(box) == truth_mib(box) == 2 * CONTEXT_MIB + SHARED_MIB
    second.kill()
    reap(first)
    assert used_mib(box) == truth_mib(box) == CONTEXT_MIB
    assert first.alloc(QUOTA_MIB - CONTEXT_MIB) == 0
    first.close()


def test_memory_that_nobody_imported_goes_with_its_maker(box: Container) -> None:
    with start(box) as other:
        maker = start(box)
        assert maker.alloc(SHARED_MIB) == 0
        assert maker.ask("export")[0] == "0"
        maker.kill()
        reap(other)
        assert used_mib(box) == truth_mib(box) == CONTEXT_MIB
        assert len(box.state().processes) == 1


def test_memory_bound_to_a_multicast_object_is_charged_until_it_is_unbound(box: Container) -> None:
    with start(box) as client:
        assert client.code(f"use multicast {SHARED_MIB * MIB}") == 0
        assert used_mib(box) == truth_mib(box) == CONTEXT_MIB + SHARED_MIB
        assert client.alloc(QUOTA_MIB - CONTEXT_MIB - SHARED_MIB + 2) == OUT_OF_MEMORY
        assert client.code(f"unuse multicast {SHARED_MIB * MIB}") == 0
        assert used_mib(box) == truth_mib(box) == CONTEXT_MIB


def test_memory_in_a_sparse_array_is_charged_and_stays_so(box: Container) -> None:
    """Unmapping does not say which memory it frees, so the charge goes with the process."""
    with start(box) as client:
        assert client.code(f"use sparse {SHARED_MIB * MIB}") == 0
        array_mib = truth_mib(box) - CONTEXT_MIB - SHARED_MIB
        assert 0 <= array_mib <= 2
        assert used_mib(box) == CONTEXT_MIB + SHARED_MIB + array_mib
        assert client.code(f"unuse sparse {SHARED_MIB * MIB}") == 0
        assert truth_mib(box) == CONTEXT_MIB + array_mib
        assert used_mib(box) == CONTEXT_MIB + SHARED_MIB + array_mib
