"""The inventory of a fake node: which cards it has and how they behave. Format: docs/reference/inventory.md.

The fake drivers read the same YAML by themselves (simulator/drivers/core/inventory_yaml.c) with the same rules; a
test gives both the same files. A cluster file is a mapping with ``nodes``, a list of such inventories.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from gpuslice.devices.errors import BadConfiguration
from simulator.card_models import CardModel, MigShape, card_models, place_instances

MAX_CARDS = 72
MAX_FOREIGN_PROCESSES = 16
LINK_WORDS = ("nvswitch", "nvlink-pairs", "pcie")
_LINK_CELL = re.compile(r"X|NV([1-9]|1[0-8])|PIX|PXB|PHB|NODE|SYS")
_BUS = re.compile(r"([0-9a-fA-F]{1,8}):([0-9a-fA-F]{1,2}):([01]?[0-9a-fA-F])\.0")
_DEFAULT_NODE = "node"


class ForeignProcess(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A process that exists only in NVML's lists: its memory is taken, its work shows as utilisation."""

    pid: int
    memory_mib: int = msgspec.field(default=0, name="memoryMiB")
    sm_percent: int = msgspec.field(default=0, name="smPercent")


class MigEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One GPU instance."""

    profile: str
    uuid: str = ""


class CardEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One entry under ``cards``: a card, or ``count`` equal ones. Empty text and -1: by the model or the position."""

    model: str
    count: int = 1
    index: int = -1
    uuid: str = ""
    name: str = ""
    serial: str = ""
    minor: int = -1
    bus: str = ""
    numa: int | None = None
    """None: by the position; -1: the machine does not say."""
    memory_mib: int = msgspec.field(default=-1, name="memoryMiB")
    reserved_mib: int = msgspec.field(default=-1, name="reservedMiB")
    sm_count: int = msgspec.field(default=-1, name="smCount")
    ecc: bool | None = None
    mig: tuple[str | MigEntry, ...] | None = None
    processes: tuple[ForeignProcess, ...] = ()


class NvmlBehaviour(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How NVML measures."""

    sample_period_ms: int = msgspec.field(default=167, name="samplePeriodMs")
    lag_ms: int = msgspec.field(default=0, name="lagMs")
    pids: str = "host"
    process_utilization: bool = msgspec.field(default=True, name="processUtilization")


class KernelBehaviour(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How long kernels take whose name does not say."""

    default_microseconds: int = msgspec.field(default=10, name="defaultMicroseconds")
    block_nanoseconds: int = msgspec.field(default=0, name="blockNanoseconds")


class NodeInventory(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One node. The YAML names are the fields in camelCase."""

    name: str = _DEFAULT_NODE
    driver: str = "580.65.06"
    cuda: str = "13.0"
    cards: tuple[CardEntry, ...] | None = None
    links: str | tuple[tuple[str, ...], ...] = ""
    context_mib: int = msgspec.field(default=300, name="contextMiB")
    granularity_kib: int = msgspec.field(default=2048, name="granularityKiB")
    sharing: str = "timeslice"
    quantum_microseconds: int = msgspec.field(default=2000, name="quantumMicroseconds")
    nvml: NvmlBehaviour = NvmlBehaviour()
    kernel: KernelBehaviour = KernelBehaviour()
    labels: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class FakeCard:
    """One card with every default filled in, as the drivers show it."""

    index: int
    uuid: str
    model: CardModel
    name: str
    memory_mib: int
    bus: str
    """Domain in four digits, lower case: the name of the directory in sysfs."""
    numa: int | None
    mig: tuple[tuple[MigShape, int], ...] | None
    """(profile, first memory slice) of each GPU instance; None with MIG off."""


def fingerprint_uuid(prefix: str, text: str) -> str:
    """Return the UUID that a text stands for: two FNV-1a hashes. The same function exists in C (core/inventory.c)."""
    high = _fnv1a(text, 0xCBF29CE484222325)
    low = _fnv1a(text, high ^ 0x9E3779B97F4A7C15)
    digits = f"{high:016x}{low:016x}"
    return f"{prefix}{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _fnv1a(text: str, value: int) -> int:
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def cards_of(node: NodeInventory) -> tuple[FakeCard, ...]:
    """Return the node's cards in index order, with all defaults filled in."""
    entries = [entry for entry in node.cards or () for _ in range(entry.count)]
    return tuple(_expand(node, entry, index, len(entries)) for index, entry in enumerate(entries))


def _expand(node: NodeInventory, entry: CardEntry, index: int, total: int) -> FakeCard:
    model = card_models()[entry.model.lower()]
    by_position = index * 2 // total if total >= 4 else 0
    numa = by_position if entry.numa is None else entry.numa
    match = _BUS.fullmatch(entry.bus or f"0000:{4 + 3 * index:02x}:00.0")
    parts = [int(part, 16) for part in match.groups()] if match else [0, 0, 0]
    placed = place_instances(model.mig_family, _profiles(entry)) if entry.mig is not None else None
    return FakeCard(
        index=index,
        uuid=entry.uuid or fingerprint_uuid("GPU-", f"{node.name}/{index}/{model.model}"),
        model=model,
        name=entry.name or model.name,
        memory_mib=model.memory_mib if entry.memory_mib < 0 else entry.memory_mib,
        bus=f"{parts[0] & 0xFFFF:04x}:{parts[1]:02x}:{parts[2]:02x}.0",
        numa=None if numa < 0 else numa,
        mig=None if placed is None or isinstance(placed, str) else placed,
    )


def _profiles(entry: CardEntry) -> tuple[str, ...]:
    return tuple(item if isinstance(item, str) else item.profile for item in entry.mig or ())


def load_nodes(path: Path) -> tuple[NodeInventory, ...]:
    """Read a node file (one node) or a cluster file (several). Raises BadConfiguration naming file and field."""
    try:
        text = path.read_text()
    except OSError as error:
        raise BadConfiguration(str(path), "file", str(error.strerror), "give the path of an inventory YAML") from error
    except UnicodeDecodeError as error:
        raise BadConfiguration(str(path), "file", "is not UTF-8 text", "give the path of an inventory YAML") from error
    return parse_nodes(text, str(path))


def parse_nodes(text: str, source: str) -> tuple[NodeInventory, ...]:
    """Read the text of a node or cluster file; ``source`` names it in errors."""
    document = _load_yaml(text, source)
    if isinstance(document, dict) and "nodes" in document:
        if set(document) != {"nodes"} or not isinstance(document["nodes"], list) or not document["nodes"]:
            raise BadConfiguration(source, "nodes", "must be the only key, with a list of nodes", "one entry a node")
        nodes = tuple(_read_node(entry, f"{source}: nodes[{i}]") for i, entry in enumerate(document["nodes"]))
        names = [node.name for node in nodes]
        for name in names:
            if names.count(name) > 1:
                raise BadConfiguration(source, "nodes", f"two nodes are named {name!r}", "give each its own name")
        return nodes
    return (_read_node(document, source),)


def dump_node(node: NodeInventory) -> str:
    """Return the YAML of a node, as the drivers read it."""
    return yaml.safe_dump(msgspec.to_builtins(node), sort_keys=False, default_flow_style=None, width=1000)


def write_sysfs(node: NodeInventory, root: Path) -> None:
    """Write ``<root>/<bus>/numa_node`` for each card: stands for /sys/bus/pci/devices on a fake node."""
    for card in cards_of(node):
        folder = root / card.bus
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "numa_node").write_text(f"{-1 if card.numa is None else card.numa}\n")


class _TextLoader(yaml.BaseLoader):
    """Every scalar stays text: `0000:07:00.0` is a bus address, not a number in base sixty."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep)
        if len(mapping) != len(node.value):
            raise yaml.constructor.ConstructorError(None, None, "a key appears twice", node.start_mark)
        return mapping


def _load_yaml(text: str, source: str) -> object:
    try:
        return yaml.load(text, Loader=_TextLoader)
    except yaml.YAMLError as error:
        raise BadConfiguration(source, "YAML", " ".join(str(error).split()), "correct the syntax there") from error


def _read_node(document: object, source: str) -> NodeInventory:
    try:
        node = msgspec.convert(document, NodeInventory, strict=False)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at ")
        raise BadConfiguration(
            source, place.strip("`$.") or "document", problem, "see docs/reference/inventory.md"
        ) from error
    for check in _CHECKS:
        found = check(node)
        if found is not None:
            raise BadConfiguration(source, *found)
    return node


_NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""A DNS name, as Kubernetes asks."""

_Complaint = tuple[str, str, str]
"""Field, problem, remedy."""


def _check_scalars(node: NodeInventory) -> _Complaint | None:
    cuda = re.fullmatch(r"(\d+)\.(\d)", node.cuda)
    if cuda is None or not 10 <= int(cuda[1]) <= 20:
        return "cuda", f"{node.cuda!r} is not MAJOR.MINOR", "write the driver's CUDA version, such as 13.0"
    if len(node.name) > 63 or not _NODE_NAME.fullmatch(node.name):
        return "name", f"{node.name!r} cannot be a node's name", "at most 63 of a-z, 0-9, '-' and '.'; such as node-1"
    if not 0 < len(node.driver) < 40:
        return "driver", "must be a short text", "at most 39 characters"
    if node.sharing not in {"timeslice", "mps"}:
        return "sharing", f"{node.sharing!r} is unknown", "timeslice or mps"
    if node.quantum_microseconds < 1 or node.nvml.sample_period_ms < 1:
        return "quantumMicroseconds", "times must be at least 1", "also nvml.samplePeriodMs"
    negative = min(
        node.context_mib,
        node.granularity_kib,
        node.nvml.lag_ms,
        node.kernel.default_microseconds,
        node.kernel.block_nanoseconds,
    )
    if negative < 0:
        return "contextMiB", "sizes and times cannot be negative", "write 0 for none"
    return None


def _check_cards(node: NodeInventory) -> _Complaint | None:
    if node.cards is None:
        return "cards", "is missing", "write cards: [] for a node without cards"
    if sum(entry.count for entry in node.cards) > MAX_CARDS:
        return "cards", f"more than {MAX_CARDS} cards", "give the rest to another node"
    index = 0
    for position, entry in enumerate(node.cards):
        found = _check_entry(entry, index)
        if found is not None:
            field, problem, remedy = found
            return f"cards[{position}].{field}", problem, remedy
        index += entry.count
    return None


def _check_entry(entry: CardEntry, index: int) -> _Complaint | None:
    model = card_models().get(entry.model.lower())
    if model is None:
        known = ", ".join(model.model for model in card_models().values())
        return "model", f"{entry.model!r} is unknown", f"one of {known}"
    return _check_place(entry, index) or _check_contents(entry, model)


def _check_place(entry: CardEntry, index: int) -> _Complaint | None:
    if entry.count < 0 or (entry.count != 1 and (entry.uuid or entry.bus or entry.index >= 0)):
        return "count", "uuid, bus and index name one card", "leave out count, or give every card its own entry"
    if entry.index >= 0 and entry.index != index:
        return "index", f"{entry.index} is out of order", f"count up from 0 in the order of the file (expected {index})"
    if entry.uuid and not (entry.uuid.startswith("GPU-") and len(entry.uuid) < 48):
        return "uuid", f"{entry.uuid!r} does not start with GPU-", "write it as nvidia-smi -L does"
    if entry.bus and _BUS.fullmatch(entry.bus) is None:
        return "bus", f"{entry.bus!r} is not DOMAIN:BUS:DEVICE.0", "such as 0000:07:00.0"
    return None


def _check_contents(entry: CardEntry, model: CardModel) -> _Complaint | None:
    memory = model.memory_mib if entry.memory_mib < 0 else entry.memory_mib
    if entry.reserved_mib > memory:
        return "reservedMiB", f"more than the card's {memory} MiB", "the driver's own share is part of memoryMiB"
    if len(entry.processes) > MAX_FOREIGN_PROCESSES:
        return "processes", f"more than {MAX_FOREIGN_PROCESSES}", "merge some"
    refused = place_instances(model.mig_family, _profiles(entry))
    if isinstance(refused, str):
        problem = f"{refused!r} is unknown for {model.model} or does not fit beside those before"
        return "mig", problem, "reorder or drop it"
    return None


def _check_distinct(node: NodeInventory) -> _Complaint | None:
    cards = cards_of(node)
    for field, values in (("uuid", [card.uuid for card in cards]), ("bus", [card.bus for card in cards])):
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            return "cards", f"two cards have the same {field} {twice}", "give each its own, or none"
    return None


def _check_links(node: NodeInventory) -> _Complaint | None:
    if isinstance(node.links, str):
        if node.links and node.links not in LINK_WORDS:
            return "links", f"{node.links!r} is unknown", f"{', '.join(LINK_WORDS)} or a matrix of rows"
        return None
    total = len(cards_of(node))
    if len(node.links) != total or any(len(row) != total for row in node.links):
        return "links", f"the matrix must have {total} rows of {total} cells", "one row and column for each card"
    for row, column in _off_diagonal(node.links):
        if _LINK_CELL.fullmatch(node.links[row][column]) is None:
            return "links", f"{node.links[row][column]!r} is no link", "X, NV1 to NV18, PIX, PXB, PHB, NODE or SYS"
    return None


def _off_diagonal(matrix: Sequence[Sequence[str]]) -> list[tuple[int, int]]:
    size = len(matrix)
    return [(row, column) for row in range(size) for column in range(size) if row != column]


_CHECKS: tuple[Callable[[NodeInventory], _Complaint | None], ...] = (
    _check_scalars,
    _check_cards,
    _check_distinct,
    _check_links,
)
