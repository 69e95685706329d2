"""Row-wise operations on narrow arrays (thousands of nodes by a few cards), where numpy's own reductions are slow.

numpy reduces along the last axis row by row; for 5,000 rows of 8 that costs several times what these do.
"""

import numpy as np

from gpuslice.placement.fleet import Bools, Ints

_WORD = 62


def row_sum(amounts: Ints) -> Ints:
    """Return the sum of each row."""
    total: Ints = np.einsum("ij->i", amounts)
    return total


def row_count(marks: Bools) -> Ints:
    """Return how many marks each row has."""
    count: Ints = np.einsum("ij->i", marks, dtype=np.int64)
    return count


def row_any(marks: Bools) -> Bools:
    """Mark the rows with any mark."""
    found: Bools = row_count(marks) > 0
    return found


def row_max(amounts: Ints) -> Ints:
    """Return the largest of each row; rows have at least one column."""
    largest = amounts[:, 0].copy()
    for column in range(1, amounts.shape[1]):
        np.maximum(largest, amounts[:, column], out=largest)
    return largest


def row_masks(marks: Bools) -> list[int]:
    """Return the marks of each row as bits of a number, the first column lowest."""
    width = marks.shape[1]
    if width < _WORD:
        masks: list[int] = (marks @ (np.int64(1) << np.arange(width))).tolist()
        return masks
    return [int.from_bytes(row.tobytes(), "little") for row in np.packbits(marks, axis=1, bitorder="little")]


def ratio(part: Ints, whole: Ints) -> Ints:
    """Return part // whole (0 where whole is 0) for parts of 0..2**40 and wholes below 2**31, both whole numbers.

    The division is done in doubles, which is several times faster: between two whole results lies at least 1/whole,
    far more than the rounding error, so cutting the fraction off is exact.
    """
    quotient: Ints = (part / np.maximum(whole, 1)).astype(np.int64)
    quotient[whole <= 0] = 0
    return quotient
