"""The commands that people type."""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from gpuslice import __version__
from gpuslice.devices.errors import BadConfiguration


def build_app() -> App:
    """Assemble the command tree; each command loads what it needs when it runs."""
    plain = Parameter(negative=(), show_default=False)
    app = App(name="gpuslice", help="Share GPUs on Kubernetes.", version=__version__, default_parameter=plain)
    app.command(demo)
    inventory = App(name="inventory", help="Inventories of machines, for the demo and the simulator.")
    inventory.command(import_machine, name="import")
    app.command(inventory)
    devices = App(name="devices", help="Device families.")
    devices.command(lint)
    app.command(devices)
    app.command(version)
    for name, purpose in PROGRAMS.items():
        app.command(_elsewhere, name=name, help=purpose)
    return app


PROGRAMS = {
    "device-plugin": "The node's daemon: hands out the slices that the scheduler chose. See its own --help.",
    "extender": "The scheduler's extender: chooses exact cards. See its own --help.",
    "replay": "Replay a trace of pods through the placement policies. See its own --help.",
    "webhook": "Admission: checks and completes pods with devices. See its own --help.",
}
"""Listed here for the help page; `cli.main` starts them before this framework is loaded."""


def version() -> int:
    """Print the version."""
    print(__version__)
    return 0


def _elsewhere() -> None:
    """Stand in the list of commands."""


def demo(
    *,
    file: Annotated[tuple[Path, ...], Parameter(name=("--file", "-f"), consume_multiple=True)] = (),
    nodes: Annotated[tuple[Path, ...], Parameter(consume_multiple=True)] = (),
    keep: bool = False,
) -> int:
    """Run the whole path on an embedded cluster: from pod YAML to a process that is refused memory at its quota.

    Args:
        file: Pod manifests, or folders of them; the examples that come with gpuslice by default.
        nodes: Inventories of nodes or clusters; three nodes with eight cards each by default.
        keep: Leave everything running until Ctrl-C, with a kubeconfig for kubectl.
    """
    from simulator.demo.run import DemoOptions, run_demo  # noqa: PLC0415  the other commands do not need it

    return run_demo(DemoOptions(files=file, fleet=nodes, keep=keep))


def import_machine(xml: Path, /, *, topo: Path | None = None, name: str = "node-1", output: Path | None = None) -> int:
    """Turn a real machine's `nvidia-smi -q -x` into an inventory: `gpuslice demo --nodes FILE` then has its shape.

    Args:
        xml: Output of `nvidia-smi -q -x`.
        topo: Output of `nvidia-smi topo -m`, for the links between the cards.
        name: Name of the node; node-1 by default.
        output: File to write; standard output by default.
    """
    from simulator.nvidia_smi import import_inventory  # noqa: PLC0415  the other commands do not need it

    text = import_inventory(_read(xml), _read(topo) if topo else None, name=name)
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text)
    return 0


def lint(file: Path, /, *files: Path) -> int:
    """Check device family files and explain every mistake.

    Args:
        file: YAML file of families, see docs/guide/add-your-accelerator.md.
        files: Further ones.
    """
    from gpuslice.devices.families import lint as family_lint  # noqa: PLC0415  the other commands do not need it

    return family_lint.main([str(path) for path in (file, *files)])


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError as error:
        raise BadConfiguration(str(path), "file", error.strerror or str(error), "give a readable file") from error
