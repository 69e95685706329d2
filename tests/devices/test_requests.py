"""What a pod asks for, and everything wrong with it at once."""

from typing import Any

import msgspec
import pytest

from gpuslice.devices.demands import CardSelection, ContainerRequest, PodRequest, Role
from gpuslice.devices.families import load_builtin
from gpuslice.devices.pods import Pod
from gpuslice.devices.requests import read_request

FAMILIES = load_builtin()


def container(name: str = "main", limits: Any = None, requests: Any = None, **more: Any) -> dict[str, Any]:
    resources = {"limits": limits} | ({"requests": requests} if requests is not None else {})
    return {"name": name, "resources": resources, **more}


def pod(*containers: dict[str, Any], annotations: Any = None, init: Any = None) -> Pod:
    wire = {
        "metadata": {"name": "p", "annotations": annotations},
        "spec": {"containers": containers, "initContainers": init},
    }
    return msgspec.convert(wire, Pod)


def read(limits: dict[str, Any], annotations: dict[str, str] | None = None) -> PodRequest | list[str]:
    found = read_request(pod(container(limits=limits), annotations=annotations), FAMILIES)
    return found if isinstance(found, PodRequest) else [str(problem) for problem in found]


@pytest.mark.parametrize(
    ("limits", "request_"),
    [
        pytest.param(
            {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30},
            ContainerRequest(cards=1, memory_mib=3000, core_percent=30),
            id="one slice",
        ),
        pytest.param({"nvidia.com/gpu": 2}, ContainerRequest(cards=2, memory_percent=100), id="cards only: all memory"),
        pytest.param(
            {"nvidia.com/gpumem": 4000}, ContainerRequest(cards=1, memory_mib=4000), id="memory only: one card"
        ),
        pytest.param(
            {"nvidia.com/gpucores": 30},
            ContainerRequest(cards=1, memory_percent=100, core_percent=30),
            id="compute only",
        ),
        pytest.param(
            {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50},
            ContainerRequest(cards=1, memory_percent=50),
            id="percentage",
        ),
        pytest.param(
            {"nvidia.com/gpu": 1, "nvidia.com/gpucores": 100},
            ContainerRequest(cards=1, memory_percent=100, core_percent=100, exclusive=True),
            id="100 percent of compute is the whole card",
        ),
        pytest.param(
            {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 0},
            ContainerRequest(cards=1, memory_percent=100),
            id="0 is not given",
        ),
        pytest.param(
            {"huawei.com/Ascend910C-memory": 16384},
            ContainerRequest(cards=2, memory_mib=16384, family="ascend-910c"),
            id="memory only of a module of two",
        ),
        pytest.param(
            {"nvidia.com/gpu": 1, "nvidia.com/priority": 1},
            ContainerRequest(cards=1, memory_percent=100),
            id="priority",
        ),
    ],
)
def test_a_container_reads_as(limits: dict[str, Any], request_: ContainerRequest) -> None:
    found = read(limits)
    assert isinstance(found, PodRequest), found
    assert found.containers[0].request == request_


BAD_REQUESTS = [
    pytest.param({"nvidia.com/gpu": -1}, "nvidia.com/gpu='-1': is negative", id="negative count"),
    pytest.param({"nvidia.com/gpu": "1.5"}, "nvidia.com/gpu='1.5': is not a whole number", id="half a card"),
    pytest.param({"nvidia.com/gpu": 2147483648}, "is more than 1024", id="overflow"),
    pytest.param({"nvidia.com/gpu": "1e30"}, "is more than 1024", id="overflow by exponent"),
    pytest.param({"nvidia.com/gpu": 0, "nvidia.com/gpumem": 4000}, "ask for at least 1 card", id="memory of no card"),
    pytest.param({"nvidia.com/gpu": 1, "nvidia.com/gpumem": -5}, "gpumem='-5': is negative", id="negative memory"),
    pytest.param({"nvidia.com/gpu": 1, "nvidia.com/gpumem": "4GB"}, "is not a Kubernetes quantity", id="unknown unit"),
    pytest.param({"nvidia.com/gpu": 1, "nvidia.com/gpumem": "4G"}, "more than any card has", id="G is no size"),
    pytest.param({"nvidia.com/gpu": 1, "nvidia.com/gpumem": "1.5"}, "not a whole number of MiB", id="half a MiB"),
    pytest.param({"nvidia.com/gpu": 1, "nvidia.com/gpumem": "1Ki"}, "not a whole number of MiB", id="too small a unit"),
    pytest.param({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 10**12}, "more than any card has", id="memory overflow"),
    pytest.param({"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 101}, "is more than 100", id="101 percent"),
    pytest.param({"nvidia.com/gpu": 1, "nvidia.com/gpucores": 101}, "is more than 100", id="101 percent of compute"),
    pytest.param({"nvidia.com/gpu": 1, "nvidia.com/gpucores": "50m"}, "is not a whole number", id="milli percent"),
    pytest.param(
        {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1, "nvidia.com/gpumem-percentage": 1},
        "memory is given once",
        id="memory and percentage both",
    ),
    pytest.param({"nvidia.com/priority": 1}, "ask for cards too", id="priority of nothing"),
    pytest.param({"nvidia.com/gpu": 1, "nvidia.com/priority": 2}, "is more than 1", id="unknown priority"),
    pytest.param({"nvidia.com/gpu": 1, "amd.com/gpu": 1}, "one kind of device in each container", id="two families"),
    pytest.param({"huawei.com/Ascend910C": 3}, "1 or a multiple of 2", id="half a module"),
    pytest.param(
        {"huawei.com/Ascend910B4": 2, "huawei.com/Ascend910B4-memory": 8192},
        "several are whole",
        id="parts of two NPUs",
    ),
    pytest.param(
        {"huawei.com/Ascend910B4": 1, "huawei.com/Ascend910B4-memory": 40000},
        "write one of 8192, 16384, 32768 MiB",
        id="larger than the chip",
    ),
    pytest.param(
        {"mthreads.com/vgpu": 1, "mthreads.com/sgpu-memory": 3},
        "write one of 1024, 2048, 4096, 8192, 16384, 32768, 49152 MiB",
        id="a size that is not sold",
    ),
    pytest.param(
        {"mthreads.com/vgpu": 1, "mthreads.com/sgpu-core": 17}, "is more than 16", id="more units than a card"
    ),
    pytest.param({"kunlunxin.com/xpu": 3}, "write one of 1, 2, 4, 8", id="three XPUs"),
    pytest.param({"aws.amazon.com/neuroncore": 3}, "multiple of 2", id="one and a half Neuron devices"),
    pytest.param(
        {"aws.amazon.com/neuron": 1, "aws.amazon.com/neuroncore": 1}, "each counts by itself", id="devices and cores"
    ),
    pytest.param({"enflame.com/drs-gcu": 7}, "is more than 6", id="more slices than a card"),
    pytest.param(
        {"gpu.intel.com/i915": 3, "gpu.intel.com/memory.max": "4Gi"}, "share equally", id="a total that does not divide"
    ),
]


@pytest.mark.parametrize(("limits", "line"), BAD_REQUESTS)
def test_a_bad_request_is_one_line_to_act_on(limits: dict[str, Any], line: str) -> None:
    found = read(limits)
    assert isinstance(found, list), found
    assert len(found) == 1, found
    assert line in found[0]
    assert found[0].startswith("container main: ")


def test_all_problems_come_at_once() -> None:
    found = read_request(
        pod(
            container("a", {"nvidia.com/gpu": -1, "nvidia.com/gpucores": 200}),
            container("b", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": "x"}),
            annotations={"hami.io/device-scoring-weights": "slot=1"},
        ),
        FAMILIES,
    )
    assert isinstance(found, tuple)
    assert [(problem.where, problem.field) for problem in found] == [
        ("container a", "nvidia.com/gpu"),
        ("container a", "nvidia.com/gpucores"),
        ("container b", "nvidia.com/gpumem"),
        ("pod", "annotation hami.io/device-scoring-weights"),
    ]


@pytest.mark.parametrize(
    "limits", [{}, {"cpu": 1}, {"nvidia.com/gpu": 0}, {"nvidia.com/gpu": "0", "nvidia.com/gpumem": 0}]
)
def test_no_device_wanted(limits: dict[str, Any]) -> None:
    assert read(limits) == PodRequest(())


def test_requests_count_where_limits_are_missing() -> None:
    found = read_request(pod(container(limits=None, requests={"nvidia.com/gpu": 2})), FAMILIES)
    assert isinstance(found, PodRequest)
    assert found.containers[0].request.cards == 2


def test_requests_must_equal_limits() -> None:
    found = read_request(pod(container(limits={"nvidia.com/gpu": 2}, requests={"nvidia.com/gpu": 1})), FAMILIES)
    assert isinstance(found, tuple)
    assert "make it equal to the limit 2" in str(found[0])


def test_the_same_number_written_in_two_ways_is_equal() -> None:
    both = pod(container(limits={"nvidia.com/gpumem": "3k"}, requests={"nvidia.com/gpumem": "3000"}))
    assert isinstance(read_request(both, FAMILIES), PodRequest)


def test_roles_follow_the_kind_of_container() -> None:
    gpu = {"nvidia.com/gpu": 1}
    found = read_request(
        pod(
            container("app", gpu),
            init=[
                container("fetch", gpu),
                container("proxy", gpu, restartPolicy="Always"),
                container("no", {"cpu": 1}),
            ],
        ),
        FAMILIES,
    )
    assert isinstance(found, PodRequest)
    assert [(demand.name, demand.role) for demand in found.containers] == [
        ("fetch", Role.INIT),
        ("proxy", Role.SIDECAR),
        ("app", Role.APP),
    ]


def test_cards_are_picked_by_annotation() -> None:
    found = read(
        {"nvidia.com/gpu": 1},
        {
            "nvidia.com/use-gpuuuid": " GPU-a, GPU-b,,GPU-a",
            "nvidia.com/nouse-gputype": "T4",
            "nvidia.com/numa-bind": "true",
            "nvidia.com/vgpu-mode": "mig,hami-core",
            "hami.io/gpu-scheduler-policy": "binpack,numa",
        },
    )
    assert isinstance(found, PodRequest)
    assert found.selection == CardSelection(
        use_uuids=("GPU-a", "GPU-b"), refuse_types=("T4",), same_numa=True, modes=("mig", "hami-core")
    )
    assert found.card_policy == "binpack,numa"


def test_a_vendor_has_its_own_annotations() -> None:
    found = read({"amd.com/gpu": 1}, {"amd.com/use-gpu-uuid": "u", "nvidia.com/use-gpuuuid": "ignored"})
    assert isinstance(found, PodRequest)
    assert found.selection.use_uuids == ("u",)


@pytest.mark.parametrize(
    ("annotations", "line"),
    [
        pytest.param({"nvidia.com/numa-bind": "perhaps"}, "write true or false", id="a bool that is none"),
        pytest.param(
            {"hami.io/device-scoring-weights": "slot=1,core=1"}, "slot=a,core=b,memory=c", id="a weight missing"
        ),
        pytest.param({"hami.io/device-scoring-weights": "slot=0,core=0,memory=0"}, "above 0", id="all weights 0"),
        pytest.param(
            {"hami.io/device-scoring-weights": "slot=-1,core=1,memory=1"}, "whole numbers", id="negative weight"
        ),
    ],
)
def test_a_bad_annotation_is_named(annotations: dict[str, str], line: str) -> None:
    found = read({"nvidia.com/gpu": 1}, annotations)
    assert isinstance(found, list)
    assert line in found[0]


def test_a_vendor_annotation_takes_only_its_values() -> None:
    found = read({"metax-tech.com/sgpu": 1}, {"metax-tech.com/sgpu-qos-policy": "best"})
    assert isinstance(found, list)
    assert "write one of best-effort, fixed-share, burst-share" in found[0]


def test_picking_cards_needs_one_family() -> None:
    two = pod(
        container("a", {"nvidia.com/gpu": 1}),
        container("b", {"amd.com/gpu": 1}),
        annotations={"nvidia.com/use-gpuuuid": "GPU-a"},
    )
    found = read_request(two, FAMILIES)
    assert isinstance(found, tuple)
    assert "several kinds of device" in str(found[0])


def test_equal_requests_are_one_class() -> None:
    first, second = read({"nvidia.com/gpu": 1}), read({"nvidia.com/gpu": "1"})
    assert isinstance(first, PodRequest)
    assert isinstance(second, PodRequest)
    assert hash(first) == hash(second)
    assert first == second
