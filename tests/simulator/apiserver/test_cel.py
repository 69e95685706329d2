"""CEL as admission conditions use it; values agree with the CEL specification (cel.dev/spec)."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.apiserver import cel, cel_syntax

POD = {
    "metadata": {"name": "a", "annotations": {"gpuslice.io/x": "1"}},
    "spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}, {"name": "d"}]},
}
SCOPE: dict[str, Any] = {"object": POD, "oldObject": None, "n": 3, "request": {"userInfo": {"groups": ["g"]}}}

VALUES = [
    pytest.param("1 + 2 * 3 - 4 / 2", 5, id="precedence"),
    pytest.param("-7 / 2", -3, id="division truncates towards zero"),
    pytest.param("-7 % 3", -1, id="the remainder has the dividend's sign"),
    pytest.param("0x10 + 1u", 17, id="hexadecimal and unsigned"),
    pytest.param("'a' + \"b\" + r'\\d'", "ab\\d", id="strings add, raw strings keep backslashes"),
    pytest.param("'\\u0041\\n'", "A\n", id="escapes"),
    pytest.param("[1, 2] + [3]", [1, 2, 3], id="lists add"),
    pytest.param("{'a': 1}['a']", 1, id="map literal"),
    pytest.param("true ? 1 : false ? 2 : 3", 1, id="nested ternary"),
    pytest.param("1 == 1.0", True, id="numbers compare across types"),
    pytest.param("1 == true", False, id="a number is no boolean"),
    pytest.param("'a' in {'a': 1} && !('b' in ['a'])", True, id="in maps and lists"),
    pytest.param("has(object.metadata.labels)", False, id="has of what is not there"),
    pytest.param("has(object.metadata.annotations)", True, id="has of what is there"),
    pytest.param(
        "object.spec.containers.exists(c, has(c.resources) && 'nvidia.com/gpu' in c.resources.limits)",
        True,
        id="exists",
    ),
    pytest.param("object.spec.containers.all(c, c.name in ['c', 'd'])", True, id="all"),
    pytest.param("object.spec.containers.exists_one(c, has(c.resources))", True, id="exists_one"),
    pytest.param("object.spec.containers.map(c, c.name)", ["c", "d"], id="map"),
    pytest.param("object.spec.containers.map(c, has(c.resources), c.name)", ["c"], id="map with a filter"),
    pytest.param("object.spec.containers.filter(c, !has(c.resources)).size()", 1, id="filter and size"),
    pytest.param(
        "object.metadata.annotations.exists(k, k.startsWith('gpuslice.io/'))", True, id="maps iterate over keys"
    ),
    pytest.param("oldObject == null", True, id="null"),
    pytest.param("object.?metadata.?labels[?'q'].orValue('none')", "none", id="optional chain that ends early"),
    pytest.param("object.?metadata.name.hasValue()", True, id="a plain step on an optional"),
    pytest.param("'a,b'.split(',').join('-')", "a-b", id="split and join"),
    pytest.param("string(n) + 'x'.upperAscii()", "3X", id="conversion"),
    pytest.param("false && object.none == 1", False, id="false beside an error"),
    pytest.param("object.none == 1 || true", True, id="true beside an error"),
    pytest.param("[1, 2].exists(x, x / 0 == 1 || x == 2)", True, id="exists over an error"),
    pytest.param("// a comment\n1", 1, id="comment"),
]


@pytest.mark.parametrize(("text", "value"), VALUES)
def test_value(text: str, value: object) -> None:
    assert cel.evaluate(text, SCOPE) == value


ERRORS = [
    pytest.param("object.none", "no such key: none", id="a missing key"),
    pytest.param("oldObject.metadata", "no such key: metadata", id="a field of null"),
    pytest.param("1 + 'a'", "no such overload", id="adding a string"),
    pytest.param("1 / 0", "division by zero", id="division by zero"),
    pytest.param("true && object.none", "no such key: none", id="true beside an error"),
    pytest.param("unknown", "undeclared reference to 'unknown'", id="an unknown variable"),
    pytest.param("frob(1)", "undeclared reference to 'frob'", id="an unknown function"),
    pytest.param("[1][5]", "no such key: 5", id="beyond the end"),
    pytest.param("'a'.matches('(')", "bad pattern", id="a broken pattern"),
    pytest.param("int('x')", "cannot convert", id="no number"),
]


@pytest.mark.parametrize(("text", "said"), ERRORS)
def test_error(text: str, said: str) -> None:
    with pytest.raises(cel.CelError, match=said.replace("(", "\\(")):
        cel.evaluate(text, SCOPE)


@pytest.mark.parametrize(
    "text", ["", "1 +", "a.", "(1", "[1", "{1: }", "has(a)", "'open", "a ? b", "1 2", "x.all(1, true)"]
)
def test_what_is_not_an_expression_is_named_as_such(text: str) -> None:
    with pytest.raises(cel_syntax.CelSyntaxError):
        cel_syntax.parse(text)


def test_a_condition_must_be_a_boolean() -> None:
    with pytest.raises(cel.CelError, match="not a boolean but int"):
        cel.holds("1", {})


@given(st.text(alphabet="abn0123456789.()[]{}?:&|!=<>+-*/%'\", in", max_size=40))
def test_any_text_is_an_error_or_a_value_never_a_crash(text: str) -> None:
    with contextlib.suppress(cel.CelError):
        cel.evaluate(text, {"a": {"b": [1, "n"]}, "n": 1, "b": True})


@given(
    st.recursive(
        st.booleans() | st.integers(-9, 9) | st.text("ab'\\\n", max_size=3), lambda inner: st.lists(inner, max_size=3)
    )
)
def test_a_literal_means_what_it_says(value: Any) -> None:
    def written(item: Any) -> str:
        if isinstance(item, bool):
            return str(item).lower()
        if isinstance(item, list):
            return "[" + ", ".join(map(written, item)) + "]"
        if isinstance(item, str):
            return "'" + item.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"
        return str(item)

    assert cel.evaluate(written(value), {}) == value
