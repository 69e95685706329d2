"""Waiting longer after each failure, with jitter so that many clients do not come back in step."""

from collections.abc import Callable

from gpuslice.cluster.timing import REAL_TIME


class Backoff:
    """Delays ``initial, initial*factor, … cap`` seconds, each drawn from the upper half of its step.

    ``draw`` gives numbers in [0, 1); tests pass their own.
    """

    def __init__(
        self,
        initial_seconds: float = 0.1,
        cap_seconds: float = 5.0,
        *,
        factor: float = 2.0,
        draw: Callable[[], float] = REAL_TIME.draw,
    ) -> None:
        self._initial_seconds = initial_seconds
        self._cap_seconds = cap_seconds
        self._factor = factor
        self._draw = draw
        self.reset()

    def reset(self) -> None:
        """Start from the shortest delay again: something worked."""
        self._step_seconds = self._initial_seconds

    def next_seconds(self) -> float:
        """Give the delay before the next attempt and lengthen the one after it."""
        step = self._step_seconds
        self._step_seconds = min(step * self._factor, self._cap_seconds)
        return step * (0.5 + 0.5 * self._draw())
