"""Entry point of `gpuslice` and `kubectl gpuslice`.

Daemons and the replay have parsers of their own and are started without the command-line framework, so that they load
only what they use; everything else goes through cyclopts.
"""

import importlib
import sys
from collections.abc import Sequence
from typing import Protocol, cast

from gpuslice.devices.errors import GpusliceError

PROGRAMS = {
    "extender": "extender.__main__",
    "webhook": "webhook.__main__",
    "device-plugin": "deviceplugin.__main__",
    "replay": "simulator.replay.command",
}
"""Subcommands with a parser of their own, and the module whose ``main(argv)`` they are."""


class _Program(Protocol):
    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run until told to stop; return the exit code."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (0 success, 1 failure, 2 wrong usage)."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in PROGRAMS:
        program = cast("_Program", importlib.import_module(PROGRAMS[words[0]]))
        return program.main(words[1:])
    from cli.app import build_app  # noqa: PLC0415  keeps daemons lean

    try:
        result = build_app()(words, result_action="return_value")
    except GpusliceError as error:
        print(f"gpuslice: {error}", file=sys.stderr)
        return 1
    return result if isinstance(result, int) else 0
