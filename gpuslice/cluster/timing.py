"""Clocks, sleep and chance of the things that wait; real ones in a daemon, chosen ones in a test."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class Timing:
    """``clock`` counts monotonic seconds, ``wall`` those since 1970; ``draw`` gives numbers in [0, 1)."""

    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    draw: Callable[[], float] = random.random

    def now(self) -> datetime:
        """Date and time in UTC."""
        return datetime.fromtimestamp(self.wall(), UTC)


REAL_TIME = Timing()
