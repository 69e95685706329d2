"""Kubernetes quantities, exactly: no float ever touches a share.

Grammar (k8s.io/apimachinery, resource.Quantity): an optional sign, digits with an optional fraction, then a binary
suffix ``Ki Mi Gi Ti Pi Ei``, a decimal suffix ``n u m k M G T P E``, or an exponent ``e3``/``E-2``.
"""

import re
from fractions import Fraction

from gpuslice.devices.errors import BadQuantity

MAX_INT32 = 2**31 - 1
MIB = 2**20

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_DECIMAL = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
}
_QUANTITY = re.compile(
    r"(?P<sign>[+-]?)(?P<number>\d+(?:\.\d*)?|\.\d+)(?:(?P<suffix>[KMGTPE]i|[numkMGTPE]?)|[eE](?P<exponent>[+-]?\d{1,2}))"
)


def parse_quantity(text: str | float) -> Fraction:
    """Return the exact value of a quantity.

    Raises:
        BadQuantity: The text is not a quantity.
    """
    written = str(text)
    match = _QUANTITY.fullmatch(written)
    if match is None:
        raise BadQuantity(written, "is not a Kubernetes quantity", "write a number such as 3000, 16Gi or 500Mi")
    value = Fraction(match["number"])
    if match["exponent"] is not None:
        value *= Fraction(10) ** int(match["exponent"])
    else:
        suffix = match["suffix"] or ""
        value *= _BINARY[suffix] if suffix in _BINARY else _DECIMAL[suffix]
    return -value if match["sign"] == "-" else value


def has_suffix(text: str | float) -> bool:
    """Tell whether a quantity carries a size suffix (then it counts bytes where we expect MiB)."""
    return str(text)[-1:] in set("ikMGTPE")


def whole_number(text: str | float, *, maximum: int = MAX_INT32) -> int:
    """Return a quantity that must be a whole number in 0..maximum.

    Raises:
        BadQuantity: It is fractional, negative or too large.
    """
    value = parse_quantity(text)
    if value < 0:
        raise BadQuantity(str(text), "is negative", f"write a whole number between 0 and {maximum}")
    if value.denominator != 1:
        raise BadQuantity(str(text), "is not a whole number", f"write a whole number between 0 and {maximum}")
    if value > maximum:
        raise BadQuantity(str(text), f"is more than {maximum}", f"write a whole number between 0 and {maximum}")
    return int(value)


def mebibytes(text: str | float, *, factor: int = 1) -> int:
    """Return device memory in MiB: a plain number counts MiB × factor, a number with a suffix counts bytes.

    Args:
        text: The quantity as written.
        factor: MiB per unit of a plain number (families that count memory in blocks).

    Raises:
        BadQuantity: It is negative, too large, or not a whole number of MiB.
    """
    if not has_suffix(text):
        return whole_number(text, maximum=MAX_INT32 // factor) * factor
    value = parse_quantity(text) / MIB
    if value.denominator != 1:
        raise BadQuantity(str(text), "is not a whole number of MiB", "write MiB, for example 3000 or 3000Mi")
    return whole_number(str(int(value)))
