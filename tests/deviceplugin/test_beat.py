"""The moments at which periodic work is done."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.beat import next_beat


@pytest.mark.parametrize(
    ("now", "due"),
    [
        pytest.param(10.0, 15.0, id="on a beat: a whole period"),
        pytest.param(12.0, 15.0, id="between two beats: less"),
        pytest.param(14.999, 20.0, id="a timer went off early: not twice"),
        pytest.param(13.8, 20.0, id="a beat that is very near: the one after it"),
    ],
)
def test_every_five_seconds(now: float, due: float) -> None:
    assert next_beat(now, 5.0) == due


@given(st.floats(0, 1e7), st.sampled_from([0.05, 0.2, 1.0, 5.0, 30.0]))
def test_it_is_never_much_longer_than_the_period(now: float, seconds: float) -> None:
    assert 0.2 * seconds < next_beat(now, seconds) - now < 1.3 * seconds


def test_a_longer_period_ends_with_a_shorter_one() -> None:
    assert next_beat(61.0, 30.0) in {next_beat(at, 5.0) for at in range(61, 100)}
