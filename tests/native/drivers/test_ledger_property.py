"""The ledger never loses memory: random allocations, frees and deaths of several processes."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.native.drivers.rig import MIB, Node, Program

KINDS = ("alloc", "managed", "vmm", "async", "array", "pitch")
ENDINGS = ("kill", "end")
SIZES = st.one_of(st.integers(1, 3000), st.integers(1, 40).map(lambda n: n * 2 * MIB))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 2), st.sampled_from(KINDS), SIZES),
        st.tuples(st.integers(0, 2), st.just("free"), st.integers(0, 30)),
        st.tuples(st.integers(0, 2), st.sampled_from((*ENDINGS, "sync")), st.just(0)),
    ),
    min_size=5,
    max_size=30,
)
CARD_MIB = 400
INVENTORY = f"cards: [{{model: T4, memoryMiB: {CARD_MIB}, reservedMiB: 0}}]\ncontextMiB: 10\n"


def command(kind: str, size: int) -> str:
    if kind in {"array", "pitch"}:
        return f"{kind} {min(size, 3000)} {size % 500 + 1}"
    if kind == "vmm":
        return f"vmm {-(-size // (2 * MIB)) * 2 * MIB}"
    return f"{kind} {size}" if size else kind


class Tenants:
    """Up to three processes on one card, started when first needed."""

    def __init__(self, node: Node, start: Callable[[Node], Program]) -> None:
        self.node = node
        self.start = start
        self.live: dict[int, Program] = {}

    def step(self, who: int, action: str, size: int) -> None:
        if action in ENDINGS:
            program = self.live.pop(who, None)
            if program is not None:
                program.kill() if action == "kill" else program.end()
            return
        if who not in self.live:
            self.live[who] = self.start(self.node).start()
        answer = self.live[who].ask(command(action, size))
        assert answer[0] in {"0", "1", "2"}, (action, size, answer)  # done, no such block, out of memory

    def check(self) -> None:
        """The card's sum is its processes' sum, and no more than the card."""
        card = self.node.ledger()[0]
        held = {entry["host_pid"]: sum(entry["bytes"].values()) for entry in card["processes"]}
        assert card["used_bytes"] == sum(held.values()) <= CARD_MIB * MIB
        assert held.keys() == {program.process.pid for program in self.live.values()}
        for entry in card["processes"]:
            assert entry["requested_bytes"] <= sum(entry["bytes"].values())


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_the_ledger_is_the_sum_of_its_processes(
    programs: Callable[..., Program], tmp_path: Path, steps: list[tuple[int, str, int]]
) -> None:
    with tempfile.TemporaryDirectory(dir=tmp_path) as directory:
        tenants = Tenants(Node(Path(directory), INVENTORY), programs)
        for step in steps:
            tenants.step(*step)
        tenants.check()
        for who in list(tenants.live):
            tenants.step(who, "kill", 0)
        tenants.check()
        assert tenants.node.ledger()[0]["used_bytes"] == 0
