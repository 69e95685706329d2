"""``python -m webhook``."""

import sys
from collections.abc import Sequence

from gpuslice.devices.errors import BadConfiguration
from gpuslice.service.logs import configure_logging
from gpuslice.service.process import run_daemon
from gpuslice.service.settings import load_settings
from webhook.daemon import serve
from webhook.settings import WebhookSettings


def main(argv: Sequence[str] | None = None) -> int:
    """Run the webhook until SIGTERM; gives the exit code (2: a setting is wrong)."""
    try:
        settings = load_settings(WebhookSettings, argv, program="gpuslice webhook")
    except BadConfiguration as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    configure_logging(settings.effective_log_level, settings.log_format)
    return run_daemon(lambda stopping: serve(settings, stopping))


if __name__ == "__main__":
    sys.exit(main())
