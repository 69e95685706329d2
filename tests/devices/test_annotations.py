"""Annotation formats: round trips, HAMi's grammar, and clear errors for garbage."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.devices.allocation import PodAllocation, SliceShare
from gpuslice.devices.annotations import (
    decode_allocation,
    decode_cards,
    decode_hami_register,
    encode_allocation,
    encode_cards,
    encode_hami_pod,
    encode_hami_register,
)
from gpuslice.devices.errors import BadAnnotation
from gpuslice.devices.inventory import Card, MigProfile, NodeCards, slice_id

shares = st.builds(
    SliceShare,
    slice=st.builds(slice_id, st.uuids().map(lambda u: f"GPU-{u}"), st.integers(0, 99)),
    memory_mib=st.integers(0, 2**31 - 1),
    core_percent=st.integers(0, 100),
    family=st.sampled_from(["nvidia", "ascend"]),
    exclusive=st.booleans(),
)
names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=63)
allocations = st.builds(
    PodAllocation, node=names, containers=st.dictionaries(names, st.lists(shares, max_size=8).map(tuple), max_size=4)
)
cards = st.builds(
    Card,
    uuid=st.uuids().map(lambda u: f"GPU-{u}"),
    memory_mib=st.integers(0, 10**6),
    slots=st.integers(0, 100),
    cores=st.integers(0, 400),
    model=names,
    index=st.integers(0, 71),
    numa=st.none() | st.integers(0, 7),
    healthy=st.booleans(),
    cordoned=st.booleans(),
    mig_profiles=st.lists(
        st.builds(
            MigProfile,
            name=names,
            memory_mib=st.integers(1, 10**5),
            core_percent=st.integers(1, 100),
            placements=st.just(((0, 4), (4, 4))),
        ),
        max_size=2,
    ).map(tuple),
)


@given(allocations)
def test_a_decision_survives_the_annotation(allocation: PodAllocation) -> None:
    assert decode_allocation("pod", encode_allocation(allocation)) == allocation


@given(st.lists(cards, max_size=9, unique_by=lambda card: card.uuid), st.booleans())
def test_an_inventory_survives_the_annotation(found: list[Card], identity_known: bool) -> None:
    links = tuple(tuple(10 * (i != j) for j in range(len(found))) for i in range(len(found)))
    node = NodeCards("n1", tuple(found), links=links, identity_known=identity_known)
    assert decode_cards("n1", encode_cards(node)) == node


def test_the_allocation_reads_as_documented() -> None:
    allocation = PodAllocation("n1", {"main": (SliceShare("GPU-a::3", 3000, 30),)})
    assert json.loads(encode_allocation(allocation)) == {
        "v": 1,
        "node": "n1",
        "containers": {"main": [{"slice": "GPU-a::3", "memoryMiB": 3000, "cores": 30, "family": "nvidia"}]},
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("", "truncated", id="an empty value"),
        pytest.param("{", "truncated", id="cut JSON"),
        pytest.param('{"v":2,"node":"n","containers":{}}', "version 2", id="a later version"),
        pytest.param('{"v":1,"node":"n"}', "containers", id="a missing field"),
        pytest.param('{"v":1,"node":"n","containers":{"c":[{"slice":"GPU-a"}]}}', "slice", id="no slice number"),
        pytest.param('{"v":1,"node":"n","containers":{"c":[{"slice":"GPU-a::-1"}]}}', "slice", id="negative slice"),
        pytest.param(
            '{"v":1,"node":"n","containers":{"c":[{"slice":"GPU-a::1","memoryMiB":-5}]}}', "memoryMiB", id="less than 0"
        ),
        pytest.param(
            f'{{"v":1,"node":"n","containers":{{"c":[{{"slice":"GPU-a::{"9" * 5000}"}}]}}}}',
            "slice",
            id="more digits than Python reads",
        ),
        pytest.param(
            '{"v":1,"node":"n","containers":{"c":[' + ",".join(['{"slice":"GPU-a::1"}'] * 4097) + "]}}",
            "4097 shares",
            id="more shares than fit into a pod",
        ),
        pytest.param('{"x":' * 50_000, "recursion", id="nested too deeply"),
    ],
)
def test_an_unreadable_allocation_says_why(text: str, problem: str) -> None:
    with pytest.raises(BadAnnotation, match=problem) as caught:
        decode_allocation("default/p", text)
    assert "default/p" in str(caught.value)
    assert "gpuslice.io/allocation" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("[]", "object", id="not an object"),
        pytest.param(
            '{"v":1,"cards":[{"uuid":"a","memoryMiB":1,"slots":1,"cores":1},{"uuid":"a","memoryMiB":1,"slots":1,"cores":1}]}',
            "same uuid",
            id="one card twice",
        ),
        pytest.param(
            '{"v":1,"cards":[{"uuid":"a","memoryMiB":1,"slots":1,"cores":1}],"links":[[0,1]]}',
            "1 by 1",
            id="links of another size",
        ),
        pytest.param('{"v":1,"cards":[{"uuid":"a","memoryMiB":-1,"slots":1,"cores":1}]}', "0 or more", id="negative"),
        pytest.param('{"x":' * 50_000, "recursion", id="nested too deeply"),
    ],
)
def test_an_unreadable_inventory_says_why(text: str, problem: str) -> None:
    with pytest.raises(BadAnnotation, match=problem):
        decode_cards("n1", text)


def test_hami_reads_our_decision_by_position() -> None:
    allocation = PodAllocation(
        "n1", {"a": (SliceShare("GPU-0::0", 3000, 30),), "c": (SliceShare("GPU-0::1", 5000, 0),)}
    )
    assert encode_hami_pod(allocation, ["a", "b", "c"], {"nvidia": "NVIDIA"}) == (
        "GPU-0,NVIDIA,3000,30:;;GPU-0,NVIDIA,5000,0:;"
    )


def test_hami_register_leaves_zero_values_out() -> None:
    card = Card("GPU-0", memory_mib=16384, slots=10, model="Tesla T4", index=0, numa=0, healthy=False)
    assert json.loads(encode_hami_register([card])) == [
        {"id": "GPU-0", "count": 10, "devmem": 16384, "devcore": 100, "type": "NVIDIA-Tesla T4", "mode": "hami-core"}
    ]


def test_a_node_registered_by_hami_is_read() -> None:
    text = '[{"id":"GPU-7","index":7,"count":10,"devmem":81920,"devcore":100,"type":"NVIDIA A100","health":true}]'
    node = decode_hami_register("n1", text)
    assert node.cards == (Card("GPU-7", memory_mib=81920, slots=10, model="NVIDIA A100", index=7, numa=0),)
