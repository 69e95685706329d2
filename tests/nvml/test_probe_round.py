"""A round of probes where one card is slow, on a clock of numbers."""

import pytest

from gpuslice.nvml import events
from gpuslice.nvml.events import Probe, ProbeRound

LATE = "NVML did not answer within 10 s"


class Cards:
    """Cards that take their time; looks at the round from outside while one of them does."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds = seconds
        self.now = 0.0
        self.round = ProbeRound(seconds, 10, clock=lambda: self.now)
        self.seen_stuck: list[Probe] = []

    def probe(self, uuid: str) -> Probe:
        self.now += self.seconds[uuid]
        self.seen_stuck += self.round.stuck()
        return Probe(uuid)


@pytest.mark.parametrize(
    ("seconds", "late"),
    [
        pytest.param({"a": 1, "b": 1}, [], id="all answer in time"),
        pytest.param({"a": 9, "b": 9, "c": 9}, [], id="many slow ones together take long, and each is in time"),
        pytest.param({"a": 1, "b": 11, "c": 1}, ["b"], id="a card that hangs costs itself only"),
    ],
)
def test_only_the_card_that_hangs_is_blamed(
    monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float], late: list[str]
) -> None:
    cards = Cards(seconds)
    monkeypatch.setattr(events, "probe", cards.probe)
    found = cards.round.run()
    assert [probe.uuid for probe in found] == list(seconds)
    assert [probe.uuid for probe in found if probe.problem == LATE] == late
    assert [probe.uuid for probe in cards.seen_stuck] == late


def test_before_it_begins_nobody_is_blamed() -> None:
    now = iter((0.0, 100.0))
    assert ProbeRound(["a"], 10, clock=lambda: next(now)).stuck() == []
