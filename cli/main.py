"""Entry point of `gpuslice` and `kubectl gpuslice`.

Daemons are started without the command-line framework, so that they load only what they use; everything a person
types goes through cyclopts.
"""

import importlib
import sys
from collections.abc import Sequence
from typing import Protocol, cast

from gpuslice import __version__
from gpuslice.devices.errors import GpusliceError

DAEMONS = {"extender": "extender", "webhook": "webhook", "device-plugin": "deviceplugin"}
"""Subcommand to package; each package's ``__main__`` has ``main(argv)``."""


class _Daemon(Protocol):
    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run until told to stop; return the exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (0 success, 1 failure, 2 wrong usage)."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in DAEMONS:
        daemon = cast("_Daemon", importlib.import_module(f"{DAEMONS[words[0]]}.__main__"))
        return daemon.main(words[1:])
    if words == ["version"]:
        print(__version__)
        return 0
    from cli.app import build_app  # noqa: PLC0415  keeps daemons lean

    try:
        result = build_app()(words, result_action="return_value")
    except GpusliceError as error:
        print(f"gpuslice: {error}", file=sys.stderr)
        return 1
    return result if isinstance(result, int) else 0
