"""The inventory format: what is accepted, what is refused and how, and that the C drivers agree."""

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.devices.errors import BadConfiguration
from simulator.card_models import card_models, mig_shapes
from simulator.inventory import CardEntry, NodeInventory, cards_of, dump_node, load_nodes, parse_nodes, write_sysfs

DRIVERS = Path(__file__).resolve().parents[2] / "simulator" / "drivers"

ACCEPTED = [
    pytest.param("cards: []", id="no cards"),
    pytest.param("cards: [{model: t4}]", id="models in any case"),
    pytest.param("name: a\ncards: [{model: A100-SXM4-80GB, count: 8}]\nlinks: nvswitch", id="eight equal cards"),
    pytest.param("cards: [{model: GB200, count: 72}]", id="a rack"),
    pytest.param("cards:\n- {model: T4, bus: 0000:3b:00.0, numa: 1}\n- {model: L4, numa: -1}", id="mixed cards"),
    pytest.param("cards: [{model: A100-SXM4-40GB, mig: [1g.5gb, 3g.20gb, 2g.10gb]}]", id="MIG by profile"),
    pytest.param("cards: [{model: A30, mig: [{profile: 2g.12gb, uuid: MIG-1}, 2g.12gb]}]", id="MIG with a uuid"),
    pytest.param(
        "cuda: 12.4\ndriver: 550.54.15\ncards: [{model: T4, count: 2}]\nlinks: [[X, PHB], [PHB, X]]", id="matrix"
    ),
    pytest.param("cards: [{model: GENERIC, name: My Card, memoryMiB: 8192}]", id="a card nobody knows"),
]
REFUSED = [
    pytest.param("cards: [{model: T5}]", "cards[0].model", id="unknown model"),
    pytest.param("cards: [{model: T4, colour: red}]", "cards[0]", id="unknown key"),
    pytest.param("kards: []", "document", id="misspelt key"),
    pytest.param("name: n", "cards", id="no cards key"),
    pytest.param("cards: [{model: T4, count: 73}]", "cards", id="too many cards"),
    pytest.param("cards: [{model: T4, count: 2, uuid: GPU-1}]", "cards[0].count", id="one uuid for two cards"),
    pytest.param("cards: [{model: T4, uuid: '1'}]", "cards[0].uuid", id="uuid without its prefix"),
    pytest.param("cards: [{model: T4, uuid: GPU-1}, {model: T4, uuid: GPU-1}]", "cards", id="same uuid twice"),
    pytest.param("cards: [{model: T4, bus: 7}]", "cards[0].bus", id="bus"),
    pytest.param("cards: [{model: T4, index: 1}]", "cards[0].index", id="index out of order"),
    pytest.param("cards: [{model: T4, memoryMiB: lots}]", "cards[0].memoryMiB", id="memory in words"),
    pytest.param("cards: [{model: T4, mig: [1g.5gb]}]", "cards[0].mig", id="MIG on a card without"),
    pytest.param(
        "cards: [{model: A100-SXM4-40GB, mig: [4g.20gb, 4g.20gb]}]", "cards[0].mig", id="MIG that does not fit"
    ),
    pytest.param("cards: [{model: T4, count: 2}]\nlinks: [[X, NV19], [NV19, X]]", "links", id="no such link"),
    pytest.param("cards: [{model: T4, count: 2}]\nlinks: [[X, SYS]]", "links", id="half a matrix"),
    pytest.param("cards: []\nlinks: wires", "links", id="links in words"),
    pytest.param("cards: []\nsharing: fair", "sharing", id="sharing"),
    pytest.param("cards: []\ncuda: thirteen", "cuda", id="cuda version"),
    pytest.param("cards: []\ncards: []", "YAML", id="a key twice"),
    pytest.param("cards: [", "YAML", id="broken YAML"),
]


def driver_view(path: Path, state: Path) -> subprocess.CompletedProcess[str]:
    subprocess.run(["make", "-s", "-C", str(DRIVERS)], check=True, capture_output=True)
    return subprocess.run(
        [DRIVERS / "build" / "gpuprobe", "--list"],
        env={
            "LD_LIBRARY_PATH": str(DRIVERS / "build"),
            "GPUSLICE_FAKE_INVENTORY": str(path),
            "GPUSLICE_FAKE_STATE": str(state),
        },
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("text", ACCEPTED)
def test_the_drivers_show_what_the_loader_reads(tmp_path: Path, text: str) -> None:
    node = tmp_path / "node.yaml"
    node.write_text(text)
    [inventory] = load_nodes(node)
    node.write_text(dump_node(inventory))
    shown = json.loads(driver_view(node, tmp_path / "state").stdout.splitlines()[0])["nvml"]
    expected = [(card.uuid, card.name, card.memory_mib) for card in cards_of(inventory)]
    assert [(card["uuid"], card["name"], card["total_mib"]) for card in shown] == expected
    assert parse_nodes(dump_node(inventory), "again") == (inventory,)


@pytest.mark.parametrize(("text", "field"), REFUSED)
def test_refused_by_loader_and_drivers_alike(tmp_path: Path, text: str, field: str) -> None:
    with pytest.raises(BadConfiguration) as refusal:
        parse_nodes(text, "node.yaml")
    node = tmp_path / "node.yaml"
    node.write_text(text)
    nvml = json.loads(driver_view(node, tmp_path / "state").stdout.splitlines()[0])["nvml_result"]
    driver_not_loaded = 9
    assert (refusal.value.field, nvml) == (field, driver_not_loaded)


@pytest.mark.parametrize("name", ["My Node", "a_b", "-a", "x-", ".", "../up", "a/b", "", "a" * 64])
def test_a_node_is_named_as_kubernetes_allows(name: str) -> None:
    """The drivers do not care, but the demo and the API server would, and later."""
    with pytest.raises(BadConfiguration) as refusal:
        parse_nodes(f"name: '{name}'\ncards: []", "node.yaml")
    assert refusal.value.field == "name"


def test_a_cluster_file_is_a_list_of_nodes() -> None:
    nodes = parse_nodes("nodes: [{name: a, cards: []}, {name: b, cards: [{model: T4}]}]", "cluster.yaml")
    assert [(node.name, len(cards_of(node))) for node in nodes] == [("a", 0), ("b", 1)]


def test_two_nodes_of_a_name_are_refused() -> None:
    with pytest.raises(BadConfiguration, match="two nodes are named 'a'"):
        parse_nodes("nodes: [{name: a, cards: []}, {name: a, cards: []}]", "cluster.yaml")


def test_nodes_of_different_names_have_different_cards() -> None:
    nodes = parse_nodes("nodes: [{name: a, cards: [{model: T4}]}, {name: b, cards: [{model: T4}]}]", "cluster.yaml")
    assert len({card.uuid for node in nodes for card in cards_of(node)}) == 2


def test_sysfs_tells_the_numa_node(tmp_path: Path) -> None:
    [node] = parse_nodes("cards: [{model: T4, bus: '0000:3B:00.0', numa: 1}, {model: T4, numa: -1}]", "n")
    write_sysfs(node, tmp_path)
    assert {p.parent.name: p.read_text() for p in tmp_path.glob("*/numa_node")} == {
        "0000:3b:00.0": "1\n",
        "0000:07:00.0": "-1\n",
    }


@given(
    models=st.lists(st.sampled_from(sorted(card_models())), max_size=12), sharing=st.sampled_from(["timeslice", "mps"])
)
def test_what_is_written_can_be_read(models: list[str], sharing: str) -> None:
    node = NodeInventory(name="n", cards=tuple(CardEntry(model=model) for model in models), sharing=sharing)
    assert parse_nodes(dump_node(node), "n") == (node,)


def test_every_mig_family_has_profiles() -> None:
    families = {model.mig_family for model in card_models().values()} - {"-"}
    assert all(mig_shapes(family) for family in families)
