"""One thread that owns NVML.

NVML calls block, some for seconds when a card is failing, and some versions of the library are not safe against
calls during init and shutdown. All calls run here, one after the other, and NVML stays open: without persistence
mode each first open initialises the cards anew (1 to 3 s each).
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class NvmlWorker:
    """Runs functions on NVML's thread. `close` waits for the call in progress."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="nvml")

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `function` on the thread and wait for it; cancellation leaves the call running to its end."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: function(*args, **kwargs))

    def close(self) -> None:
        """Let the current call end and stop the thread."""
        self._pool.shutdown(wait=True, cancel_futures=True)
