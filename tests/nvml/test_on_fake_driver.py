"""Real pynvml on the fake driver, in processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def tell(tmp_path: Path, story: str, inventory: str) -> Any:
    file = tmp_path / "node.yaml"
    file.write_text(f'name: n1\ndriver: "580.65.06"\ncuda: "13.0"\n{inventory}\n')
    state = tmp_path / "state"
    state.mkdir()
    env = {"GPUSLICE_FAKE_INVENTORY": str(file), "GPUSLICE_FAKE_STATE": str(state), "PYTHONPATH": str(ROOT)}
    child = [sys.executable, str(Path(__file__).with_name("nvml_child.py")), story]
    done = subprocess.run(child, env={**os.environ, **env}, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("inventory", "count", "link"),
    [
        pytest.param("cards:\n- {model: A100-SXM4-80GB, count: 8}\nlinks: nvswitch", 8, 1200, id="8 A100 on NVSwitch"),
        pytest.param("cards:\n- {model: H200-SXM5-141GB, count: 8}\nlinks: nvswitch", 8, 1800, id="8 H200 on NVSwitch"),
        pytest.param("cards:\n- {model: T4, count: 2}", 2, None, id="two T4 without NVLink"),
        pytest.param("cards:\n- {model: GB200, count: 72}\nlinks: nvswitch", 72, 1800, id="a rack of 72 GB200"),
        pytest.param("cards:\n- {model: T4, count: 1}", 1, None, id="a single card has no links"),
    ],
)
def test_inventory(tmp_path: Path, inventory: str, count: int, link: int | None) -> None:
    machine = tell(tmp_path, "inventory", inventory)
    assert len({card["uuid"] for card in machine["cards"]}) == count
    assert machine["driver"] == "580.65.06"
    if link is not None:
        assert {machine["links"][i][j] for i in range(count) for j in range(count) if i != j} == {link}
    else:
        assert all(value < 100 for row in machine["links"] for value in row)


def test_links_are_taken_from_a_reading_of_the_same_cards_in_the_same_places(tmp_path: Path) -> None:
    found = tell(tmp_path, "linked-as", "cards:\n- {model: A100-SXM4-80GB, count: 2}\nlinks: nvswitch")
    assert found == [7, 1200, 1200]


def test_an_xid_is_reported_for_its_card(tmp_path: Path) -> None:
    assert tell(tmp_path, "xid", "cards:\n- {model: A100-SXM4-80GB, count: 4}") == [[1, True, 79]]


def test_one_lost_card_of_four_costs_that_card_only(tmp_path: Path) -> None:
    found = tell(tmp_path, "lost", "cards:\n- {model: A100-SXM4-80GB, count: 4}")
    assert found == {"lost": [False, False, True, False], "readable": 3, "unreadable": [2], "back": [True] * 4}


def test_the_drivers_recommendation_decides_whether_a_card_is_clean(tmp_path: Path) -> None:
    assert tell(tmp_path, "recovery", "cards:\n- {model: H200-SXM5-141GB, count: 1}") == [1, False, 0, True]


def test_mig_instances_are_read_with_their_profiles(tmp_path: Path) -> None:
    enabled, instances = tell(tmp_path, "mig", "cards:\n- {model: A100-SXM4-80GB, count: 1}")
    assert (enabled, instances) == (True, [["1g.10gb", True, True], ["3g.40gb", True, True]])


def test_an_absent_library_says_what_was_tried(tmp_path: Path) -> None:
    found = tell(tmp_path, "absent", "cards:\n- {model: T4, count: 1}")
    assert "below /nonexistent and on the loader's path" in found["unavailable"]


def test_one_process_may_have_a_card_for_itself_and_give_it_back(tmp_path: Path) -> None:
    exclusive_process, default = 3, 0
    assert tell(tmp_path, "compute-mode", "cards:\n- {model: A100-SXM4-80GB, count: 1}") == [exclusive_process, default]


def test_a_process_on_a_mig_instance_is_told_from_those_on_others_of_the_card(tmp_path: Path) -> None:
    assert tell(tmp_path, "mig-processes", "cards:\n- {model: A100-SXM4-80GB, count: 1}") == ["0", [[True, True]]]
