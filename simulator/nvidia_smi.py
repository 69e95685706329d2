"""Turn what `nvidia-smi` prints on a real machine into an inventory, so that people can try their machine's shape.

Input: the XML of ``nvidia-smi -q -x`` and, for links and NUMA nodes, the text of ``nvidia-smi topo -m``. What the
XML does not say (MIG instance UUIDs, placements) is filled in by the same rules as for hand-written inventories.
"""

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass

from gpuslice.devices.errors import BadConfiguration
from simulator.card_models import GENERIC, CardModel, card_models, mig_shapes
from simulator.inventory import CardEntry, ForeignProcess, MigEntry, NodeInventory, dump_node, parse_nodes

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_REMEDY = "run nvidia-smi -q -x on the machine and give its whole output"


@dataclass(frozen=True, slots=True)
class Topology:
    """The part of ``topo -m`` that concerns cards."""

    cells: tuple[tuple[str, ...], ...]
    numa: tuple[int | None, ...]
    """NUMA node by card; None where the text does not give one single node."""


def import_node(xml: str, topo: str | None = None, *, name: str, source: str = "nvidia-smi -q -x") -> NodeInventory:
    """Build the inventory of one node.

    Raises:
        BadConfiguration: The text is not nvidia-smi's, or the topology speaks of other cards.
    """
    if "<!ENTITY" in xml:
        raise BadConfiguration(source, "XML", "declares entities", _REMEDY)  # nvidia-smi never does
    try:
        root = ET.fromstring(xml)
    except ET.ParseError as error:
        raise BadConfiguration(source, "XML", str(error), _REMEDY) from error
    gpus = root.findall("gpu")
    if root.tag != "nvidia_smi_log" or not gpus:
        raise BadConfiguration(source, "nvidia_smi_log", "no gpu elements", _REMEDY)
    topology = parse_topology(topo, len(gpus)) if topo is not None else None
    cards = tuple(
        _read_card(gpu, index, topology.numa[index] if topology else None, source) for index, gpu in enumerate(gpus)
    )
    node = NodeInventory(
        name=name,
        driver=_text(root, "driver_version") or "580.65.06",
        cuda=_text(root, "cuda_version") or "13.0",
        cards=cards,
        links=_links(topology, cards),
    )
    return parse_nodes(dump_node(node), source)[0]  # the importer's output obeys the same checks as people's


def import_inventory(xml: str, topo: str | None = None, *, name: str) -> str:
    """Return the inventory YAML of one node; the body of `gpuslice inventory import`."""
    return dump_node(import_node(xml, topo, name=name))


def parse_topology(text: str, cards: int) -> Topology:
    """Read the matrix that ``nvidia-smi topo -m`` prints; columns of network cards are skipped."""
    lines = [_ANSI.sub("", line).split() for line in text.splitlines()]
    header = next((line for line in lines if line[:1] == ["GPU0"]), None)
    if header is None:
        raise BadConfiguration("nvidia-smi topo -m", "header", "no line starts with GPU0", "give the whole output")
    devices = header[: header.index("CPU")] if "CPU" in header else header
    columns = [position for position, device in enumerate(devices) if re.fullmatch(r"GPU\d+", device)]
    body = lines[lines.index(header) + 1 :]
    rows = [line for line in body if line and re.fullmatch(r"GPU\d+", line[0]) and len(line) > len(devices)]
    if len(rows) != cards or len(columns) != cards:
        raise BadConfiguration(
            "nvidia-smi topo -m", "matrix", f"{len(rows)} rows for {cards} cards", "take both texts on one machine"
        )
    cells = tuple(tuple(row[1 + column] for column in columns) for row in rows)
    return Topology(cells, tuple(_numa(row[1 + len(devices) :]) for row in rows))


def _numa(rest: list[str]) -> int | None:
    """Return the NUMA node from the cells behind the matrix: CPU affinity, NUMA affinity, GPU NUMA id."""
    return int(rest[1]) if len(rest) > 1 and rest[1].isdigit() else None


def _links(topology: Topology | None, cards: tuple[CardEntry, ...]) -> str | tuple[tuple[str, ...], ...]:
    """Every pair joined by all lanes of its cards can only be a switch; anything else stays a matrix."""
    if topology is None:
        return "pcie"
    size = len(cards)
    pairs = {topology.cells[a][b] for a in range(size) for b in range(size) if a != b}
    lanes = card_models()[cards[0].model.lower()].nvlinks
    if size > 2 and pairs == {f"NV{lanes}"}:
        return "nvswitch"
    return tuple(
        tuple("X" if row == column else topology.cells[row][column] for column in range(size)) for row in range(size)
    )


def _text(element: ET.Element, path: str) -> str:
    """Return the text at a path; empty where nvidia-smi says N/A or nothing."""
    text = (element.findtext(path) or "").strip()
    return "" if text in {"N/A", "[N/A]", "Unknown Error"} else text


def _mebibytes(element: ET.Element, path: str) -> int:
    match = re.match(r"(\d+) MiB", _text(element, path))
    return int(match[1]) if match else -1


def _find_model(gpu: ET.Element) -> CardModel:
    device_id = _text(gpu, "pci/pci_device_id")
    number = int(device_id, 16) >> 16 if re.fullmatch(r"(0x)?[0-9A-Fa-f]{8}", device_id) else -1
    name = _text(gpu, "product_name")
    known = [model for model in card_models().values() if model.model != GENERIC]
    by_name = next((model for model in known if model.name == name), None)
    by_number = next((model for model in known if model.pci_device == number), None)
    return by_name or by_number or card_models()[GENERIC.lower()]


def _read_card(gpu: ET.Element, index: int, numa: int | None, source: str) -> CardEntry:
    uuid = _text(gpu, "uuid")
    if not uuid:
        raise BadConfiguration(source, f"gpu[{index}].uuid", "is missing", _REMEDY)
    model = _find_model(gpu)
    minor = _text(gpu, "minor_number")
    mig_on = _text(gpu, "mig_mode/current_mig") == "Enabled" and model.mig_family != "-"
    return CardEntry(
        model=model.model,
        uuid=uuid,
        name=_text(gpu, "product_name"),
        serial=_text(gpu, "serial"),
        minor=int(minor) if minor.isdigit() else index,
        bus=_bus(gpu),
        numa=-1 if numa is None else numa,
        memory_mib=_mebibytes(gpu, "fb_memory_usage/total"),
        reserved_mib=_mebibytes(gpu, "fb_memory_usage/reserved"),
        ecc=_text(gpu, "ecc_mode/current_ecc") == "Enabled",
        mig=tuple(_instances(gpu, model)) if mig_on else None,
        processes=() if mig_on else _processes(gpu),
    )


def _bus(gpu: ET.Element) -> str:
    address = (_text(gpu, "pci/pci_bus_id") or gpu.get("id", "")).lower()
    domain, _, rest = address.partition(":")
    return f"{domain[-4:]}:{rest}"


def _instances(gpu: ET.Element, model: CardModel) -> list[MigEntry]:
    """Name the profile of each instance: the one with its multiprocessors and the nearest memory."""
    found: list[MigEntry] = []
    for device in gpu.findall("mig_devices/mig_device"):
        processors = int(_text(device, "device_attributes/shared/multiprocessor_count") or "0")
        memory = _mebibytes(device, "fb_memory_usage/total")
        shapes = mig_shapes(model.mig_family)
        best = min(shapes, key=lambda shape: (abs(shape.sm_count - processors), abs(shape.memory_mib - memory)))
        found.append(MigEntry(profile=best.name))
    return found


def _processes(gpu: ET.Element) -> tuple[ForeignProcess, ...]:
    listed = [
        ForeignProcess(pid=int(_text(process, "pid")), memory_mib=max(_mebibytes(process, "used_memory"), 0))
        for process in gpu.findall("processes/process_info")
        if _text(process, "pid").isdigit()
    ]
    return tuple(listed[:16])
