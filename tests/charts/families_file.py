"""The chart's list of resources and protected annotations, made from the device families.

Run as a program it rewrites the file: `python -m tests.charts.families_file`.
"""

import json
from pathlib import Path

from gpuslice.devices.families import load_builtin
from webhook.protection import protected_keys

CHART = Path(__file__).resolve().parents[2] / "charts" / "gpuslice"
FAMILIES_FILE = CHART / "files" / "families.json"


def families_json() -> str:
    """Return what the file must hold."""
    families = load_builtin()
    names = {"resources": sorted(families.resource_names), "annotations": sorted(protected_keys(families))}
    return json.dumps(names, indent=2) + "\n"


if __name__ == "__main__":
    FAMILIES_FILE.write_text(families_json())
