"""What holds for all tests.

grpc.aio has one poller for all event loops of a process. What it has to say to the loop of an earlier test, which is
closed by then, it reports in the loop of the test that runs: that is no fault of this test.
"""

import asyncio
import traceback
from typing import Any

from anyio._backends import _asyncio

_collect = _asyncio.TestRunner._exception_handler


def _is_late_word_of_grpc(error: object) -> bool:
    if not isinstance(error, RuntimeError) or str(error) != "Event loop is closed":
        return False
    return any("cygrpc" in frame.filename for frame in traceback.extract_tb(error.__traceback__))


def _collect_but_late_words(
    runner: _asyncio.TestRunner, loop: asyncio.AbstractEventLoop, context: dict[str, Any]
) -> None:
    if not _is_late_word_of_grpc(context.get("exception")):
        _collect(runner, loop, context)


_asyncio.TestRunner._exception_handler = _collect_but_late_words  # type: ignore[method-assign,assignment]
