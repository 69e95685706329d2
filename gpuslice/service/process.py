"""Start and stop of a daemon: signals, a bounded stop, the file that tells which ports were chosen."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import structlog

from gpuslice.devices.errors import GpusliceError

log = structlog.get_logger(__name__)

STOP_SECONDS = 1.5
"""How long tasks may take to end after SIGTERM; whoever is not done then is left behind and the process exits."""


def run_daemon(serve: Callable[[asyncio.Event], Awaitable[None]], *, small: bool = False) -> int:
    """Run ``serve`` until it returns, fails, or SIGTERM/SIGINT arrives; gives the exit code.

    ``serve`` gets an event that is set on the first signal. It is cancelled if it has not returned
    :data:`STOP_SECONDS` later. A ``small`` daemon runs on the standard library's event loop: uvloop takes 2 MiB.
    """
    try:
        with asyncio.Runner(loop_factory=None if small else _fast_loop) as runner:
            return runner.run(_supervise(serve))
    except GpusliceError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


def _fast_loop() -> asyncio.AbstractEventLoop:
    import uvloop  # noqa: PLC0415  a small daemon does not load it

    return uvloop.new_event_loop()


async def _supervise(serve: Callable[[asyncio.Event], Awaitable[None]]) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    task = asyncio.ensure_future(serve(stopping))
    waiter = asyncio.create_task(stopping.wait())
    await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    if not task.done():
        log.info("stopping")
        await asyncio.wait({task}, timeout=STOP_SECONDS)
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=0.3)
    if not task.done():
        log.error("stop_timed_out")
        sys.stderr.flush()
        # The event loop's own clean-up would wait for the task that has just refused to end.
        os._exit(1)
    if task.cancelled():
        return 0
    return _outcome(task.exception())


def _outcome(error: BaseException | None) -> int:
    if error is None:
        return 0
    causes = _leaves(error)
    if all(isinstance(cause, GpusliceError) for cause in causes):
        for cause in causes:
            log.error("daemon_failed", error=str(cause))
        return 2
    log.error("daemon_crashed", exc_info=error)
    return 1


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


def write_ports(path: Path | None, ports: Mapping[str, int]) -> None:
    """Write ``{"name": port, …}`` to ``path`` in one step, so that nobody reads half of it; None writes nothing."""
    if path is None:
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(dict(ports)) + "\n", encoding="utf-8")
    temporary.replace(path)


async def until_stopped(
    stopping: asyncio.Event, *tasks: Awaitable[object], serving: Awaitable[object] | None = None
) -> None:
    """Run ``tasks`` until ``stopping`` is set, then cancel them; a task that fails ends all and is raised.

    ``serving`` ends by itself once ``stopping`` is set, and the others go on until it has: calls in progress need them.
    """
    futures = [asyncio.ensure_future(task) for task in tasks]
    main = asyncio.ensure_future(stopping.wait() if serving is None else serving)
    try:
        done, _ = await asyncio.wait({main, *futures}, return_when=asyncio.FIRST_COMPLETED)
        for future in done:
            future.result()
    finally:
        for future in (main, *futures):
            future.cancel()
        await asyncio.gather(main, *futures, return_exceptions=True)
