"""Answers cut from tables say what plain JSON would say."""

import json
import string
from unittest.mock import patch

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.wire import (
    FEW,
    ArgsReader,
    ExtenderPreemptionArgs,
    NameTable,
    args_decoder,
    binding_decoder,
    filter_answer,
    preemption_decoder,
)

NAMES = st.lists(
    st.text(string.ascii_lowercase + string.digits + "-.", min_size=1, max_size=63), min_size=1, unique=True
)


@pytest.mark.parametrize("few", [pytest.param(0, id="by columns"), pytest.param(FEW, id="one by one")])
@given(names=NAMES, data=st.data())
def test_name_lists_reasons_and_priorities_read_back(few: int, names: list[str], data: st.DataObject) -> None:
    table = NameTable(names, layout=0)
    chosen = data.draw(st.lists(st.integers(0, len(names) - 1), unique=True))
    rows = np.array(chosen, dtype=np.int64)
    scores = np.array(data.draw(st.lists(st.integers(0, 10), min_size=len(rows), max_size=len(rows))), dtype=np.uint8)
    wanted = [names[row] for row in chosen]
    assert json.loads(table.name_list(rows)) == wanted
    assert json.loads(b"{" + table.reasons(rows, 'not "enough"') + b"}") == dict.fromkeys(wanted, 'not "enough"')
    pairs = [{"Host": name, "Score": score} for name, score in zip(wanted, scores.tolist(), strict=True)]
    with patch("extender.wire.FEW", few):
        assert json.loads(table.priorities(rows, scores)) == pairs
    answer = json.loads(filter_answer(table.name_list(rows), table.reasons(rows, "x")))
    assert (answer["NodeNames"], set(answer["FailedAndUnresolvableNodes"])) == (wanted, set(wanted))


def test_an_empty_fleet_has_a_table() -> None:
    assert json.loads(NameTable([], 0).name_list(np.array([], dtype=np.int64))) == []


def test_names_with_quotes_survive() -> None:
    table = NameTable(['we"ird', "ünicode"], 0)
    assert json.loads(table.name_list(np.array([0, 1]))) == ['we"ird', "ünicode"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param({"NodeNameToMetaVictims": {"n": {"Pods": [{"UID": "u"}]}}}, ["u"], id="victims by uid"),
        pytest.param(
            {"NodeNameToVictims": {"n": {"Pods": [{"metadata": {"uid": "u"}}]}}, "NodeNameToMetaVictims": None},
            ["u"],
            id="victims as whole pods",
        ),
    ],
)
def test_victims_come_in_two_shapes(body: object, expected: list[str]) -> None:
    args = msgspec.json.decode(msgspec.json.encode(body), type=ExtenderPreemptionArgs)
    assert [pod.uid for pod in args.victims()["n"].pods or ()] == expected


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)


@given(body=st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_no_body_breaks_a_decoder(body: bytes) -> None:
    for decoder in (args_decoder, binding_decoder, preemption_decoder):
        try:
            decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue


LISTS = (b'["n1","n2"]', b'["n1"]', b"[]", b"null", b'["n1", "n2"]')
BODIES = [
    b'{"Pod":%b,"Nodes":null,"NodeNames":%b}' % (pod, names)
    for names in LISTS
    for pod in (b"null", b'{"metadata":{"name":"a"}}', rb'{"metadata":{"annotations":{"x":"\",\"NodeNames\":null}"}}}')
]
ODD_BODIES = [
    *(b'{"NodeNames":%b,"Pod":{"metadata":{"name":"b"}}}' % names for names in LISTS),
    *(b'{"Pod":{"metadata":{"name":"c","NodeNames":%b}}}' % names for names in LISTS),
    *(b'{"Nodes":null,"NodeNames":["n9"],"NodeNames":%b} ' % names for names in LISTS),
    *(b'{"Pod":7,"NodeNames":%b}' % names for names in LISTS),
    *(b'{"Pod":null,"NodeNames":%b]' % names for names in LISTS),
    *(b',"NodeNames":%b}' % names for names in LISTS),
    *(b'{,"NodeNames":%b}' % names for names in LISTS),
    b"",
    b"}",
]


@given(bodies=st.lists(st.sampled_from([*BODIES, *ODD_BODIES]), max_size=12))
def test_names_that_came_before_are_read_as_if_for_the_first_time(bodies: list[bytes]) -> None:
    reader = ArgsReader()
    for body in bodies:
        try:
            expected = args_decoder.decode(body)
        except msgspec.DecodeError as error:
            with pytest.raises(type(error)):
                reader.read(body)
        else:
            found = reader.read(body)
            assert (found.pod, found.nodes, bytes(found.node_names)) == (
                expected.pod,
                expected.nodes,
                bytes(expected.node_names),
            )
