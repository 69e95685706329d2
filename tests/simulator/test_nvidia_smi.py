"""From what nvidia-smi prints to an inventory. The texts are shaped like a DGX A100's, of up to three cards."""

import pytest

from gpuslice.devices.errors import BadConfiguration
from simulator.inventory import cards_of, parse_nodes
from simulator.nvidia_smi import import_inventory, import_node, parse_topology

GPU = """
<gpu id="00000000:{bus}:00.0">
  <product_name>{name}</product_name>
  <mig_mode><current_mig>{mig}</current_mig><pending_mig>{mig}</pending_mig></mig_mode>
  {instances}
  <serial>15612200{bus}</serial><uuid>GPU-{bus}a5b1c2-0000-1111-2222-333344445555</uuid><minor_number>{minor}</minor_number>
  <pci><pci_bus_id>00000000:{bus}:00.0</pci_bus_id><pci_device_id>{device}</pci_device_id></pci>
  <ecc_mode><current_ecc>Enabled</current_ecc></ecc_mode>
  <fb_memory_usage><total>{memory} MiB</total><reserved>634 MiB</reserved><used>1204 MiB</used></fb_memory_usage>
  <processes><process_info><pid>4711</pid><used_memory>1200 MiB</used_memory></process_info></processes>
</gpu>"""
INSTANCES = """<mig_devices>
  <mig_device><index>0</index><gpu_instance_id>2</gpu_instance_id><device_attributes><shared>
    <multiprocessor_count>42</multiprocessor_count></shared></device_attributes>
    <fb_memory_usage><total>40192 MiB</total></fb_memory_usage></mig_device>
  <mig_device><index>1</index><gpu_instance_id>9</gpu_instance_id><device_attributes><shared>
    <multiprocessor_count>14</multiprocessor_count></shared></device_attributes>
    <fb_memory_usage><total>9728 MiB</total></fb_memory_usage></mig_device></mig_devices>"""
TOPO = """
\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV12\tNV12\tPXB\t48-63,176-191\t3\t\tN/A
GPU1\tNV12\t X \t{link}\tSYS\t0-15\t0-1\t\tN/A
GPU2\tNV12\t{link}\t X \tSYS\t16-31\t1\t\tN/A
NIC0\tPXB\tSYS\tSYS\t X

Legend:
  X    = Self
  PXB  = Connection traversing multiple PCIe bridges
"""


def gpu(bus: str, **changes: str) -> str:
    defaults = {
        "name": "NVIDIA A100-SXM4-80GB", "mig": "Disabled", "instances": "", "minor": "0", "device": "0x20B210DE",
        "memory": "81920",
    }  # fmt: skip
    return GPU.format(bus=bus, **(defaults | changes))


def smi(*gpus: str) -> str:
    return (
        '<?xml version="1.0" ?><!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd"><nvidia_smi_log>'
        f"<driver_version>535.129.03</driver_version><cuda_version>12.2</cuda_version>{''.join(gpus)}</nvidia_smi_log>"
    )


def test_cards_keep_their_identity() -> None:
    node = import_node(smi(gpu("07"), gpu("0f", minor="3")), name="dgx")
    cards = cards_of(node)
    assert (node.driver, node.cuda) == ("535.129.03", "12.2")
    assert [(card.uuid[:8], card.model.model, card.bus, card.memory_mib) for card in cards] == [
        ("GPU-07a5", "A100-SXM4-80GB", "0000:07:00.0", 81920),
        ("GPU-0fa5", "A100-SXM4-80GB", "0000:0f:00.0", 81920),
    ]
    assert node.cards is not None
    assert node.cards[0].processes[0].memory_mib == 1200


def test_mig_instances_are_recognised_by_their_size() -> None:
    node = import_node(smi(gpu("07", mig="Enabled", instances=INSTANCES)), name="dgx")
    placed = cards_of(node)[0].mig
    assert placed is not None
    assert [(shape.name, start) for shape, start in placed] == [("3g.40gb", 0), ("1g.10gb", 4)]


def test_an_unknown_card_keeps_name_and_memory() -> None:
    text = import_inventory(smi(gpu("07", name="NVIDIA Future 9000", device="0xFFFF10DE", memory="65536")), name="n")
    [card] = cards_of(parse_nodes(text, "n")[0])
    assert (card.model.model, card.name, card.memory_mib) == ("GENERIC", "NVIDIA Future 9000", 65536)


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        pytest.param("NV12", "nvswitch", id="all lanes to everybody: a switch"),
        pytest.param("SYS", (("X", "NV12", "NV12"), ("NV12", "X", "SYS"), ("NV12", "SYS", "X")), id="else the matrix"),
    ],
)
def test_links_from_the_topology(link: str, expected: object) -> None:
    node = import_node(smi(gpu("07"), gpu("0f"), gpu("47")), TOPO.format(link=link), name="n")
    assert node.links == expected
    assert [card.numa for card in cards_of(node)] == [3, None, 1]


@pytest.mark.parametrize(
    ("xml", "topo", "problem"),
    [
        pytest.param("Sun Nov 29 …", None, "XML", id="not XML"),
        pytest.param("<html></html>", None, "no gpu elements", id="another document"),
        pytest.param('<!DOCTYPE a [<!ENTITY x "y">]><a/>', None, "declares entities", id="entities"),
        pytest.param(smi(gpu("07")), TOPO.format(link="SYS"), "3 rows for 1 cards", id="topology of another machine"),
        pytest.param(smi(gpu("07")), "nothing", "no line starts with GPU0", id="no matrix"),
    ],
)
def test_other_texts_are_refused(xml: str, topo: str | None, problem: str) -> None:
    with pytest.raises(BadConfiguration, match=problem):
        import_node(xml, topo, name="n")


def test_network_cards_are_not_cards() -> None:
    assert len(parse_topology(TOPO.format(link="SYS"), 3).cells[0]) == 3
