"""What containers of one card are told of each other, with real limits and state files and a clock of numbers."""

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from deviceplugin.hints import ACTIVE_NS, HintWriter, Neighbour, needs_hints, what_others_do
from gpuslice.devices import limits
from gpuslice.devices import limits_layout as layout
from gpuslice.devices.limits import CorePolicy, DeviceLimit
from simulator.kubelet.rig import gpu

NOW = 10**12
Told = tuple[int, int, int]
"""Others' share (Q16), whether a higher priority is active, stamp."""


def limit(card: int = 0, cores: int = 30, *, soft: bool = True, priority: int = 1) -> DeviceLimit:
    return DeviceLimit(gpu(card), 1000, cores, CorePolicy.SOFT if soft else CorePolicy.HARD, priority)


class Container:
    """One container's directory."""

    def __init__(self, directory: Path, *devices: DeviceLimit) -> None:
        self.directory = directory
        directory.mkdir()
        self.devices = devices
        limits.write_limits(directory / "limits", devices)
        limits.create_state(directory / "state")

    def launch(self, row: int, at_ns: int) -> None:
        base = layout.STATE_DEVICES_AT + row * layout.STATE_DEVICE_SIZE
        with (self.directory / "state").open("r+b") as file:
            for member, value in (
                (layout.STATE_DEVICE_UUID, limits.uuid_to_bytes(self.devices[row].uuid)),
                (layout.STATE_DEVICE_LAST_LAUNCH_NS, at_ns),
            ):
                file.seek(base + member.offset)
                file.write(struct.pack(member.format, value))

    def told(self, row: int = 0) -> Told:
        data = (self.directory / "limits").read_bytes()
        base = layout.LIMITS_HINTS_AT + row * layout.LIMITS_HINT_SIZE
        members = (
            layout.LIMITS_HINT_OTHERS_ACTIVE_Q16,
            layout.LIMITS_HINT_HIGHER_PRIORITY_ACTIVE,
            layout.LIMITS_HINT_STAMP_NS,
        )
        others, higher, stamp = (struct.unpack_from(m.format, data, base + m.offset)[0] for m in members)
        return others, higher, stamp

    def on(self, card: int) -> Neighbour:
        found = next(device for device in self.devices if device.uuid == gpu(card))
        return Neighbour(self.directory, found, len(self.devices))


def writer(*containers: Container, now: Callable[[], int] = lambda: NOW) -> HintWriter:
    cards: dict[str, list[Neighbour]] = {}
    for container in containers:
        for device in container.devices:
            cards.setdefault(device.uuid, []).append(Neighbour(container.directory, device, len(container.devices)))
    return HintWriter(None, now, cards)  # type: ignore[arg-type]  # the node is asked for grants only


@pytest.mark.parametrize(
    ("listed", "needed"),
    [
        pytest.param([limit(soft=False)], False, id="a hard limit alone"),
        pytest.param([limit(soft=False), limit(soft=False)], False, id="hard limits of one priority"),
        pytest.param([limit(soft=True)], True, id="a soft limit, even alone"),
        pytest.param([limit(soft=False, priority=0), limit(soft=False)], True, id="two priorities"),
    ],
)
def test_who_needs_hints(listed: list[DeviceLimit], needed: bool) -> None:
    assert needs_hints(listed) is needed


@pytest.mark.parametrize(
    ("other", "launched_ns", "told"),
    [
        pytest.param(limit(cores=40), NOW, (40, False), id="an active neighbour counts with its limit"),
        pytest.param(limit(cores=0), NOW, (100, False), id="one without a limit counts in full"),
        pytest.param(limit(cores=40), NOW - ACTIVE_NS, (0, False), id="one that rests does not count"),
        pytest.param(
            limit(cores=40), NOW + 1, (0, False), id="one that claims to have launched in the future is not believed"
        ),
        pytest.param(limit(cores=40, priority=0), NOW, (40, True), id="a higher priority goes before"),
    ],
)
def test_what_a_container_is_told(tmp_path: Path, other: DeviceLimit, launched_ns: int, told: tuple[int, bool]) -> None:
    one, two = Container(tmp_path / "one", limit()).on(0), Container(tmp_path / "two", other).on(0)
    two.launched_ns = launched_ns
    assert what_others_do(one, [one, two], NOW) == told


def test_hints_are_written_for_the_card_on_which_somebody_is_active(tmp_path: Path) -> None:
    # The second container used its cards in another order than they are listed in.
    one, two = Container(tmp_path / "one", limit(0)), Container(tmp_path / "two", limit(1), limit(0, 50))
    two.launch(1, NOW - 1)
    assert writer(one, two).look()
    assert one.told() == (layout.FULL_CORES_Q16 // 2, 0, NOW)
    assert two.told(1) == (0, 0, NOW)
    assert two.told(0) == (0, 0, NOW)


def test_everybody_gets_a_first_hint_and_no_other_while_nobody_is_active(tmp_path: Path) -> None:
    """From the first hint on, a container without a core limit counts its launches."""
    one, two, now = Container(tmp_path / "one", limit()), Container(tmp_path / "two", limit(cores=0)), [NOW]
    watching = writer(one, two, now=lambda: now[0])
    for _ in range(3):
        assert not watching.look()
        now[0] += 10**9
    assert (one.told(), two.told()) == ((0, 0, NOW), (0, 0, NOW))


def test_a_hint_is_renewed_before_it_expires_and_not_at_every_look(tmp_path: Path) -> None:
    one, now = Container(tmp_path / "one", limit()), [NOW]
    watching = writer(one, now=lambda: now[0])
    stamps = []
    for step_ms in (0, 50, 400, 100):
        now[0] += step_ms * 1_000_000
        one.launch(0, now[0])
        watching.look()
        stamps.append(one.told()[2] - NOW)
    assert stamps == [0, 0, 0, 550_000_000]


@pytest.mark.parametrize("spoil", ["cut short", "gone", "a pipe", "a link"])
def test_a_spoiled_state_is_no_activity_and_holds_nobody_up(tmp_path: Path, spoil: str) -> None:
    one, two = Container(tmp_path / "one", limit()), Container(tmp_path / "two", limit())
    state = two.directory / "state"
    state.unlink()
    if spoil == "cut short":
        state.write_bytes(b"x" * 300)
    elif spoil == "a pipe":
        os.mkfifo(state)
    elif spoil == "a link":
        # To the state of a neighbour who is active.
        state.symlink_to(one.directory / "state")
    one.launch(0, NOW)
    assert writer(one, two).look()
    assert one.told() == (0, 0, NOW)
