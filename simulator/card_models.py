"""Card models and MIG profiles: the tables that the fake drivers are built from, read by Python."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

TABLES = Path(__file__).parent / "drivers" / "tables"
GENERIC = "GENERIC"
"""The model of a card that the tables do not know; its entry states name and memory itself."""


@dataclass(frozen=True, slots=True)
class CardModel:
    """What every card of one model reports."""

    model: str
    name: str
    memory_mib: int
    sm_count: int
    pci_device: int
    nvlinks: int
    ecc: bool
    mig_family: str
    """Key into the MIG profiles, "-" without MIG."""


@dataclass(frozen=True, slots=True)
class MigShape:
    """One GPU-instance profile of a MIG family; slices are counted in the card's seven (or four)."""

    name: str
    slices: int
    memory_slices: int
    memory_mib: int
    sm_count: int
    starts: tuple[int, ...]
    """Memory slices at which an instance may begin, best first."""


def _rows(table: str) -> list[dict[str, str]]:
    lines = [line.split("\t") for line in (TABLES / table).read_text().splitlines() if not line.startswith("#")]
    columns, *rows = lines
    return [dict(zip(columns, row, strict=True)) for row in rows]


@cache
def card_models() -> dict[str, CardModel]:
    """Return the models by lower-case key."""
    return {
        row["model"].lower(): CardModel(
            model=row["model"],
            name=row["name"],
            memory_mib=int(row["memory_mib"]),
            sm_count=int(row["sm_count"]),
            pci_device=int(row["pci_device"]),
            nvlinks=int(row["nvlinks"]),
            ecc=row["ecc"] == "1",
            mig_family=row["mig"],
        )
        for row in _rows("models.tsv")
    }


@cache
def mig_shapes(family: str) -> tuple[MigShape, ...]:
    """Return the profiles of a family, in the order of the table."""
    return tuple(
        MigShape(
            name=row["profile"],
            slices=int(row["slices"]),
            memory_slices=int(row["memory_slices"]),
            memory_mib=int(row["memory_mib"]),
            sm_count=int(row["sm_count"]),
            starts=tuple(int(start) for start in row["starts"].split(",")),
        )
        for row in _rows("mig_profiles.tsv")
        if row["family"] == family
    )


def place_instances(family: str, profiles: tuple[str, ...]) -> tuple[tuple[MigShape, int], ...] | str:
    """Place profiles one after another, each at its first free start.

    Returns:
        (profile, first memory slice) of each, or the name of the first profile that is unknown or does not fit.
    """
    shapes = {shape.name: shape for shape in mig_shapes(family)}
    total = max((shape.slices for shape in shapes.values()), default=0)
    placed: list[tuple[MigShape, int]] = []
    for name in profiles:
        shape = shapes.get(name)
        if shape is None or sum(other.slices for other, _ in placed) + shape.slices > total:
            return name
        start = next((at for at in shape.starts if _free(placed, at, shape.memory_slices)), None)
        if start is None:
            return name
        placed.append((shape, start))
    return tuple(placed)


def _free(placed: list[tuple[MigShape, int]], start: int, slices: int) -> bool:
    return all(start >= at + shape.memory_slices or at >= start + slices for shape, at in placed)
