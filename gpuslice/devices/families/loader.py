"""Read family files and refuse what would make two kinds indistinguishable."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path

import msgspec
import yaml

from gpuslice.devices.errors import BadConfiguration
from gpuslice.devices.families.family import Family, FamilyFile

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Families:
    """All kinds that are switched on, with the indexes that the hot paths need."""

    kinds: tuple[Family, ...]
    by_name: Mapping[str, Family] = field(init=False)
    by_resource: Mapping[str, Family] = field(init=False)
    """Any resource name (count, memory, …) to its kind."""
    resource_names: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        by_resource: dict[str, Family] = {}
        for kind in self.kinds:
            for name in kind.resources.names():
                other = by_resource.setdefault(name, kind)
                if other is not kind:
                    raise BadConfiguration(
                        f"family {kind.name}",
                        "resources",
                        f"{name} belongs to family {other.name} already",
                        "give each kind resource names of its own",
                    )
        object.__setattr__(self, "by_name", {kind.name: kind for kind in self.kinds})
        object.__setattr__(self, "by_resource", by_resource)
        object.__setattr__(self, "resource_names", frozenset(by_resource))

    def __iter__(self) -> Iterator[Family]:
        return iter(self.kinds)


def parse_family_file(text: str, source: str) -> FamilyFile:
    """Return the kinds in one YAML text.

    Raises:
        BadConfiguration: Not YAML, or not the shape of a family file; the message names the place.
    """
    try:
        return msgspec.convert(yaml.load(text, Loader=_Loader), FamilyFile)  # noqa: S506  a safe loader
    except yaml.YAMLError as error:
        raise BadConfiguration(source, "YAML", str(error).replace("\n", " "), "correct the YAML") from error
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at ")
        raise BadConfiguration(
            source, place.strip("`") or "$", problem, "see docs/guide/add-your-accelerator.md for the keys"
        ) from error


def load_files(paths: Iterable[Path]) -> Families:
    """Read families from files, in the order given.

    Raises:
        BadConfiguration: A file is missing, unreadable or wrong.
    """
    kinds: list[Family] = []
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise BadConfiguration(
                str(path), "file", error.strerror or str(error), "give the path of a readable file"
            ) from error
        kinds.extend(parse_family_file(text, str(path)).kinds)
    return Families(tuple(kinds))


@cache
def load_builtin() -> Families:
    """Return the families shipped with the product, NVIDIA first, the others by file name."""
    files = [entry for entry in resources.files(__package__).iterdir() if entry.name.endswith(".yaml")]
    files.sort(key=lambda entry: (entry.name != "nvidia.yaml", entry.name))
    kinds: list[Family] = []
    for entry in files:
        kinds.extend(parse_family_file(entry.read_text(encoding="utf-8"), entry.name).kinds)
    return Families(tuple(kinds))
