"""One beat for all that looks at something again and again: equal periods end at the same moment.

An idle daemon pays for waking up, not for looking. Loops that begin whenever they like wake it once each; on a common
beat they share one round of the event loop.
"""

import math

_SOONEST = 0.25


def next_beat(now: float, seconds: float) -> float:
    """Return the next multiple of a period, on the clock of the event loop.

    One that is less than a quarter of the period away is left out: a timer may go off a little early, and a round must
    not be done twice.
    """
    return math.ceil(now / seconds + _SOONEST) * seconds if seconds > 0 else now
