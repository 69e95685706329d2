"""Several cards of one pod are a good set, by what is known of the vendor's machines."""

from typing import Any

import pytest

from gpuslice.devices.annotations import CARDS, encode_cards
from gpuslice.devices.families.register import CORDON, cards_of_node
from gpuslice.devices.inventory import Card, Link, NodeCards
from gpuslice.devices.pods import Node
from tests.families.cluster import FAMILIES, node, pod, run
from tests.families.test_facts import registered


def chosen(limits: dict[str, Any], where: Node) -> list[str]:
    return [share.card for share in run(pod(limits), where).allocation.containers["c0"]]


def npus(word: str, networks: list[int], cordoned: str = "") -> Node:
    cards = [
        {"id": f"NPU-{i}", "index": i, "count": 1, "devmem": 65536, "devcore": 20, "type": word, "health": True}
        | {"custominfo": {"NetworkID": network}}
        for i, network in enumerate(networks)
    ]
    return node({f"hami.io/node-register-{word}": registered(*cards), CORDON: cordoned})


def test_a_910c_pod_gets_both_chips_of_a_module() -> None:
    """NPU-0 is out of service: its twin NPU-1 is no half of another module."""
    assert chosen({"huawei.com/Ascend910C": 1}, npus("Ascend910C", [0] * 4, "NPU-0")) == ["NPU-2", "NPU-3"]


def test_ascend_cards_of_one_network_stay_together() -> None:
    where = npus("Ascend910B3", [0, 1, 0, 1])
    assert chosen({"huawei.com/Ascend910B3": 2}, where) in (["NPU-0", "NPU-2"], ["NPU-1", "NPU-3"])


@pytest.mark.parametrize(
    ("count", "cordoned", "numbers"),
    [
        pytest.param(4, 1, "4567", id="four come from one group"),
        pytest.param(2, 0, "0123 4567", id="two come from one group"),
        pytest.param(8, None, "01234567", id="eight are all"),
    ],
)
def test_kunlun_sets_keep_to_their_groups(count: int, cordoned: int | None, numbers: str) -> None:
    where = node({CORDON: "" if cordoned is None else f"n1-kunlun-{cordoned}"}, capacity={"kunlunxin.com/xpu": 8})
    found = {uuid[-1] for uuid in chosen({"kunlunxin.com/xpu": count}, where)}
    assert len(found) == count
    assert any(found <= set(group) for group in numbers.split())


def test_neuron_devices_are_an_aligned_block() -> None:
    where = node({CORDON: "n1-AWSNeuron-1"}, capacity={"aws.amazon.com/neuron": 4, "aws.amazon.com/neuroncore": 8})
    assert chosen({"aws.amazon.com/neuron": 2}, where) == ["n1-AWSNeuron-2", "n1-AWSNeuron-3"]


def test_vastai_dies_of_one_card_stay_together() -> None:
    dies = [
        {"id": f"VA-{i}", "index": i, "count": 1, "type": "Vastai", "health": True, "custominfo": {"AIC": card}}
        for i, card in enumerate("xyxy")
    ]
    found = chosen({"vastaitech.com/va": 2}, node({"hami.io/node-va-register": registered(*dies)}))
    assert found in (["VA-0", "VA-2"], ["VA-1", "VA-3"])


def test_metax_cards_of_one_link_zone_stay_together() -> None:
    cards = [
        {
            "uuid": f"M-{i}",
            "totalDevCount": 4,
            "totalCompute": 100,
            "totalVRam": 65536,
            "healthy": True,
            "linkZone": zone,
        }
        for i, zone in enumerate([1, 2, 1, 2])
    ]
    where = node({"metax-tech.com/node-gpu-devices": registered(*cards)})
    assert chosen({"metax-tech.com/sgpu": 2}, where) in (["M-0", "M-2"], ["M-1", "M-3"])


def test_a_wish_of_the_pod_comes_first() -> None:
    request = run(
        pod({"kunlunxin.com/xpu": 2}, annotations={"hami.io/gpu-scheduler-policy": "spread"}),
        node(capacity={"kunlunxin.com/xpu": 8}),
    ).request
    assert request.card_policy == "spread"


def test_measured_links_of_one_vendor_survive_beside_another() -> None:
    own = NodeCards("n1", (Card("GPU-0", memory_mib=1), Card("GPU-1", memory_mib=1)), links=((0, 600), (600, 0)))
    found = cards_of_node(node({CARDS: encode_cards(own)}, {"kunlunxin.com/xpu": 2}), FAMILIES)
    assert found is not None
    assert found.links == (
        (0, 600, 0, 0),
        (600, 0, 0, 0),
        (0, 0, 0, Link.SINGLE_SWITCH),
        (0, 0, Link.SINGLE_SWITCH, 0),
    )


def test_nothing_is_invented_where_nothing_is_known() -> None:
    text = '[{"id":"A","count":1,"devmem":1,"health":true},{"id":"B","count":1,"devmem":1,"health":true}]'
    found = cards_of_node(node({"hami.io/node-nvidia-register": text}), FAMILIES)
    assert found is not None
    assert found.links == ()
