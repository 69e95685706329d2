"""The auditor sees what must never be."""

import json
from typing import Any

import pytest

from simulator.audit import audit

Object = dict[str, Any]


def node(**card: object) -> Object:
    cards = [{"uuid": "GPU-a", "memoryMiB": 1000, "cores": 100, "slots": 3} | card]
    return {"metadata": {"name": "n1", "annotations": {"gpuslice.io/cards": json.dumps({"v": 1, "cards": cards})}}}


def pod(name: str, *shares: Object, phase: str = "Running", init: bool = False) -> Object:
    allocation = {"v": 1, "node": "n1", "containers": {"main": list(shares)}}
    key = "initContainers" if init else "containers"
    return {
        "metadata": {
            "namespace": "default",
            "name": name,
            "annotations": {"gpuslice.io/allocation": json.dumps(allocation)},
        },
        "spec": {key: [{"name": "main"}]},
        "status": {"phase": phase},
    }


def share(number: int, **changes: object) -> Object:
    return {"slice": f"GPU-a::{number}", "memoryMiB": 400, "cores": 30} | changes


@pytest.mark.parametrize(
    ("pods", "expected"),
    [
        pytest.param([pod("a", share(0)), pod("b", share(1))], [], id="two shares that fit"),
        pytest.param(
            [pod("a", share(0)), pod("b", share(0))],
            ["GPU-a: slice GPU-a::0 has 2 owners (default/a/main, default/b/main)"],
            id="one slice in two hands",
        ),
        pytest.param(
            [pod("a", share(0)), pod("b", share(1)), pod("c", share(2))],
            ["GPU-a: memoryMiB: 1200 promised of 1000 (default/a, default/b, default/c)"],
            id="more memory than the card has",
        ),
        pytest.param(
            [pod("a", share(0)), pod("b", share(1)), pod("c", share(2), phase="Failed")],
            [],
            id="a failed pod holds nothing",
        ),
        pytest.param([pod("a", share(0)), pod("b", share(0), init=True)], [], id="an init share is lent, not kept"),
        pytest.param(
            [pod("a", share(0, exclusive=True)), pod("b", share(1))],
            ["GPU-a: an exclusive holder is not alone (default/a, default/b)"],
            id="a guest on an exclusive card",
        ),
        pytest.param(
            [pod("a", {"slice": "GPU-x::0"})], ["GPU-x: is on no node (default/a)"], id="a card that nobody has"
        ),
    ],
)
def test_audit(pods: list[Object], expected: list[str]) -> None:
    assert [str(finding) for finding in audit(pods, [node()])] == expected
