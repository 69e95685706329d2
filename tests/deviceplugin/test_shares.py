"""What a pod counts for on a card, as the node adds it up, and how a pod that changes is read."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from deviceplugin.offers import GPU_RESOURCE
from deviceplugin.tenants import Holders, Need, Tenant, asks_the_same, in_state_of, read_tenant
from gpuslice.devices import annotations
from gpuslice.devices.allocation import SliceShare
from gpuslice.devices.pods import Pod
from gpuslice.devices.requests import Role
from simulator.kubelet.rig import NODE, Ask, at, gpu, pod


def test_an_init_container_that_has_ended_counts_no_more() -> None:
    def need(name: str, role: Role, memory_mib: int) -> Need:
        return Need(name, role, "nvidia.com/gpu", 1, (SliceShare("GPU-a::0", memory_mib, 10),))

    starting = Tenant("u", "default", "p", (need("i", Role.INIT, 8000), need("c", Role.APP, 4000)))
    assert starting.share_of("GPU-a") == (8000, 10)
    assert replace(starting, initialized=True).share_of("GPU-a") == (4000, 10)


def seen(status: dict[str, Any] | None = None, **metadata: Any) -> Pod:
    body = pod("p", Ask("i", (at(0, 0),), 8000, init=True), Ask("c", (at(0, 0),), 4000))
    body["metadata"] |= {"uid": "u", **metadata}
    return msgspec.convert({**body, "status": status or {}}, Pod)


def read(one: Pod) -> Tenant:
    tenant = read_tenant(one, node=NODE, resources={GPU_RESOURCE})
    assert tenant is not None
    return tenant


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(seen(), id="nothing"),
        pytest.param(seen({"startTime": "2026-01-01T00:00:00Z"}), id="nothing that matters"),
        pytest.param(
            seen({"containerStatuses": [{"name": "c", "state": {"running": {}}}]}), id="a container has started"
        ),
        pytest.param(seen({"conditions": [{"type": "Initialized", "status": "True"}]}), id="init containers are done"),
        pytest.param(seen({"phase": "Succeeded"}), id="the pod has ended"),
        pytest.param(seen(deletionTimestamp="2026-01-01T00:00:00Z"), id="the pod is being deleted"),
    ],
)
def test_a_pod_whose_state_has_changed_is_read_as_if_it_were_new(now: Pod) -> None:
    known = read(seen())
    looked_at = (known.share_of(gpu(0)), known.slices, known.of(GPU_RESOURCE))
    changed = in_state_of(known, now)
    assert asks_the_same(now, seen())
    assert (changed, changed.share_of(gpu(0))) == (read(now), read(now).share_of(gpu(0)))
    assert looked_at[1:] == (changed.slices, changed.of(GPU_RESOURCE))


def other_reservation() -> Pod:
    body = pod("p", Ask("c", (at(1, 0),)))
    return seen(annotations=body["metadata"]["annotations"])


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(seen(uid="another"), id="a new pod of the same name"),
        pytest.param(other_reservation(), id="another reservation"),
        pytest.param(seen(annotations={annotations.ALLOCATION: ""}), id="the reservation was taken away"),
        pytest.param(msgspec.structs.replace(seen(), spec=msgspec.convert({}, Pod).spec), id="other containers"),
    ],
)
def test_a_pod_that_asks_for_something_else_is_read_anew(now: Pod) -> None:
    assert not asks_the_same(now, seen())


def test_holders_of_a_card_are_known_until_they_are_gone() -> None:
    def on(name: str, *slices: str) -> Tenant:
        shares = tuple(SliceShare(name_, 1) for name_ in slices)
        return Tenant(name, "ns", name, (Need("c", Role.APP, GPU_RESOURCE, 1, shares),))

    holders, one, two = Holders(), on("one", at(0, 0), at(1, 0)), on("two", at(1, 1))
    for tenant in (one, two):
        holders.replace(None, tenant)
    found = [[t.uid for t in holders.of(cards)] for cards in ([gpu(0)], [gpu(1)], [gpu(0), gpu(1)], [gpu(2)], [])]
    moved = on("one", at(2, 0))
    holders.replace(one, moved)
    found.append([t.uid for t in holders.of([gpu(0), gpu(2)])])
    holders.replace(moved, None)
    found.append([t.uid for t in holders.of([gpu(0), gpu(1), gpu(2)])])
    assert found == [["one"], ["one", "two"], ["one", "two"], [], [], ["one"], ["two"]]
