"""A new family file is checked before a cluster meets it, and every mistake is told with its place and remedy."""

import io
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuslice.devices.families.lint import lint_text, main

EXAMPLE = Path(__file__).parents[2] / "examples" / "families" / "acme.yaml"
BUILT_IN = sorted((Path(__file__).parents[2] / "gpuslice" / "devices" / "families").glob("*.yaml"))


def changed(path: str, value: Any) -> str:
    """Return the example with one value set, by a dotted path below its first kind (``..`` starts at the file)."""
    document = yaml.safe_load(EXAMPLE.read_text())
    target: Any = document if path.startswith("..") else document["kinds"][0]
    *parents, last = path.lstrip(".").split(".")
    for parent in parents:
        target = target.setdefault(parent, {})
    if value is None:
        target.pop(last, None)
    else:
        target[last] = value
    return yaml.safe_dump(document)


def lines(text: str) -> list[str]:
    return [str(mistake) for mistake in lint_text(text, "acme.yaml")]


@pytest.mark.parametrize("path", [EXAMPLE, *BUILT_IN], ids=lambda path: path.stem)
def test_our_own_files_are_good(path: Path) -> None:
    assert lines(path.read_text()) == []


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        pytest.param("..version", 2, "$.version", id="a version of the future"),
        pytest.param("..kinds", [], "describe at least one kind", id="no kind"),
        pytest.param("name", "Acme X1", "write lower-case letters", id="a name with a space"),
        pytest.param("vendor", "other", "the same vendor in both", id="two vendors"),
        pytest.param("word", "A,B", "HAMi's grammar", id="a word that breaks the grammar"),
        pytest.param("resources.count", "xpu", "<vendor domain>/<name>", id="a resource without a domain"),
        pytest.param("resources.count", "kubernetes.io/xpu", "your vendor's domain", id="a domain of Kubernetes"),
        pytest.param("resources.count", "nvidia.com/gpu", "belongs to family nvidia", id="a resource of somebody else"),
        pytest.param("resources.colour", "acme.com/red", "unknown field `colour`", id="an unknown key"),
        pytest.param("resources.aliases", {"acme.com/old": "acme.com/no"}, "not above", id="an alias of nothing"),
        pytest.param("memory.unitMib", 0, "1 or more", id="no unit"),
        pytest.param("memory.unitMib", "many", "$.kinds[0].memory.unitMib", id="not a number"),
        pytest.param("memory.cardMib", None, "is missing", id="sizes of an unknown card"),
        pytest.param("memory.cardMib", 1000, "more than the card's", id="a size larger than the card"),
        pytest.param("memory.sizes", [{"mib": 2}, {"mib": 1}], "do not rise", id="sizes in no order"),
        pytest.param("memory.sizes", [], "rounds up to nothing", id="rounding without sizes"),
        pytest.param("memory.exactWhen", "acme.com/exact", "annotation=value", id="half a condition"),
        pytest.param("resources.memory", None, "by which a pod asks for memory", id="sizes that nobody can ask for"),
        pytest.param("shared", False, "set shared: true", id="whole cards with shares"),
        pytest.param("cores.defaultPercent", 101, "0 to 100", id="101 percent"),
        pytest.param("cores.writtenAs", "mask", "coresAlone", id="a mask of nothing"),
        pytest.param("counts.allowed", [0], "1 or more", id="0 cards allowed"),
        pytest.param("counts.unit", "slices", "slices", id="slices that sizes do not name"),
        pytest.param("selection.useUuid", ["a b"], "annotation key", id="an annotation with a space"),
        pytest.param("containerEnv", [{"name": "A-B", "value": ""}], "variable name", id="a variable with a dash"),
        pytest.param("choices", [{"key": "a/b", "values": ["x"], "default": "y"}], "among the values", id="a default"),
        pytest.param("node.register", "", "name the node annotation", id="a node that says nothing"),
        pytest.param("node.grammar", "capacity", "tell cards apart", id="cards without names"),
        pytest.param("node.grammar", "xml", "$.kinds[0].node.grammar", id="an unknown grammar"),
        pytest.param("topology", "group", "write node.groupSize", id="groups of nobody knows what"),
        pytest.param("node.groupSize", -1, "leave it out", id="a negative group"),
        pytest.param("node.slotsPerCard", 0, "1 or more", id="a card for nobody"),
        pytest.param("pod.allocated", "a b", "annotation key", id="a pod annotation with a space"),
        pytest.param("pod.extra", [{"key": "a/b"}], "one of text, json, list", id="an annotation without a value"),
        pytest.param("pod.extra", [{"key": "a/b", "text": "{uuid}"}], "unknown fields", id="a field that is none"),
        pytest.param("pod.extra", [{"key": "a/b", "text": "{"}], "unknown fields", id="a broken template"),
        pytest.param("pod.extra", [{"key": "a/b", "list": {"item": "{id}"}}], "{index} or {unit}", id="a broken item"),
        pytest.param(
            "pod.extra",
            [{"key": "a/b", "json": {"shape": "devices", "fields": {"x": "y"}}}],
            "unknown sources y",
            id="a JSON value of nothing",
        ),
        pytest.param(
            "pod.extra", [{"key": "a/b", "text": "x", "when": "by-cores"}], "coresAlone", id="a when of nothing"
        ),
    ],
)
def test_a_mistake_is_one_line_with_a_remedy(path: str, value: Any, said: str) -> None:
    found = lines(changed(path, value))
    assert [line for line in found if said in line], found
    assert all(line.startswith("acme.yaml: ") for line in found)


def test_all_mistakes_come_at_once() -> None:
    document = yaml.safe_load(EXAMPLE.read_text())
    document["kinds"][0]["name"] = "X"
    document["kinds"][0]["memory"]["unitMib"] = 0
    document["kinds"][0]["node"]["register"] = ""
    assert len(lines(yaml.safe_dump(document))) == 3


def test_what_is_no_yaml_says_where() -> None:
    (line,) = lines("version: [")
    assert "YAML" in line


def test_two_kinds_need_names_of_their_own() -> None:
    document = yaml.safe_load(EXAMPLE.read_text())
    document["kinds"] *= 2
    found = lines(yaml.safe_dump(document))
    assert any("used twice" in line for line in found)


def test_the_command_prints_a_summary_and_tells_by_its_exit_code(tmp_path: Path) -> None:
    output = io.StringIO()
    assert main([str(EXAMPLE)], output) == 0
    assert output.getvalue() == f"{EXAMPLE}: acme-x1: ok (acme.com/xpu, acme.com/xpu-memory, acme.com/xpu-cores)\n"
    bad = tmp_path / "bad.yaml"
    bad.write_text(changed("name", "X"))
    output = io.StringIO()
    assert main([str(bad), str(tmp_path / "none.yaml")], output) == 1
    first, second = output.getvalue().splitlines()
    assert "write lower-case letters" in first
    assert "none.yaml" in second
