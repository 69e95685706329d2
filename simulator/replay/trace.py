"""Read node and pod lists in the format of the openb trace (Alibaba cluster-trace-gpu-v2023).

Nodes: ``sn, cpu_milli, memory_mib, gpu, model``. Pods: ``name, cpu_milli, memory_mib, num_gpu, gpu_milli`` and, where
present, ``gpu_spec`` (accepted models, joined by ``|``). Files may be gzipped. A pod with one card and ``gpu_milli``
below 1000 shares a card; ``num_gpu`` 0 is a pod without cards that still needs CPU and memory of a node.
"""

import csv
import gzip
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuslice.devices.errors import BadConfiguration

MILLI = 1000


@dataclass(frozen=True, slots=True)
class TraceNode:
    """One machine."""

    name: str
    cpu_milli: int
    memory_mib: int
    cards: int
    model: str


@dataclass(frozen=True, slots=True)
class TracePod:
    """One arrival."""

    name: str
    cpu_milli: int
    memory_mib: int
    cards: int
    share_milli: int
    """Thousandths of each card."""
    models: tuple[str, ...] = ()

    @property
    def demand_milli(self) -> int:
        """Thousandths of cards in all."""
        return self.cards * self.share_milli


def read_nodes(path: Path) -> list[TraceNode]:
    """Return the machines with cards, by name.

    Raises:
        BadConfiguration: The file cannot be read or a field is wrong.
    """
    rows = _rows(path, ("sn", "cpu_milli", "memory_mib", "gpu", "model"))
    nodes = [
        TraceNode(
            name=row["sn"],
            cpu_milli=_number(path, line, row, "cpu_milli"),
            memory_mib=_number(path, line, row, "memory_mib"),
            cards=_number(path, line, row, "gpu"),
            model=row["model"],
        )
        for line, row in rows
    ]
    found = sorted((node for node in nodes if node.cards), key=lambda node: node.name)
    if not found:
        raise BadConfiguration(str(path), "gpu", "no node has a card", "give a node list with the column gpu above 0")
    return found


def read_pods(path: Path) -> list[TracePod]:
    """Return the pods, by name.

    Raises:
        BadConfiguration: The file cannot be read or a field is wrong.
    """
    rows = _rows(path, ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"))
    pods = [_pod(path, line, row) for line, row in rows]
    if not any(pod.demand_milli for pod in pods):
        raise BadConfiguration(str(path), "num_gpu", "no pod asks for a card", "give a pod list with num_gpu above 0")
    return sorted(pods, key=lambda pod: pod.name)


def _pod(path: Path, line: int, row: Mapping[str, str]) -> TracePod:
    cards = _number(path, line, row, "num_gpu")
    share = _number(path, line, row, "gpu_milli")
    if share > MILLI:
        raise BadConfiguration(f"{path}:{line}", "gpu_milli", f"{share} is more than a card", "write 0..1000")
    return TracePod(
        name=row["name"],
        cpu_milli=_number(path, line, row, "cpu_milli"),
        memory_mib=_number(path, line, row, "memory_mib"),
        cards=cards if share else 0,
        share_milli=share if cards else 0,
        models=tuple(word for word in (row.get("gpu_spec") or "").split("|") if word),
    )


def _rows(path: Path, columns: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode()
    except (OSError, EOFError, UnicodeDecodeError, gzip.BadGzipFile) as error:
        raise BadConfiguration(
            str(path), "file", f"cannot be read: {error}", "give a CSV file, plain or gzipped"
        ) from error
    reader = csv.DictReader(io.StringIO(text))
    missing = [column for column in columns if column not in (reader.fieldnames or ())]
    if missing:
        raise BadConfiguration(str(path), ", ".join(missing), "column missing", f"the columns are {', '.join(columns)}")
    return list(enumerate(reader, start=2))


def _number(path: Path, line: int, row: Mapping[str, str], column: str) -> int:
    text = (row.get(column) or "").strip() or "0"
    if not text.isdecimal():
        raise BadConfiguration(f"{path}:{line}", column, f"{text[:40]!r} is not a whole number", "write 0 or more")
    return int(text)
