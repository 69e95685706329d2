"""Work that can wait a moment: it is done while we wait for somebody else, so that nobody waits for it."""

import asyncio
from collections.abc import Callable
from typing import Final

AT_MOST_SECONDS: Final = 0.002
Work = Callable[[], None]


class SpareMoments:
    """Puts work off until :meth:`use`, or for :data:`AT_MOST_SECONDS`; use it from one event loop.

    A scheduler calls its extender and waits, call after call; each binding gives the extender a moment in which the API
    server is at work. What watches bring just before a call is as good a few hundred microseconds later.
    """

    def __init__(self) -> None:
        self._work: list[Work] = []
        self._timer: asyncio.TimerHandle | None = None

    def put_off(self, work: Work) -> None:
        """Do this soon. It must not raise."""
        self._work.append(work)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(AT_MOST_SECONDS, self.use)

    def use(self) -> None:
        """Do all of it now: we are waiting for somebody else."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        todo, self._work = self._work, []
        for work in todo:
            work()
