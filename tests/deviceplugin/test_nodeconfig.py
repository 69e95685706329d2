"""The cluster's one configuration file, seen from one node."""

import re
from pathlib import Path

import pytest

from deviceplugin import nodeconfig
from deviceplugin.nodeconfig import CardSettings, MigStrategy, NodeSettings
from deviceplugin.offers import make_offers
from gpuslice.devices.errors import BadConfiguration
from gpuslice.nvml.inventory import Machine, MigInstance, PhysicalCard


def read(text: str, node: str = "gpu-1", **labels: str) -> NodeSettings:
    return nodeconfig.parse("nodes.yaml", text.encode(), node=node, labels=labels)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", NodeSettings(), id="an empty file is all defaults"),
        pytest.param("defaults: {slotsPerCard: 4}", NodeSettings(cards=CardSettings(slots_per_card=4)), id="defaults"),
        pytest.param(
            "defaults: {numa: true}\nrules: [{match: {node: 'gpu-*'}, set: {numa: false}}]",
            NodeSettings(numa=False),
            id="a written false counts",
        ),
        pytest.param("rules: [{match: {node: 'cpu-*'}, set: {numa: false}}]", NodeSettings(), id="another node's rule"),
        pytest.param(
            "rules: [{match: {labels: {pool: inference}}, set: {mode: time-slicing}}]",
            NodeSettings(cards=CardSettings(mode="time-slicing")),
            id="a rule by label",
        ),
        pytest.param(
            "rules:\n- {match: {node: '*'}, set: {slotsPerCard: 2}}\n- {match: {node: gpu-1}, set: {slotsPerCard: 3}}",
            NodeSettings(cards=CardSettings(slots_per_card=3)),
            id="the later rule wins",
        ),
        pytest.param(
            "defaults: {filterDevices: {uuids: [GPU-x], indexes: [3]}}",
            NodeSettings(filtered_uuids=frozenset({"GPU-x"}), filtered_indexes=frozenset({3})),
            id="filtered devices",
        ),
    ],
)
def test_settings(text: str, expected: NodeSettings) -> None:
    assert read(text, pool="inference") == expected


def test_a_model_rule_applies_to_its_cards_only() -> None:
    settings = read("rules: [{match: {model: '*H200*'}, set: {mode: exclusive}}]")
    assert settings.for_card("GPU-1", "NVIDIA H200").mode == "exclusive"
    assert settings.for_card("GPU-2", "NVIDIA A100-SXM4-80GB").mode == "hami-core"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("defaults: {slotsPerCard: 0}", "slotsPerCard: 0 is out of range", id="no slots"),
        pytest.param("defaults: {memoryScaling: -1}", "memoryScaling: -1", id="a negative scaling"),
        pytest.param("defaults: {mode: magic}", "Invalid enum value 'magic'", id="a mode that does not exist"),
        pytest.param("defaults: {slotPerCard: 4}", "unknown field `slotPerCard`", id="a typo"),
        pytest.param("defaults: [", "write valid YAML", id="no YAML"),
        pytest.param("- 1", "Expected `object`, got `array`", id="a list"),
        pytest.param(
            "rules: [{match: {model: T4}, set: {unmanaged: allow}}]",
            "unmanaged: applies to a node, not to one model",
            id="a node's setting by model",
        ),
    ],
)
def test_a_wrong_file_is_refused_by_field(text: str, problem: str) -> None:
    with pytest.raises(BadConfiguration, match=re.escape(problem)):
        read(text)


def test_the_example_says_what_it_means() -> None:
    content = (Path(__file__).resolve().parents[2] / "examples" / "device-plugin" / "node-config.yaml").read_text()
    assert read(content, node="plain") == NodeSettings(card_rules=(("*H200*", {"mode": "exclusive"}),)), (
        "the defaults in the example are the defaults"
    )
    assert read(content, node="t4-7").cards.slots_per_card == 4
    assert read(content, node="workstation").filtered_indexes == {0}


SMALL = MigInstance("MIG-1", "1g.10gb", 9728, 3, 0, 14)
LARGE = MigInstance("MIG-2", "3g.40gb", 40192, 1, 0, 42)


@pytest.mark.parametrize(
    ("strategy", "instances", "offered", "problem"),
    [
        pytest.param("none", (SMALL,), {}, "set migStrategy to single or mixed", id="no share of a card with MIG"),
        pytest.param("mixed", (), {}, "no instance", id="no instances"),
        pytest.param("single", (SMALL, LARGE), {}, "different profiles", id="single wants one profile"),
        pytest.param("single", (SMALL,), {"MIG-1": "nvidia.com/gpu"}, "", id="single"),
        pytest.param(
            "mixed",
            (SMALL, LARGE),
            {"MIG-1": "nvidia.com/mig-1g.10gb", "MIG-2": "nvidia.com/mig-3g.40gb"},
            "",
            id="mixed names profiles",
        ),
    ],
)
def test_what_a_card_with_mig_offers(
    strategy: MigStrategy, instances: tuple[MigInstance, ...], offered: dict[str, str], problem: str
) -> None:
    card = PhysicalCard(
        uuid="GPU-1", index=0, model="A100", memory_mib=81920, mig_enabled=True, mig_instances=instances
    )
    offers = make_offers(Machine("580.65.06", (card,)), NodeSettings(mig_strategy=strategy))
    assert {uuid: offer.resource for uuid, offer in offers.by_uuid.items()} == offered
    assert problem in " ".join(offers.problems)
    assert bool(problem) == bool(offers.problems)
