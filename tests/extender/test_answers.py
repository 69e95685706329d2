"""/filter says the same of few nodes, which are taken one by one, and of many."""

import json

import pytest

from extender.answers import NodeNames, answer_filter
from gpuslice.devices.inventory import Card
from gpuslice.placement.decide import filter_nodes
from gpuslice.placement.ledger import Ledger
from gpuslice.placement.rejection import TEXTS, Obstacle
from tests.placement.build import BINPACK, ask, node, request, run

NAMES = ["n1", "n2", "n3", "none"]


@pytest.mark.parametrize("few", [pytest.param(0, id="many"), pytest.param(256, id="few")])
@pytest.mark.parametrize(
    ("memory_mib", "asked", "offered", "refused"),
    [
        pytest.param(100, NAMES[:2], NAMES[:2], {}, id="all fit"),
        pytest.param(600, NAMES[:3], ["n2"], {"n1": Obstacle.MEMORY, "n3": Obstacle.NOT_READY}, id="one fits"),
        pytest.param(5000, ["n1"], [], {"n1": Obstacle.MEMORY}, id="none fits"),
        pytest.param(600, NAMES[1:], ["n2"], {"n3": Obstacle.NOT_READY, "none": Obstacle.UNKNOWN_NODE}, id="unknown"),
        pytest.param(600, [], [], {}, id="nobody is asked for"),
    ],
)
def test_the_nodes_that_fit_are_offered_and_the_others_have_a_reason(
    few: int, memory_mib: int, asked: list[str], offered: list[str], refused: dict[str, Obstacle],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("extender.answers.FEW", few)
    ledger = Ledger()
    for name in ("n1", "n2"):
        ledger.apply(node(name, Card(f"GPU-{name}", memory_mib=1000)))
    ledger.apply(node("n3", Card("GPU-n3", memory_mib=1000), ready=False))
    assert run(ledger, "old", request(ask(memory_mib=500)), "n1") is not None
    names, raw = NodeNames(ledger), json.dumps(asked).encode()
    candidates = names.candidates(raw)
    assert candidates is not None
    decision = filter_nodes(ledger, request(ask(memory_mib=memory_mib)), candidates, BINPACK)
    answer = json.loads(answer_filter(names, decision, raw, at_most=None))
    assert answer["NodeNames"] == offered
    assert answer["FailedAndUnresolvableNodes"] == {name: TEXTS[obstacle] for name, obstacle in refused.items()}
