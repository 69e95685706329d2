"""Start the extender: ``python -m extender``."""

import asyncio
import sys
from collections.abc import Sequence

from extender.daemon import serve
from extender.settings import ExtenderSettings
from gpuslice.devices.errors import BadConfiguration
from gpuslice.service.logs import configure_logging
from gpuslice.service.process import run_daemon
from gpuslice.service.settings import load_settings


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon until it is told to stop; gives the exit code."""
    try:
        settings = load_settings(ExtenderSettings, argv, program="gpuslice extender")
    except BadConfiguration as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    configure_logging(settings.effective_log_level, settings.log_format)

    async def run(stopping: asyncio.Event) -> None:
        await serve(settings, stopping)

    return run_daemon(run)


if __name__ == "__main__":
    sys.exit(main())
