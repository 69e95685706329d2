"""Clocks, sleep and chance of the things that wait; real ones in a daemon, chosen ones in a test."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Timing:
    """``clock`` counts monotonic seconds, ``draw`` gives numbers in [0, 1)."""

    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = _utc_now
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    draw: Callable[[], float] = random.random


REAL_TIME = Timing()
