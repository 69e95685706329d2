"""Kubernetes quantities, exactly: no float ever touches a share.

Grammar (k8s.io/apimachinery, resource.Quantity): an optional sign, digits with an optional fraction, then a binary
suffix ``Ki Mi Gi Ti Pi Ei``, a decimal suffix ``n u m k M G T P E``, or an exponent ``e3``/``E-2``.

The API server stores quantities in canonical form, so whoever wrote ``3000`` is read back as ``3k``. A decimal suffix
therefore multiplies and says nothing about the unit; only a binary suffix tells that bytes are meant.
"""

import re
from fractions import Fraction
from functools import lru_cache

from gpuslice.devices.errors import BadQuantity

MAX_INT32 = 2**31 - 1
MIB = 2**20
MAX_MEMORY_MIB = 2**21
"""2 TiB on one card: more is a slip of the unit, such as ``4G`` (4,000,000,000 MiB)."""

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
    r"(?P<sign>[+-]?)(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE]?)|[eE](?P<exponent>[+-]?[0-9]{1,2}))"
)
_LONGEST = 64


def parse_quantity(text: str | float) -> Fraction:
    """Return the exact value of a quantity.

    Raises:
        BadQuantity: The text is not a quantity.
    """
    return _parse(str(text))


@lru_cache(maxsize=4096)
def _parse(written: str) -> Fraction:
    """Parse once: the same few quantities stand in every pod of a workload, and fractions are slow to make."""
    match = _QUANTITY.fullmatch(written) if len(written) <= _LONGEST else None
    if match is None:
        raise BadQuantity(written, "is not a Kubernetes quantity", "write a number such as 3000, 16Gi or 500Mi")
    value = Fraction(match["number"])
    if match["exponent"] is not None:
        value *= Fraction(10) ** int(match["exponent"])
    else:
        suffix = match["suffix"] or ""
        value *= _BINARY[suffix] if suffix in _BINARY else _DECIMAL[suffix]
    return -value if match["sign"] == "-" else value


def counts_bytes(text: str | float) -> bool:
    """Tell whether a quantity carries a binary suffix, which means bytes where a plain number means MiB."""
    return str(text).endswith("i")


def whole_number(text: str | float, *, maximum: int = MAX_INT32) -> int:
    """Return a quantity that must be a whole number in 0..maximum.

    Raises:
        BadQuantity: It is fractional, negative or too large.
    """
    value = parse_quantity(text)
    remedy = f"write a whole number from 0 to {maximum}"
    if value < 0:
        raise BadQuantity(str(text), "is negative", remedy)
    if value.denominator != 1:
        raise BadQuantity(str(text), "is not a whole number", remedy)
    if value > maximum:
        raise BadQuantity(str(text), f"is more than {maximum}", remedy)
    return int(value)


def mebibytes(text: str | float, *, factor: int = 1, bare_is_bytes: bool = False, maximum: int = MAX_MEMORY_MIB) -> int:
    """Return device memory in MiB: a plain number counts ``factor`` MiB each, a binary suffix counts bytes.

    Args:
        text: The quantity as written.
        factor: MiB per unit of a plain number (families that count memory in blocks).
        bare_is_bytes: A plain number counts bytes too.
        maximum: Largest result, MiB.

    Raises:
        BadQuantity: It is negative, too large, or not a whole number of MiB.
    """
    value = parse_quantity(text)
    in_bytes = bare_is_bytes or counts_bytes(text)
    value = value / MIB if in_bytes else value * factor
    unit = "bytes" if bare_is_bytes else "MiB" if factor == 1 else f"blocks of {factor} MiB"
    remedy = f"write {unit} as a plain number, or a size such as 3000Mi or 16Gi"
    if value < 0:
        raise BadQuantity(str(text), "is negative", remedy)
    if value.denominator != 1:
        raise BadQuantity(str(text), "is not a whole number of MiB", remedy)
    if value > maximum:
        raise BadQuantity(str(text), f"is {int(value)} MiB, more than any card has", remedy)
    if not in_bytes and value % factor:
        raise BadQuantity(str(text), f"is not a whole number of {unit}", remedy)
    return int(value)
