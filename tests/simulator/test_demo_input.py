"""What people give the demo, where it works, and how it prints in a terminal of any width."""

import io
import re
import tempfile
from pathlib import Path

import pytest
from rich.console import Console

from gpuslice.devices.errors import BadConfiguration
from simulator.demo import run
from simulator.demo.pods import read_manifests
from simulator.demo.report import Report, counted
from simulator.inventory import load_nodes

PLACED = {
    "metadata": {
        "name": "two-cards",
        "namespace": "default",
        "annotations": {
            "gpuslice.io/allocation": '{"v":1,"node":"node-1","containers":{"main":['
            '{"slice":"GPU-1474f7ae-2cd3-1c5d-5f18-cc70f6087ffe::3","memoryMiB":16384,"family":"nvidia"},'
            '{"slice":"GPU-36ba73e3-829c-ab18-b30a-e8327b672e30::1","memoryMiB":16384,"family":"nvidia"}]}}'
        },
    },
    "spec": {"nodeName": "node-1"},
    "status": {"phase": "Running"},
}
PLAIN = {"metadata": {"name": "plain", "namespace": "default"}, "spec": {"nodeName": "node-1"}, "status": {}}
WAITING = {
    "metadata": {"name": "waiting", "namespace": "default"},
    "spec": {},
    "status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes: [red] is no colour"}]},
}


def report_of(width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    Report(console).placements([PLACED, PLAIN, WAITING], {"two-cards": "best of all"})
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [40, 80, 120, 150])
def test_placements_break_no_name_and_take_no_text_for_markup(width: int) -> None:
    text = report_of(width)
    for whole in ("two-cards", "node-1", "GPU-1474f7ae…::3", "asks for no card", "[red] is no colour"):
        assert whole in re.sub(r"\s+", " ", text)
    assert max(len(line) for line in text.splitlines()) <= width


@pytest.mark.parametrize(("number", "text"), [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes")])
def test_counts_are_grammatical(number: int, text: str) -> None:
    assert counted(number, "node") == text


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(b"", "holds no pod", id="an empty file"),
        pytest.param(b"kind: Deployment", "Deployment is not Pod", id="another kind"),
        pytest.param(b"just text", "str is not Pod", id="no mapping"),
        pytest.param(b"[1, 2", "expected ',' or ']'", id="broken YAML"),
        pytest.param(b"\x8c\x00", "utf-8", id="no text"),
    ],
)
def test_manifests_that_are_none_are_refused_in_one_line(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "pod.yaml"
    file.write_bytes(content)
    with pytest.raises(BadConfiguration, match=re.escape(says)) as caught:
        read_manifests([file])
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_without_manifests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match="holds no pod"):
        read_manifests([tmp_path])


def test_an_inventory_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_bytes(b"\x8c\x00")
    with pytest.raises(BadConfiguration, match="not UTF-8"):
        load_nodes(file)


@pytest.mark.parametrize(
    ("usual", "used"),
    [("/tmp", "/tmp"), ("/var/tmp", "/var/tmp"), ("/tmp/" + "x" * 60, "/tmp"), ("/my files", "/tmp"), ("/a:b", "/tmp")],
)
def test_the_workplace_suits_sockets_and_the_loader(monkeypatch: pytest.MonkeyPatch, usual: str, used: str) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: usual)
    assert run._workplace() == used
