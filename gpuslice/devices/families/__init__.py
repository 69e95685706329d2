"""Families of accelerators as data: one YAML file per vendor, read once."""

from gpuslice.devices.families.family import Family
from gpuslice.devices.families.loader import Families, load_builtin, load_files

__all__ = ["Families", "Family", "load_builtin", "load_files"]
