"""Quantities are exact, and a unit is what the API server's canonical form leaves of it."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.devices.errors import BadQuantity
from gpuslice.devices.quantity import MAX_MEMORY_MIB, mebibytes, parse_quantity, whole_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3000", 3000),
        ("3k", 3000),
        ("16Gi", 16 * 2**30),
        ("1.5", Fraction(3, 2)),
        ("100m", Fraction(1, 10)),
        ("1e3", 1000),
        ("1E", 10**18),
        (".5Gi", 2**29),
        ("-2", -2),
        ("+7", 7),
        (3000, 3000),
        ("0.1", Fraction(1, 10)),
        ("9223372036854775808", 2**63),
    ],
)
def test_a_quantity_is_exact(text: str | int, value: Fraction | int) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text", ["", "4GB", "4 G", " 4G", "4G\n", "0x10", "1_000", "٣", "--1", "1e", "Gi", "1e999", "9" * 70, "NaN", "true"]
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(BadQuantity):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("text", "factor", "mib"),
    [
        pytest.param("3k", 1, 3000, id="the API server's form of 3000"),
        pytest.param("16Gi", 1, 16384, id="a binary suffix is bytes"),
        pytest.param("16Gi", 256, 16384, id="also where a bare number counts blocks"),
        pytest.param("20", 256, 5120, id="blocks of 256 MiB"),
        pytest.param("4", 1024, 4096, id="GiB"),
        pytest.param("0", 1, 0, id="nothing"),
        pytest.param("1Mi", 1, 1, id="one MiB"),
    ],
)
def test_memory_is_counted_in_mebibytes(text: str, factor: int, mib: int) -> None:
    assert mebibytes(text, factor=factor) == mib


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("-1", "is negative", id="negative"),
        pytest.param("1.5", "is not a whole number of MiB", id="a fraction"),
        pytest.param("1Ki", "is not a whole number of MiB", id="bytes that are no whole MiB"),
        pytest.param("4G", "more than any card has", id="G means 4,000,000,000 MiB, never 4 GB"),
        pytest.param("100Ti", "more than any card has", id="larger than any card"),
        pytest.param("500m", "is not a whole number of MiB", id="milli"),
    ],
)
def test_memory_that_is_not_meant_is_refused(text: str, problem: str) -> None:
    with pytest.raises(BadQuantity, match=problem):
        mebibytes(text)


@given(st.integers(0, MAX_MEMORY_MIB))
def test_bytes_and_mebibytes_agree(mib: int) -> None:
    assert mebibytes(str(mib)) == mebibytes(f"{mib}Mi") == mebibytes(str(mib * 2**20), bare_is_bytes=True) == mib


@given(st.text(max_size=12))
def test_any_text_is_a_number_or_an_error(text: str) -> None:
    try:
        number = whole_number(text, maximum=10)
    except BadQuantity:
        return
    assert number in range(11)
