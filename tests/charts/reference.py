"""The chart's table of values, made from the comments in values.yaml.

Run as a program it rewrites the table in the chart's README: `python -m tests.charts.reference`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.charts.families_file import CHART

README = CHART / "README.md"
BEGIN, END = "<!-- values -->", "<!-- /values -->"
_KEY = re.compile(r"^(?P<indent> *)(?P<key>[A-Za-z]+):(?P<value>.*)$")
_COMMENT = re.compile(r"^-- \((?P<type>\w+)\) (?P<text>.*)$")


@dataclass(frozen=True, slots=True)
class Value:
    """One documented key."""

    path: str
    type: str
    default: str
    text: str


def documented_values(source: str) -> Iterator[Value]:
    """Yield every key that has a `# -- (type) text` comment, in file order."""
    path: list[str] = []
    comment: list[str] = []
    for line in source.splitlines():
        if line.strip().startswith("#"):
            word = line.strip().lstrip("#").strip()
            comment = [word] if word.startswith("--") else [*comment, word]
            continue
        key = _KEY.match(line)
        if key is None:
            comment = []
            continue
        path = [*path[: len(key["indent"]) // 2], key["key"]]
        described = _COMMENT.match(" ".join(comment)) if comment else None
        if described:
            yield Value(".".join(path), described["type"], key["value"].strip(), described["text"])
        comment = []


def table(source: str) -> str:
    """Return the values as a Markdown table."""
    rows = ["| value | type | default | meaning |", "|---|---|---|---|"]
    for value in documented_values(source):
        default = f"`{value.default}`" if value.default else "see values.yaml"
        rows.append(f"| `{value.path}` | {value.type} | {default} | {value.text.replace('|', '/')} |")
    return "\n".join(rows)


def readme(current: str, source: str) -> str:
    """Return the README with its table replaced."""
    before, _, rest = current.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(source)}\n{END}{after}"


def values_file() -> Path:
    """Return the chart's values.yaml."""
    return CHART / "values.yaml"


if __name__ == "__main__":
    README.write_text(readme(README.read_text(), values_file().read_text()))
