"""How the simulator starts processes."""

import shutil
from collections.abc import Sequence


def die_with_parent(command: Sequence[str]) -> list[str]:
    """Return the command such that the kernel kills it when its parent dies, where util-linux is installed."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--", *command] if setpriv else list(command)
