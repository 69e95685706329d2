"""What goes wrong when JSON that others wrote is decoded."""

from typing import Final

import msgspec

UNREADABLE: Final = (msgspec.MsgspecError, RecursionError)
"""For ``except``: text that is no JSON or has another shape, and brackets nested deeper than Python follows."""
