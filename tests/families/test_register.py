"""Nodes that our daemon did not register are read as their plugins wrote them; the unreadable is refused by name."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuslice.devices.annotations import CARDS, encode_cards
from gpuslice.devices.errors import BadAnnotation
from gpuslice.devices.families.register import CORDON, cards_of_node, read_node
from gpuslice.devices.inventory import Card, NodeCards
from tests.families.cluster import FAMILIES, node

NVIDIA = "hami.io/node-nvidia-register"
DCU = "hami.io/node-dcu-register"


def cards(annotations: Any = None, capacity: Any = None) -> tuple[Card, ...]:
    found = cards_of_node(node(annotations, capacity), FAMILIES)
    assert found is not None
    return found.cards


def test_a_node_of_hami_is_read_whole() -> None:
    """HAMi leaves out zero values, and its plugin cannot prove identity at Allocate."""
    text = (
        '[{"id":"GPU-a","count":10,"devmem":16384,"devcore":100,"type":"NVIDIA-Tesla V100","mode":"hami-core",'
        '"health":true},'
        '{"id":"GPU-b","index":1,"count":10,"devmem":32768,"devcore":200,"type":"NVIDIA-Tesla V100","numa":1}]'
    )
    found = cards_of_node(node({NVIDIA: text}), FAMILIES)
    assert found == NodeCards(
        "n1",
        (
            Card("GPU-a", memory_mib=16384, slots=10, model="NVIDIA-Tesla V100", numa=0),
            Card(
                "GPU-b",
                memory_mib=32768,
                slots=10,
                cores=200,
                model="NVIDIA-Tesla V100",
                index=1,
                numa=1,
                healthy=False,
            ),
        ),
        identity_known=False,
    )


def test_an_unknown_numa_node_is_not_node_0() -> None:
    (card,) = cards({NVIDIA: '[{"id":"GPU-a","count":1,"devmem":1,"health":true,"numa":-1}]'})
    assert card.numa is None


def test_our_own_annotation_speaks_for_its_family() -> None:
    own = NodeCards("n1", (Card("GPU-own", memory_mib=1000),), links=((0,),))
    both = {CARDS: encode_cards(own), NVIDIA: '[{"id":"GPU-old","count":1,"devmem":1,"health":true}]'}
    assert cards_of_node(node(both), FAMILIES) == own


def test_other_vendors_on_the_same_node_are_added() -> None:
    own = NodeCards("n1", (Card("GPU-own", memory_mib=1000),), links=((0,),))
    found = cards({CARDS: encode_cards(own), DCU: "DCU-0,4,16384,100,Z100L,0,true:"})
    assert [(card.uuid, card.family) for card in found] == [("GPU-own", "nvidia"), ("DCU-0", "hygon")]


def test_one_vendors_slip_does_not_hide_the_cards_of_another() -> None:
    own = NodeCards("n1", (Card("GPU-own", memory_mib=1000),))
    found, problems = read_node(node({CARDS: encode_cards(own), DCU: "DCU-0,4:"}), FAMILIES)
    assert found == own
    assert [problem.key for problem in problems] == [DCU]


def test_where_our_own_record_is_unreadable_an_older_one_is_not_believed() -> None:
    """HAMi's annotation on the same node may be years old: a card that is in use by our books is not offered twice."""
    old = '[{"id":"GPU-a","count":1,"devmem":1,"health":true}]'
    found, problems = read_node(node({CARDS: "{", NVIDIA: old, DCU: "DCU-0,4,1,100,Z100L,0,true:"}), FAMILIES)
    assert found is not None
    assert [card.uuid for card in found.cards] == ["DCU-0"]
    assert [problem.key for problem in problems] == [CARDS]


def test_a_node_without_devices_has_no_cards() -> None:
    assert cards_of_node(node({"a": "b"}, {"cpu": "4", "memory": "1Gi"}), FAMILIES) is None


def test_a_cordoned_card_takes_no_new_pods() -> None:
    text = '[{"id":"GPU-a","count":1,"devmem":1,"health":true},{"id":"GPU-b","count":1,"devmem":1,"health":true}]'
    assert [card.cordoned for card in cards({NVIDIA: text, CORDON: " GPU-b ,GPU-x"})] == [False, True]


def test_the_text_grammar_has_two_lengths() -> None:
    found = cards({DCU: "DCU-0,4,16384,100,Z100L,1,true:DCU-1,4,16384,100,Z100L,0,false,7,mig:"})
    assert [(card.index, card.numa, card.healthy, card.mode) for card in found] == [
        (0, 1, True, "hami-core"),
        (7, 0, False, "mig"),
    ]


def test_capacities_become_numbered_cards() -> None:
    found = cards(capacity={"cambricon.com/mlu.smlu.vcore": "200", "cambricon.com/mlu.smlu.vmemory": "192"})
    assert [(card.uuid, card.memory_mib, card.cores, card.slots) for card in found] == [
        ("n1-cambricon-mlu-0", 24576, 100, 100),
        ("n1-cambricon-mlu-1", 24576, 100, 100),
    ]


def test_units_of_the_vendor_become_percent() -> None:
    text = '[{"id":"u","count":10,"devmem":196608,"devcore":304,"type":"AMD Instinct MI300X VF","health":true}]'
    (card,) = cards({"hami.io/node-amd-register": text})
    assert (card.cores, card.core_units) == (100, 304)


@pytest.mark.parametrize(
    ("annotations", "problem"),
    [
        pytest.param({NVIDIA: "["}, NVIDIA, id="half a document"),
        pytest.param({NVIDIA: "{}"}, "array", id="an object"),
        pytest.param({NVIDIA: '[{"id":""}]'}, "no id", id="a card without an id"),
        pytest.param({NVIDIA: '[{"id":"a","devmem":-1}]'}, "below 0", id="negative memory"),
        pytest.param({NVIDIA: '[{"id":"a"},{"id":"a"}]'}, "same id", id="twins"),
        pytest.param({DCU: "DCU-0,4,16384:"}, "3 fields, not 7 or 9", id="a short text"),
        pytest.param({DCU: "DCU-0,4,16384,100,Z100L,0,true,x,y:"}, "invalid literal", id="a number that is none"),
        pytest.param({DCU: "DCU-0,four,16384,100,Z100L,0,true:"}, "invalid literal", id="a count that is none"),
        pytest.param(
            {"enflame.com/gcu-drs-capacity": '{"devices":[],"profiles":{}}'}, "drs-capacity", id="no profiles"
        ),
        pytest.param(
            {"enflame.com/gcu-drs-capacity": '{"devices":[{"index":"x"}],"profiles":{"1g.6gb":"0"}}'},
            "invalid literal",
            id="a card number that is none",
        ),
        pytest.param({"metax-tech.com/node-gpu-devices": '[{"model":"C500"}]'}, "uuid", id="a card without a uuid"),
    ],
)
def test_an_unreadable_annotation_is_refused_by_name(annotations: dict[str, str], problem: str) -> None:
    with pytest.raises(BadAnnotation, match=problem) as caught:
        cards(annotations)
    assert "node n1" in str(caught.value)


@pytest.mark.parametrize("text", ["", ":", "::"])
def test_an_empty_text_is_a_node_without_cards(text: str) -> None:
    assert cards_of_node(node({DCU: text}), FAMILIES) is None


def test_absurd_capacities_make_no_cards() -> None:
    assert cards_of_node(node(capacity={"metax-tech.com/gpu": "99999999999"}), FAMILIES) is None
    assert cards_of_node(node(capacity={"metax-tech.com/gpu": "-1"}), FAMILIES) is None


REGISTERS = sorted({family.node.register for family in FAMILIES if family.node.register} | {CARDS})
PIECES = st.sampled_from(
    [
        *('[{"id":"a"', ',"devmem":', "99999999999999999999", "-1", "1.5", '"x"', "null", "true", "}]"),
        *("[", "]", "{", "}", ",", ":", '"v":1', '"cards":[', '"uuid":"a"', '"memoryMiB":', '"custominfo":{"AIC":[]}'),
        *(
            "a,1,2,3,t,0,true:",
            '"profiles":{"g":""}',
            '{"devices":[{"index":"0","capacity":6}],"profiles":{"1g.6gb":"0"}}',
        ),
    ]
)


@given(st.sampled_from(REGISTERS), st.lists(PIECES, max_size=8).map("".join) | st.text(max_size=20))
@settings(max_examples=500, deadline=None)
def test_any_text_is_cards_or_a_named_refusal(key: str, text: str) -> None:
    """One node's rubbish must not stop the scheduler."""
    try:
        found = cards_of_node(node({key: text}), FAMILIES)
    except BadAnnotation as error:
        message = str(error)
    else:
        message = "node n1"
        assert found is None or all(0 <= card.memory_mib < 2**31 for card in found.cards)
    assert "node n1" in message


@given(
    st.dictionaries(
        st.sampled_from(sorted(FAMILIES.resource_names)), st.integers(-(2**70), 2**70) | st.text(max_size=6)
    )
)
@settings(max_examples=300, deadline=None)
def test_any_capacity_is_cards_or_a_named_refusal(capacity: dict[str, Any]) -> None:
    try:
        found = cards_of_node(node(capacity=capacity), FAMILIES)
    except BadAnnotation as error:
        message = str(error)
    else:
        message = "node n1"
        assert found is None or all(0 <= card.memory_mib < 2**31 for card in found.cards)
    assert "node n1" in message
