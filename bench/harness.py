"""What every benchmark shares: medians, a table for people, and one line of JSON for machines.

Time on a shared machine wanders, so each figure stands beside a baseline measured in the same run, and gates look at
the ratio.
"""

import json
import math
import os
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO


@dataclass(frozen=True, slots=True)
class Figure:
    """One result. ``ratio`` tells value from baseline; both are None where nothing compares."""

    name: str
    unit: str
    value: float
    baseline: float | None = None
    ratio: float | None = None
    target: float | None = None
    """What we promise, for the table; not part of the JSON line."""

    @classmethod
    def compared(cls, name: str, unit: str, value: float, baseline: float, *, target: float | None = None) -> "Figure":
        """Put a value beside its baseline."""
        ratio = round(value / baseline, 3) if baseline else None
        return cls(name, unit, round(value, 4), round(baseline, 4), ratio, target)

    @classmethod
    def paired(
        cls, name: str, unit: str, values: Sequence[float], baselines: Sequence[float], *, target: float | None = None
    ) -> "Figure":
        """Put medians side by side; the ratio is the median of the ratios of each turn, whose mood both have shared."""
        ratio = statistics.median(value / baseline for value, baseline in zip(values, baselines, strict=True))
        medians = statistics.median(values), statistics.median(baselines)
        return cls(name, unit, round(medians[0], 4), round(medians[1], 4), round(ratio, 3), target)

    @classmethod
    def alone(cls, name: str, unit: str, value: float, *, target: float | None = None) -> "Figure":
        """A value that nothing compares to."""
        return cls(name, unit, round(value, 4), target=target)


def percentile(samples: Sequence[float], percent: float) -> float:
    """Nearest-rank percentile, 0 < percent <= 100, of at least one sample."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def resident_mib(pid: int | str = "self") -> float:
    """Resident memory of a process, MiB."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(f"process {pid} has no resident memory; it has ended")


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used so far: unlike the clock it hardly minds who else runs."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def report(title: str, figures: Iterable[Figure], output: TextIO = sys.stdout) -> None:
    """Print a table, and as the last line the figures as one JSON list."""
    rows = [("name", "value", "unit", "baseline", "ratio", "target")]
    listed = list(figures)
    rows += [(f.name, _text(f.value), f.unit, _text(f.baseline), _text(f.ratio), _text(f.target)) for f in listed]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    output.write(f"{title}\n")
    for row in rows:
        cells = (
            cell.ljust(width) if n in (0, 2) else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        output.write("  ".join(cells).rstrip() + "\n")
    wire = [{key: value for key, value in asdict(figure).items() if key != "target"} for figure in listed]
    output.write(json.dumps(wire) + "\n")


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:,.3f}".rstrip("0").rstrip(".")
