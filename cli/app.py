"""The commands that people type."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from gpuslice import __version__


def build_app() -> App:
    """Assemble the command tree; each command loads what it needs when it runs."""
    app = App(name="gpuslice", help="Share GPUs on Kubernetes.", version=__version__)
    app.command(demo)
    return app


def demo(
    *,
    file: Annotated[tuple[Path, ...], Parameter(name=("--file", "-f"), consume_multiple=True)] = (),
    nodes: Path | None = None,
    keep: bool = False,
) -> int:
    """Run the whole path on an embedded cluster: from pod YAML to a process that is refused memory at its quota.

    Args:
        file: Pod manifests, or folders of them; the examples that come with gpuslice by default.
        nodes: Inventory of a cluster; three nodes with eight cards each by default.
        keep: Leave everything running until Ctrl-C, with a kubeconfig for kubectl.
    """
    from simulator.demo.run import DemoOptions, run_demo  # noqa: PLC0415  the other commands do not need it

    return run_demo(DemoOptions(files=file, fleet=nodes, keep=keep))
