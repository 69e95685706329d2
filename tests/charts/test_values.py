"""values.yaml, its schema, the README and the list of resources say the same."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from tests.charts.families_file import CHART, FAMILIES_FILE, families_json
from tests.charts.reference import README, documented_values, readme, values_file
from tests.charts.rendering import variants

SOURCE = values_file().read_text()
VALUES = yaml.safe_load(SOURCE)
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def leaves(values: dict[str, Any], schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield (path, default, schema) of every value that a user sets as one."""
    for key, value in values.items():
        where = f"{path}.{key}" if path else key
        inner = schema.get("properties", {}).get(key, {})
        if isinstance(value, dict) and inner.get("additionalProperties") is not None and "properties" in inner:
            yield from leaves(value, inner, where)
        else:
            yield where, value, inner


def objects(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if "properties" in schema:
        yield path or "(top)", schema
        for key, inner in schema["properties"].items():
            yield from objects(inner, f"{path}.{key}" if path else key)


def merged(changes: dict[str, Any]) -> dict[str, Any]:
    def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
        for key, value in over.items():
            base[key] = (
                merge(base[key], value) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
            )
        return base

    return merge(copy.deepcopy(VALUES), changes)


def test_the_defaults_follow_the_schema() -> None:
    jsonschema.validate(VALUES, SCHEMA)


@pytest.mark.parametrize("name", variants())
def test_every_variant_follows_the_schema(name: str) -> None:
    jsonschema.validate(merged(variants()[name]), SCHEMA)


def test_every_value_is_in_the_schema_and_documented() -> None:
    documented = {value.path: value for value in documented_values(SOURCE)}
    found = list(leaves(VALUES, SCHEMA))
    missing = [path for path, _, schema in found if path not in documented or not schema]
    assert not missing
    assert {path for path, _, _ in found} == set(documented)
    assert [(path, schema["description"]) for path, _, schema in found] == [
        (p, documented[p].text) for p, _, _ in found
    ]


def test_every_object_in_the_schema_is_closed() -> None:
    open_objects = [path for path, schema in objects(SCHEMA) if schema.get("additionalProperties") is not False]
    # Helm gives every sub-chart the same global object, so a parent chart may add keys of its own.
    assert open_objects == ["global"]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"schedular": {}}, id="a misspelt component"),
        pytest.param({"scheduler": {"scoring": "best"}}, id="an unknown scoring"),
        pytest.param({"webhook": {"timeoutSeconds": 30}}, id="a webhook that holds up the API server"),
        pytest.param({"webhook": {"failurePolicy": "fail"}}, id="a policy in the wrong case"),
        pytest.param({"webhook": {"url": "http://10.0.0.7"}}, id="a webhook without TLS"),
        pytest.param({"node": {"paths": {"state": "var/lib"}}}, id="a relative path on the node"),
        pytest.param({"scheduler": {"extender": {"port": 70000}}}, id="a port that does not exist"),
        pytest.param({"image": {"digest": "latest"}}, id="a digest that is none"),
    ],
)
def test_the_schema_refuses(changes: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(merged(changes), SCHEMA)


def test_the_readme_has_the_current_table() -> None:
    text = README.read_text()
    assert readme(text, SOURCE) == text, "run: python -m tests.charts.reference"


def test_the_chart_knows_every_resource_of_the_device_families() -> None:
    assert FAMILIES_FILE.read_text() == families_json(), "run: python -m tests.charts.families_file"
