"""The guide shows a file that works."""

from pathlib import Path

import pytest
import yaml

from gpuslice.devices.families import load_files
from gpuslice.devices.families.lint import lint_text
from tests.families import cluster

ROOT = Path(__file__).parents[2]


def test_the_guide_shows_the_example() -> None:
    guide = (ROOT / "docs" / "guide" / "add-your-accelerator.md").read_text()
    shown = guide.split("```yaml\n", 1)[1].split("```", 1)[0]
    assert lint_text(shown, "guide") == ()
    assert yaml.safe_load(shown) == yaml.safe_load((ROOT / "examples" / "families" / "acme.yaml").read_text())


def test_the_webhook_guide_shows_rules_that_load() -> None:
    from webhook.namespaces import parse_namespace_policies

    guide = (ROOT / "docs" / "guide" / "webhook.md").read_text()
    shown = next(part for part in guide.split("```yaml\n")[1:] if part.startswith("version: 1")).split("```", 1)[0]
    rules = parse_namespace_policies(shown, "guide")
    assert rules.of("team-a").max_cards_per_pod == 4
    assert rules.of("somebody").max_cards_per_pod == 8


def test_the_new_vendor_goes_the_whole_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read, place, write: with the file alone."""
    families = load_files([ROOT / "examples" / "families" / "acme.yaml"])
    monkeypatch.setattr(cluster, "FAMILIES", families)
    cards = '[{"id":"X-0","count":8,"devmem":65536,"devcore":100,"type":"Acme X1","health":true}]'
    limits = {"acme.com/xpu": 1, "acme.com/xpu-memory": 10, "acme.com/xpu-cores": 20}
    placed = cluster.run(cluster.pod(limits), cluster.node({"acme.com/node-cards": cards}))
    text = "X-0,ACME,32768,20:;"
    assert (
        placed.annotations["acme.com/devices-to-allocate"] == placed.annotations["acme.com/devices-allocated"] == text
    )
    assert placed.annotations["acme.com/plan"] == '[{"id":"X-0","template":"half"}]'
