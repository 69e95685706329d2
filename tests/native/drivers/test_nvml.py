# ruff: noqa: E501  the expressions are programs for another process
"""NVIDIA's own Python binding on the fake NVML: inventory, links, MIG, events, health and failures."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.native.drivers.rig import Node, Program

Start = Callable[..., Program]
PRELUDE = """
import json, os, time, pynvml as n
def until(holds):
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.002)
def code(call, *args):
    try:
        call(*args)
        return 0
    except n.NVMLError as error:
        return error.value
n.nvmlInit()
cards = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
"""


def ask(node: Node, expression: str, setup: str = "", **environment: str) -> Any:
    """Evaluate an expression over pynvml in a process of the node."""
    done = node.run(sys.executable, "-c", f"{PRELUDE}\n{setup}\nprint(json.dumps({expression}))", **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("inventory", "expression", "expected"),
    [
        pytest.param("cards: []", "len(cards)", 0, id="a node without cards"),
        pytest.param("cards: [{model: GB200, count: 72}]\nlinks: nvswitch", "len(cards)", 72, id="72 cards"),
        pytest.param(
            "cards: [{model: T4}, {model: H200-SXM5-141GB}]",
            "[(n.nvmlDeviceGetName(c), n.nvmlDeviceGetMemoryInfo(c).total >> 20) for c in cards]",
            [["Tesla T4", 15360], ["NVIDIA H200", 143771]],
            id="name and memory by the model",
        ),
        pytest.param(
            "cards: [{model: A100-SXM4-80GB, uuid: GPU-12345678-1234-1234-1234-123456789abc, bus: '0001:81:00.0', numa: 1}]",
            "[n.nvmlDeviceGetUUID(cards[0]), n.nvmlDeviceGetPciInfo(cards[0]).busId, n.nvmlDeviceGetNumaNodeId(cards[0])]",
            ["GPU-12345678-1234-1234-1234-123456789abc", "00000001:81:00.0", 1],
            id="what the inventory says of a card",
        ),
        pytest.param(
            "cards: [{model: A100-SXM4-80GB, count: 4}]\nlinks: nvswitch",
            "[n.nvmlDeviceGetNvLinkState(cards[0], l) for l in range(12)] + [n.nvmlDeviceGetNvLinkRemoteDeviceType(cards[0], 0)]",
            [1] * 12 + [2],
            id="behind NVSwitch all links end at a switch",
        ),
        pytest.param(
            "cards: [{model: A100-SXM4-80GB, count: 4}]\nlinks: [[X, NV4, PIX, SYS], [NV4, X, SYS, PXB], [PIX, SYS, X, NV2], [SYS, PXB, NV2, X]]",
            "[[n.nvmlDeviceGetTopologyCommonAncestor(cards[0], c) for c in cards], [code(n.nvmlDeviceGetNvLinkState, cards[0], l) "
            "or n.nvmlDeviceGetNvLinkState(cards[0], l) for l in range(6)], n.nvmlDeviceGetNvLinkRemotePciInfo(cards[0], 3).busId]",
            [[0, 40, 10, 50], [1, 1, 1, 1, 0, 0], "00000000:07:00.0"],
            id="a matrix of links as nvidia-smi topo prints it",
        ),
        pytest.param(
            "cards: [{model: A100-SXM4-40GB, mig: [1g.5gb, 2g.10gb]}]",
            "[[n.nvmlDeviceGetGpuInstanceId(m), n.nvmlDeviceGetMemoryInfo(m).total >> 20, n.nvmlDeviceGetAttributes(m).multiprocessorCount]"
            " for m in [n.nvmlDeviceGetMigDeviceHandleByIndex(cards[0], i) for i in range(2)]]"
            " + [code(n.nvmlDeviceGetMigDeviceHandleByIndex, cards[0], 2), n.nvmlDeviceGetMigMode(cards[0])]",
            [[1, 4864, 14], [2, 9984, 28], 6, [1, 1]],
            id="MIG instances; an empty slot is not found",
        ),
        pytest.param(
            "cards: [{model: T4, memoryMiB: 1000, reservedMiB: 100, processes: [{pid: 77, memoryMiB: 200, smPercent: 30}]}]",
            "[[m.total >> 20, m.reserved >> 20, m.used >> 20, m.free >> 20] for m in [n.nvmlDeviceGetMemoryInfo(cards[0], version=n.nvmlMemory_v2)]]"
            " + [[(p.pid, p.usedGpuMemory >> 20) for p in n.nvmlDeviceGetComputeRunningProcesses(cards[0])], n.nvmlDeviceGetUtilizationRates(cards[0]).gpu]",
            [[1000, 100, 200, 700], [[77, 200]], 30],
            id="a foreign process takes memory and shows work",
        ),
    ],
)
def test_inventory_through_pynvml(tmp_path: Path, inventory: str, expression: str, expected: object) -> None:
    assert ask(Node(tmp_path, inventory), expression) == expected


TWO = "cards: [{model: A100-SXM4-80GB, count: 2}]"


@pytest.mark.parametrize(
    ("line", "expression", "expected"),
    [
        pytest.param("lose 1", "[code(n.nvmlDeviceGetTemperature, c, 0) for c in cards]", [0, 15], id="a lost card"),
        pytest.param(
            "recovery 0 gpu-reset",
            "n.nvmlDeviceGetFieldValues(cards[0], [230])[0].value.uiVal",
            1,
            id="recovery action",
        ),
        pytest.param("ecc 0 double 3", "n.nvmlDeviceGetTotalEccErrors(cards[0], 1, 0)", 3, id="double-bit errors"),
        pytest.param("remap 0 1 2 1 0", "n.nvmlDeviceGetRemappedRows(cards[0])", [1, 2, 1, 0], id="remapped rows"),
        pytest.param("driver unload", "code(n.nvmlDeviceGetCount)", 9, id="the driver goes away"),
        pytest.param("driver mismatch", "code(n.nvmlDeviceGetCount)", 18, id="driver and library differ"),
        pytest.param(
            "fail nvmlDeviceGetName 999 card 1",
            "[code(n.nvmlDeviceGetName, c) for c in cards]",
            [0, 999],
            id="one call of one card fails",
        ),
        pytest.param(
            "fail nvmlDeviceGet* 999 times 1",
            "[code(n.nvmlDeviceGetName, cards[0]) for _ in '12']",
            [999, 0],
            id="by prefix, once",
        ),
        pytest.param("mig 0 on", "n.nvmlDeviceGetMigMode(cards[0])[0]", 1, id="MIG is switched on"),
    ],
)
def test_faults_at_run_time(tmp_path: Path, line: str, expression: str, expected: object) -> None:
    node = Node(tmp_path, TWO)
    setup = f"""
open({str(node.state / "control")!r}, "a").write({line!r} + "\\n")
def obeyed():
    code(n.nvmlSystemGetDriverVersion)  # any call reads the control file; this one takes no fault of the rows
    return os.path.exists({str(node.state / "control.log")!r})
until(obeyed)
"""
    assert ask(node, expression, setup) == expected


def test_events_reach_those_who_registered(tmp_path: Path) -> None:
    node = Node(tmp_path, TWO)
    setup = f"""
wanted = n.nvmlEventSetCreate()
n.nvmlDeviceRegisterEvents(cards[1], n.nvmlEventTypeXidCriticalError, wanted)
open({str(node.state / "control")!r}, "a").write("xid 0 48\\nxid 1 79 2 0\\n")
event = n.nvmlEventSetWait_v2(wanted, 5000)
"""
    expression = "[n.nvmlDeviceGetIndex(event.device), event.eventData, event.gpuInstanceId, code(n.nvmlEventSetWait_v2, wanted, 10)]"
    timeout = 10
    assert ask(node, expression, setup) == [1, 79, 2, timeout]


def test_a_line_that_makes_no_sense_is_reported(tmp_path: Path) -> None:
    node = Node(tmp_path, TWO)
    ask(node, "len(cards)")
    for line in ("xid 0 31", "xid 9 31", "explode", "mig 0 create 1g.10gb"):
        node.control(line)
    ask(node, "code(n.nvmlDeviceGetCount)")
    verdicts = [line.split(":")[0] for line in (node.state / "control.log").read_text().splitlines()]
    assert verdicts == ["ok 1", "bad 2", "bad 3", "bad 4"]


def test_struct_versions_are_checked(tmp_path: Path) -> None:
    expression = "code(lambda: n.nvmlDeviceGetMemoryInfo(cards[0], version=n.nvmlMemory_v2 + 1))"
    version_mismatch = 25
    assert ask(Node(tmp_path, TWO), expression) == version_mismatch


def test_processes_and_their_share_of_the_device(tmp_path: Path, programs: Start) -> None:
    node = Node(tmp_path, f"{TWO}\ncontextMiB: 100\nnvml: {{samplePeriodMs: 20}}\n")
    program = programs(node).start(1)
    program.ok(f"alloc {512 * 1024 * 1024}")
    program.ok("launch k_60000ms 1")
    setup = """
def busy():
    if code(n.nvmlDeviceGetProcessUtilization, cards[1], 0):
        return False
    return {s.smUtil for s in n.nvmlDeviceGetProcessUtilization(cards[1], 0)} == {n.nvmlDeviceGetUtilizationRates(cards[1]).gpu} == {100}
until(busy)
"""
    expression = """[[[p.pid, p.usedGpuMemory >> 20] for p in n.nvmlDeviceGetComputeRunningProcesses(c)] for c in cards] + [
        [(s.pid, s.smUtil) for s in n.nvmlDeviceGetProcessUtilization(cards[1], 0)], n.nvmlDeviceGetUtilizationRates(cards[1]).gpu]"""
    pid = program.process.pid
    module_mib = 2
    assert ask(node, expression, setup) == [[], [[pid, 612 + module_mib]], [[pid, 100]], 100]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        pytest.param("all", [0, 1, 2, 3], id="all"),
        pytest.param("none", [], id="none"),
        pytest.param("void", [], id="void"),
        pytest.param("2,0", [0, 2], id="by index, shown in the machine's order"),
        pytest.param("GPU-00000000-0000-0000-0000-000000000003", [3], id="by uuid"),
        pytest.param("GPU-99999999-0000-0000-0000-000000000003", [], id="a card of another node"),
    ],
)
def test_a_container_sees_only_its_cards(tmp_path: Path, visible: str, expected: list[int]) -> None:
    cards = ", ".join(f"{{model: T4, uuid: GPU-00000000-0000-0000-0000-00000000000{i}}}" for i in range(4))
    node = Node(tmp_path, f"cards: [{cards}]")
    devices = node.probe("--list", NVIDIA_VISIBLE_DEVICES=visible)[0]
    seen = [[int(card["uuid"][-1]) for card in devices[library]] for library in ("cuda", "nvml")]
    assert seen == [expected, expected]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        pytest.param("1,0", [1, 0], id="CUDA keeps the order of the list"),
        pytest.param("GPU-00000000-0000-0000-0000-000000000001", [1], id="a uuid"),
        pytest.param("GPU-0000000", [], id="an ambiguous abbreviation"),
        pytest.param("1,7,0", [1], id="the list ends at the first bad entry"),
        pytest.param("", [], id="empty hides all"),
        pytest.param("0,0", [], id="a device named twice hides all"),
    ],
)
def test_cuda_visible_devices(tmp_path: Path, visible: str, expected: list[int]) -> None:
    cards = ", ".join(f"{{model: T4, uuid: GPU-00000000-0000-0000-0000-00000000000{i}}}" for i in range(2))
    devices = Node(tmp_path, f"cards: [{cards}]").probe("--list", CUDA_VISIBLE_DEVICES=visible)[0]
    assert [int(card["uuid"][-1]) for card in devices["cuda"]] == expected


def test_cuda_puts_the_fastest_card_first_unless_told_otherwise(tmp_path: Path) -> None:
    node = Node(tmp_path, "cards: [{model: T4}, {model: H100-SXM5-80GB}]")
    names = [
        [card["name"] for card in node.probe("--list", **order)[0]["cuda"]]
        for order in ({}, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    ]
    assert names == [["NVIDIA H100 80GB HBM3", "Tesla T4"], ["Tesla T4", "NVIDIA H100 80GB HBM3"]]


def test_a_bad_inventory_is_one_clear_line(tmp_path: Path) -> None:
    node = Node(tmp_path, "cards:\n- model: T4\n- model: T5\n")
    done = node.run(sys.executable, "-c", "import pynvml; pynvml.nvmlInit()")
    assert "DriverNotLoaded" in done.stderr
    assert "line 3: model 'T5' is unknown" in done.stderr


def test_mig_instances_come_and_go(tmp_path: Path) -> None:
    """What a node that makes instances on demand does: mode on, an instance at one place, its device, and back."""
    setup = """
activation = n.nvmlDeviceSetMigMode(cards[0], 1)
profile = n.nvmlDeviceGetGpuInstanceProfileInfo(cards[0], n.NVML_GPU_INSTANCE_PROFILE_2_SLICE)
place = n.c_nvmlGpuInstancePlacement_t(4, 2)
instance = n.nvmlDeviceCreateGpuInstanceWithPlacement(cards[0], profile.id, n.byref(place))
made = n.nvmlGpuInstanceGetInfo(instance)
again = code(n.nvmlDeviceCreateGpuInstanceWithPlacement, cards[0], profile.id, n.byref(place))
device = n.nvmlDeviceGetMigDeviceHandleByIndex(cards[0], 0)
memory = n.nvmlDeviceGetMemoryInfo(device).total >> 20
n.nvmlGpuInstanceDestroy(instance)
"""
    expression = (
        "[activation, made.placement.start, again, memory, code(n.nvmlDeviceGetMigDeviceHandleByIndex, cards[0], 0)]"
    )
    insufficient_resources, not_found = 23, 6
    assert ask(Node(tmp_path, TWO), expression, setup) == [0, 4, insufficient_resources, 19968, not_found]
