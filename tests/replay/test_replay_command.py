"""The command: any trace of the format, seeds, departures, pictures, and clear words for bad input."""

import gzip
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from gpuslice.devices.errors import BadConfiguration
from simulator.replay.arrivals import shuffled
from simulator.replay.command import main
from simulator.replay.trace import TracePod, read_nodes, read_pods

NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(f"n{n},32000,65536,4,T4\n" for n in range(3))
SPECS = [(4000, 1, 500, ""), (4000, 1, 500, "T4"), (8000, 1, 1000, ""), (2000, 0, 0, ""), (16000, 2, 1000, "T4|P100")]
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n" + "".join(
    f"p{n:02d},{cpu},1024,{cards},{milli},{spec}\n" for n, (cpu, cards, milli, spec) in enumerate(SPECS * 3)
)


def files(folder: Path, *, nodes: str = NODES, pods: str = PODS) -> list[str]:
    (folder / "nodes.csv").write_text(nodes)
    (folder / "pods.csv.gz").write_bytes(gzip.compress(pods.encode()))
    return ["--nodes", str(folder / "nodes.csv"), "--pods", str(folder / "pods.csv.gz")]


def replay(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


@pytest.mark.parametrize("policy", ["balanced", "fgd", "fgd-plus", "best-fit", "binpack", "spread", "mutex"])
def test_one_object_says_it_all(tmp_path: Path, capsys: pytest.CaptureFixture[str], policy: str) -> None:
    found = replay(capsys, [*files(tmp_path), "--policy", policy, "--seeds", "1-2", "--arrived", "130"])
    assert found["policy"] == policy
    assert set(found["seeds"]) == {"1", "2"}
    assert sum(found["arrived_by_size"].values()) > sum(found["refused_by_size"].values())
    assert all(0 <= value <= 100 for seed in found["seeds"].values() for value in seed.values())


def test_the_same_seed_gives_the_same_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*files(tmp_path), "--policy", "balanced", "--seeds", "7"]
    assert replay(capsys, arguments) == replay(capsys, arguments)


def test_a_recorded_order_is_taken_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    order = np.array([4, 9, 14, 2, 7, 12], dtype=np.uint16)
    np.savez(tmp_path / "order.npz", pods_5_order=order, pods_5_noderank=np.array([2, 1, 0], dtype=np.uint16))
    arguments = [*files(tmp_path), "--order", str(tmp_path / "order.npz"), "--seeds", "5", "--policy", "spread"]
    assert replay(capsys, arguments)["arrived_by_size"] == {"1": 3, "2": 3}
    assert main([*arguments[:-3], "6", "--policy", "spread"]) == 1
    assert "pods_6_order" in capsys.readouterr().err


DEFAULT_ORDERS = {
    "same_demands": ([4, 9, 14, 4, 9, 14, 4, 2, 0], 0, ""),
    "other_demands": ([4, 9, 14, 2, 7, 12], 1, "asks for 75 %; leave --order out"),
}


@pytest.mark.parametrize(("order", "code", "said"), DEFAULT_ORDERS.values(), ids=DEFAULT_ORDERS)
def test_the_default_traces_order_serves_traces_of_the_same_demands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], order: list[int], code: int, said: str
) -> None:
    ranks = np.arange(3, dtype=np.uint16)
    np.savez(tmp_path / "order.npz", default_5_order=np.array(order, dtype=np.uint16), default_5_noderank=ranks)
    arguments = [*files(tmp_path), "--order", str(tmp_path / "order.npz"), "--seeds", "5", "--policy", "spread"]
    assert main(arguments) == code
    assert said in capsys.readouterr().err


def test_several_policies_stand_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "curves.svg"
    arguments = [*files(tmp_path), "--policy", "fgd", "--policy", "binpack", "--plot", str(picture)]
    assert [run["policy"] for run in replay(capsys, arguments)["runs"]] == ["fgd", "binpack"]
    lines = ET.fromstring(picture.read_text()).iter("{http://www.w3.org/2000/svg}polyline")
    assert len(list(lines)) == 2
    assert main(arguments) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("policy")


def test_departures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    light = replay(capsys, [*files(tmp_path), "--departures", "0.1"])
    heavy = replay(capsys, [*files(tmp_path), "--departures", "5"])
    assert light["mean"]["refused"] < heavy["mean"]["refused"]
    assert heavy["load"] == 5
    assert heavy["mean"]["allocation"] <= 100


def test_the_mix_can_be_learned_on_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = replay(capsys, [*files(tmp_path), "--mix", "learned", "--arrived", "500"])
    assert found["mean"]


@pytest.mark.parametrize(
    ("changes", "extra", "said"),
    [
        pytest.param({"nodes": "sn,cpu_milli\nn,1\n"}, [], "column missing", id="a column is missing"),
        pytest.param({"nodes": NODES.replace(",4,", ",four,")}, [], "'four' is not a whole number", id="not a number"),
        pytest.param({"pods": PODS.replace(",500,", ",1500,")}, [], "1500 is more than a card", id="more than a card"),
        pytest.param({"nodes": NODES.replace(",4,", ",0,")}, [], "no node has a card", id="no cards"),
        pytest.param({}, ["--policy", "best"], "is not a policy", id="unknown policy"),
        pytest.param({}, ["--seeds", "a-b"], "is not a list of seeds", id="bad seeds"),
        pytest.param({}, ["--order", "/nowhere.npz"], "nowhere.npz", id="no such order"),
    ],
)
def test_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, str], extra: list[str], said: str
) -> None:
    assert main([*files(tmp_path, **changes), *extra]) == 1
    assert said in capsys.readouterr().err


def test_a_folder_is_not_a_trace(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match="cannot be read"):
        read_pods(tmp_path)
    with pytest.raises(BadConfiguration, match="cannot be read"):
        read_nodes(tmp_path / "none.csv")


def test_arrivals_stop_before_the_target() -> None:
    pods = [TracePod(f"p{n}", 0, 0, 1, 300) for n in range(3)]
    assert len(shuffled(pods, 1, 700).order) == 2
    assert len(shuffled(pods, 1, 2000).order) == 6
