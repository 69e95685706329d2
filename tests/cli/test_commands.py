"""The command line: exit codes and one clear line when something is wrong."""

from pathlib import Path

import pytest

from cli.main import main
from gpuslice import __version__
from simulator.inventory import cards_of, load_nodes


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        pytest.param(["inventory", "import", "absent.xml"], "absent.xml: file: No such file", id="a missing file"),
        pytest.param(["inventory", "import", "text.xml"], "nvidia-smi -q -x: XML:", id="not the output of nvidia-smi"),
        pytest.param(["demo", "-f", "absent.yaml"], "absent.yaml: file: No such file", id="a missing manifest"),
        pytest.param(["demo", "-f", "job.yaml"], "job.yaml: kind: Job is not Pod", id="a manifest that is no pod"),
        pytest.param(["demo", "--nodes", "text.xml"], "text.xml", id="an inventory that is none"),
        pytest.param(
            ["demo", "--nodes", "node.yaml", "node.yaml"], "node-1 is there twice", id="two nodes of one name"
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_1(
    words: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "text.xml").write_text("hello")
    (tmp_path / "job.yaml").write_text("apiVersion: batch/v1\nkind: Job\nmetadata: {name: j}\n")
    (tmp_path / "node.yaml").write_text("name: node-1\ncards:\n  - {model: T4, count: 1}\n")
    monkeypatch.chdir(tmp_path)
    assert main(words) == 1
    complaints = capsys.readouterr().err.strip().splitlines()
    assert len(complaints) == 1
    assert complaints[0].startswith("gpuslice: ")
    assert complaint in complaints[0]


MACHINE = """<?xml version="1.0" ?>
<nvidia_smi_log>
  <driver_version>535.161.08</driver_version>
  <cuda_version>12.2</cuda_version>
  <gpu id="00000000:3B:00.0">
    <product_name>Tesla T4</product_name>
    <uuid>GPU-6a1b2c3d-0001-0002-0003-000000000004</uuid>
    <minor_number>0</minor_number>
    <pci><pci_bus_id>00000000:3B:00.0</pci_bus_id></pci>
    <fb_memory_usage><total>15360 MiB</total><reserved>442 MiB</reserved></fb_memory_usage>
  </gpu>
</nvidia_smi_log>
"""


def test_an_inventory_becomes_a_file(tmp_path: Path) -> None:
    xml, target = tmp_path / "machine.xml", tmp_path / "machine.yaml"
    xml.write_text(MACHINE)
    assert main(["inventory", "import", str(xml), "--name", "gpu-7", "--output", str(target)]) == 0
    [node] = load_nodes(target)
    assert node.name == "gpu-7"
    assert [card.uuid for card in cards_of(node)] == ["GPU-6a1b2c3d-0001-0002-0003-000000000004"]


def test_a_family_file_with_mistakes_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text("version: 1\nvendor: mine\n")
    assert main(["devices", "lint", str(tmp_path / "mine.yaml")]) == 1
    assert "mine.yaml" in capsys.readouterr().out


def test_lint_without_a_file_is_wrong_usage_and_no_success() -> None:
    with pytest.raises(SystemExit) as caught:
        main(["devices", "lint"])
    assert caught.value.code not in (0, None)
