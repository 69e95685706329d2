"""Quantities as the API server stores them: in canonical form, so `3000` is read back as `3k`.

Rules: k8s.io/apimachinery/pkg/api/resource, CanonicalizeBytes. The format (binary or decimal suffix) stays; the
mantissa has no fraction; the suffix is the largest that allows this.
"""

from fractions import Fraction
from functools import lru_cache

from gpuslice.devices.errors import BadQuantity
from gpuslice.devices.quantity import parse_quantity
from simulator.apiserver.failures import FieldError, Object

_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_SIMPLE = frozenset(str(number) for number in range(1000) if number % 1000)


@lru_cache(maxsize=4096)
def canonical(text: str | float) -> str:
    """Rewrite a quantity in canonical form.

    Raises:
        BadQuantity: The text is not a quantity.
    """
    written = str(text)
    if written in _SIMPLE:
        return written
    value = parse_quantity(text)
    sign = "-" if value < 0 else ""
    value = abs(value)
    if not value:
        return "0"
    if written.endswith("i") and value.denominator == 1 and value >= 1024:
        return sign + _scaled(value, _BINARY, 1024, 0)
    if written[-1:].isdigit() and ("e" in written or "E" in written):
        return sign + _exponent(value, "E" if "E" in written else "e")
    nanos = -(-(value * 10**9) // 1)  # finer than nano rounds up
    return sign + _scaled(Fraction(nanos), _DECIMAL, 1000, 0)


def _scaled(value: Fraction, suffixes: tuple[str, ...], base: int, step: int) -> str:
    number = int(value)
    while step + 1 < len(suffixes) and number % base == 0:
        number, step = number // base, step + 1
    return f"{number}{suffixes[step]}"


def _exponent(value: Fraction, letter: str) -> str:
    power = 0
    while value.denominator != 1:
        value, power = value * 1000, power - 3
    number = int(value)
    while number % 1000 == 0:
        number, power = number // 1000, power + 3
    return f"{number}{letter}{power}" if power else str(number)


def canonicalize(quantities: Object | None) -> None:
    """Rewrite every value of a resource list in place.

    Raises:
        BadQuantity: One is not a quantity.
    """
    if quantities:
        quantities.update({name: canonical(text) for name, text in quantities.items()})


UNREADABLE = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


def quantity_problem(field: str, text: object) -> FieldError | None:
    """Say what is wrong with a quantity: unreadable or negative."""
    if not isinstance(text, (str, int, float)) or isinstance(text, bool):
        return FieldError("Invalid", field, text, UNREADABLE)
    try:
        value = parse_quantity(text)
    except BadQuantity:
        return FieldError("Invalid", field, text, UNREADABLE)
    if value < 0:
        return FieldError("Invalid", field, str(text), "must be greater than or equal to 0")
    return None
