"""Rendered charts kept beside the tests: a review of a change sees what it does to every manifest.

Run as a program it renders them anew with the real Helm: `python -m tests.charts.rendering`.
"""

import re
import tempfile
from pathlib import Path
from typing import Any

import yaml

from tests.charts.families_file import CHART
from tests.cluster.build import ensure
from tests.cluster.harness.chart import Helm

SNAPSHOTS = Path(__file__).parent / "snapshots"
KUBE_VERSION = "v1.34.4"
_SECRET = re.compile(r"^(\s*(?:caBundle|ca\.crt|tls\.crt|tls\.key|gpuslice\.io/certificate): )\S+$", re.MULTILINE)


def variants() -> dict[str, dict[str, Any]]:
    """Return the values of every variant in the chart's ci folder, by name."""
    files = sorted((CHART / "ci").glob("*-values.yaml"))
    return {file.name.removesuffix("-values.yaml"): yaml.safe_load(file.read_text()) or {} for file in files}


def without_certificates(text: str) -> str:
    """Replace what is different in every rendering."""
    return _SECRET.sub(r"\1Z2VuZXJhdGVk", text)


def snapshot(name: str) -> Path:
    """Return the file of a variant."""
    return SNAPSHOTS / f"{name}.yaml"


def render(helm: Helm, values: dict[str, Any]) -> str:
    """Render a variant for the snapshots' Kubernetes version."""
    return without_certificates(helm.render(values, f"--kube-version={KUBE_VERSION}"))


def main() -> None:
    """Write every snapshot."""
    with tempfile.TemporaryDirectory() as folder:
        helm = Helm(ensure(("helm",)), Path(folder))
        for name, values in variants().items():
            snapshot(name).write_text(render(helm, values))


if __name__ == "__main__":
    main()
