"""The guide shows a file that works."""

from pathlib import Path

import yaml

from gpuslice.devices.families.lint import lint_text

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
