"""Every family: a request as people write it goes in, a card and HAMi's annotations come out, byte for byte."""

from typing import Any

import msgspec
import pytest

from tests.families.cluster import FAMILIES, node, pod, run
from tests.families.hami_decoder import read_devices

SECONDS = "1700000000"
NANOSECONDS = "1700000000123456789"
COMMON = {
    "hami.io/vgpu-node": "n1",
    "hami.io/vgpu-time": SECONDS,
    "hami.io/bind-phase": "success",
    "hami.io/bind-time": SECONDS,
}


def registered(*cards: dict[str, Any]) -> str:
    """Return HAMi's JSON register."""
    return msgspec.json.encode(list(cards)).decode()


def both(prefix: str, text: str) -> dict[str, str]:
    return {f"{prefix}-devices-to-allocate": text, f"{prefix}-devices-allocated": text}


NVIDIA = node(
    {
        "hami.io/node-nvidia-register": registered(
            {"id": "GPU-a", "count": 10, "devmem": 40960, "devcore": 100, "type": "NVIDIA A100", "health": True}
        )
    }
)
CAMBRICON = node(capacity={"cambricon.com/mlu.smlu.vcore": "200", "cambricon.com/mlu.smlu.vmemory": "192"})
HYGON = node(
    {
        "hami.io/node-dcu-register": (
            "DCU-0,4,16384,100,Z100L,0,true,0,hami-core:DCU-1,4,16384,100,Z100L,1,true,1,hami-core:"
        )
    }
)
AMD = node(
    {
        "hami.io/node-amd-register": registered(
            {
                "id": "8eff74b5-0000-1000-801b-b56457addd1b",
                "count": 10,
                "devmem": 196288,
                "devcore": 304,
                "type": "AMD Instinct MI300X VF",
                "health": True,
                "devicevendor": "amd",
                "custominfo": {"pciBDF": "0000:83:00.0"},
            }
        )
    }
)


def ascend(word: str, memory: int, count: int = 4, cards: int = 2) -> Any:
    wire = [
        {"id": f"NPU-{i}", "index": i, "count": count, "devmem": memory, "devcore": 20, "type": word, "health": True}
        for i in range(cards)
    ]
    return node({f"hami.io/node-register-{word}": registered(*wire)})


ILUVATAR = node(
    {"hami.io/node-MR-V100-register": "GPU-i0,10,32768,100,MR-V100,0,true:GPU-i1,10,32768,100,MR-V100,0,true:"}
)
MTHREADS = node(
    capacity={"mthreads.com/vgpu": "200", "mthreads.com/sgpu-core": "32", "mthreads.com/sgpu-memory": "192"}
)
METAX_GPU = node(capacity={"metax-tech.com/gpu": 2})
METAX_SGPU = node(
    {
        "metax-tech.com/node-gpu-devices": registered(
            {
                "uuid": "GPU-m0",
                "model": "C500",
                "totalDevCount": 16,
                "totalCompute": 100,
                "totalVRam": 65536,
                "healthy": True,
                "linkZone": 1,
            }
        )
    }
)
GCU = node(capacity={"enflame.com/gcu": 2})
DRS = node(
    {
        "enflame.com/gcu-drs-capacity": '{"devices":[{"index":"0","minor":"0","capacity":6}],'
        '"profiles":{"1g.6gb":"0","3g.20gb":"1","6g.40gb":"2"}}'
    }
)
VGCU = node(capacity={"enflame.com/gcu-count": 1, "enflame.com/shared-gcu": 6})
KUNLUN = node(capacity={"kunlunxin.com/xpu": 8})
VXPU = node(
    {
        "hami.io/node-register-xpu": registered(
            {"id": "XPU-0", "count": 4, "devmem": 98304, "devcore": 100, "type": "XPU", "health": True}
        )
    }
)
NEURON = node(capacity={"aws.amazon.com/neuron": 2, "aws.amazon.com/neuroncore": 4})
INTEL = node(
    capacity={
        "gpu.intel.com/i915": 20,
        "gpu.intel.com/millicores": "2k",
        "gpu.intel.com/memory.max": str(2 * 16 * 2**30),
    }
)
VASTAI = node({"hami.io/node-va-register": '[{"id":"7-0-batch-0","count":1,"type":"Vastai","health":true}]'})
BIREN = node({"hami.io/node-biren-register": '[{"id":"BR-0","type":"Biren","health":true,"count":1,"devmem":65024}]'})


@pytest.mark.parametrize(
    ("where", "limits", "pod_annotations", "expected"),
    [
        pytest.param(
            NVIDIA,
            {"nvidia.com/gpu": 1, "nvidia.com/gpumem": "3k", "nvidia.com/gpucores": 30},
            {},
            both("hami.io/vgpu", "GPU-a,NVIDIA,3000,30:;"),
            id="NVIDIA: MiB and percent, as the API server writes 3000",
        ),
        pytest.param(
            NVIDIA,
            {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50},
            {},
            both("hami.io/vgpu", "GPU-a,NVIDIA,20480,0:;"),
            id="NVIDIA: half the card's memory",
        ),
        pytest.param(
            CAMBRICON,
            {"cambricon.com/vmlu": 1, "cambricon.com/mlu.smlu.vmemory": 20, "cambricon.com/mlu.smlu.vcore": 10},
            {},
            both("hami.io/cambricon-mlu", "n1-cambricon-mlu-0,MLU,5120,10:;")
            | {"CAMBRICON_DSMLU_ASSIGNED": "false", "CAMBRICON_DSMLU_PROFILE": "0_10_20"},
            id="Cambricon: blocks of 256 MiB, profile index_cores_blocks",
        ),
        pytest.param(
            CAMBRICON,
            {
                "cambricon.com/vmlu": "1",
                "cambricon.com/mlu370.smlu.vmemory": "20",
                "cambricon.com/mlu370.smlu.vcore": "10",
            },
            {},
            both("hami.io/cambricon-mlu", "n1-cambricon-mlu-0,MLU,5120,10:;")
            | {"CAMBRICON_DSMLU_ASSIGNED": "false", "CAMBRICON_DSMLU_PROFILE": "0_10_20"},
            id="Cambricon: resource names with the model in them",
        ),
        pytest.param(
            HYGON,
            {"hygon.com/dcunum": 1, "hygon.com/dcumem": 2000, "hygon.com/dcucores": 60},
            {},
            both("hami.io/dcu", "DCU-0,DCU,2000,60:;"),
            id="Hygon: text register",
        ),
        pytest.param(
            HYGON,
            {"hygon.com/dcunum": 1},
            {"hygon.com/use-gpuuuid": "DCU-1"},
            both("hami.io/dcu", "DCU-1,DCU,16384,100:;"),
            id="Hygon: compute is 100 when not given, card picked by uuid",
        ),
        pytest.param(
            AMD,
            {"amd.com/gpu": 1, "amd.com/gpumem": 4096, "amd.com/gpucores": 25},
            {},
            both("hami.io/amd", "8eff74b5-0000-1000-801b-b56457addd1b,AMD Instinct MI300X VF,4096,76:;"),
            id="AMD: 25 percent of 304 compute units is 76, TYPE is the product",
        ),
        pytest.param(
            ascend("Ascend910B3", 65536),
            {"huawei.com/Ascend910B3": 1, "huawei.com/Ascend910B3-memory": "2k"},
            {},
            both("hami.io/Ascend910B3", "NPU-0,Ascend910B3,16384,0:;")
            | {"predicate-time": SECONDS, "huawei.com/Ascend910B3": '[{"UUID":"NPU-0","temp":"vir05_1c_16g"}]'},
            id="Ascend: 2000 MiB is rounded up to the smallest template",
        ),
        pytest.param(
            ascend("Ascend910B2", 65536),
            {"huawei.com/Ascend910B2": 1, "huawei.com/Ascend910B2-memory": 16385},
            {},
            both("hami.io/Ascend910B2", "NPU-0,Ascend910B2,32768,0:;")
            | {"predicate-time": SECONDS, "huawei.com/Ascend910B2": '[{"UUID":"NPU-0","temp":"vir12_3c_32g"}]'},
            id="Ascend: one MiB more takes the next template",
        ),
        pytest.param(
            ascend("Ascend310P", 21527, count=7),
            {"huawei.com/Ascend310P": 1, "huawei.com/Ascend310P-memory": 24576},
            {},
            both("hami.io/Ascend310P", "NPU-0,Ascend310P,21527,0:;")
            | {"predicate-time": SECONDS, "huawei.com/Ascend310P": '[{"UUID":"NPU-0"}]'},
            id="Ascend: the nominal size of the card is the whole card",
        ),
        pytest.param(
            ascend("Ascend910B4", 32768),
            {"huawei.com/Ascend910B4": 1, "huawei.com/Ascend910B4-memory": 5000, "huawei.com/Ascend910B4-core": 30},
            {"huawei.com/vnpu-mode": "hami-core"},
            both("hami.io/Ascend910B4", "NPU-0,Ascend910B4,5000,30:;")
            | {"predicate-time": SECONDS, "huawei.com/Ascend910B4": '[{"UUID":"NPU-0","memory":5000,"core":30}]'},
            id="Ascend: hami-core mode takes the size as written",
        ),
        pytest.param(
            ascend("Ascend910C", 65536),
            {"huawei.com/Ascend910C": 1, "huawei.com/Ascend910C-memory": 16384},
            {},
            both("hami.io/Ascend910C", "NPU-0,Ascend910C,16384,0:NPU-1,Ascend910C,16384,0:;")
            | {
                "predicate-time": SECONDS,
                "huawei.com/Ascend910C": (
                    '[{"UUID":"NPU-0","temp":"vir05_1c_16g"},{"UUID":"NPU-1","temp":"vir05_1c_16g"}]'
                ),
            },
            id="Ascend 910C: one is a module of two",
        ),
        pytest.param(
            ILUVATAR,
            {"iluvatar.ai/MR-V100-vgpu": 1, "iluvatar.ai/MR-V100.vCore": 50, "iluvatar.ai/MR-V100.vMem": 64},
            {},
            both("hami.io/MR-V100", "GPU-i0,MR-V100,16384,50:;"),
            id="Iluvatar: blocks of 256 MiB",
        ),
        pytest.param(
            ILUVATAR,
            {"iluvatar.ai/MR-V100-vgpu": 2},
            {},
            both("hami.io/MR-V100", "GPU-i0,MR-V100,32768,100:GPU-i1,MR-V100,32768,100:;"),
            id="Iluvatar: several cards come with all their compute",
        ),
        pytest.param(
            MTHREADS,
            {"mthreads.com/vgpu": 1, "mthreads.com/sgpu-memory": 32, "mthreads.com/sgpu-core": 8},
            {},
            {
                "hami.io/mthreads-vgpu-devices-allocated": "n1-mthreads-0,Mthreads,16384,8:;",
                "mthreads.com/gpu-index": "0",
                "mthreads.com/predicate-node": "n1",
                "mthreads.com/predicate-time": NANOSECONDS,
            },
            id="Moore Threads: blocks of 512 MiB, 16 compute units",
        ),
        pytest.param(
            MTHREADS,
            {"mthreads.com/vgpu": 2},
            {},
            {
                "hami.io/mthreads-vgpu-devices-allocated": (
                    "n1-mthreads-0,Mthreads,49152,16:n1-mthreads-1,Mthreads,49152,16:;"
                ),
                "mthreads.com/gpu-index": "0,1",
                "mthreads.com/predicate-node": "n1",
                "mthreads.com/predicate-time": NANOSECONDS,
                "mthreads.com/request-gpu-num": "2",
            },
            id="Moore Threads: two cards are whole",
        ),
        pytest.param(
            METAX_GPU,
            {"metax-tech.com/gpu": 1},
            {},
            both("hami.io/metax-gpu", "n1-metax-0,Metax-GPU,65536,100:;"),
            id="MetaX GPU: whole, 64 GiB",
        ),
        pytest.param(
            METAX_SGPU,
            {"metax-tech.com/sgpu": 1, "metax-tech.com/vcore": 60, "metax-tech.com/vmemory": 4},
            {},
            both("hami.io/metax-sgpu", "GPU-m0,Metax-SGPU,4096,60:;")
            | {
                "metax-tech.com/gpu-devices-allocated": '[[{"uuid":"GPU-m0","compute":60,"vRam":4096}]]',
                "metax-tech.com/predicate-time": NANOSECONDS,
            },
            id="MetaX sGPU: a bare number is GiB",
        ),
        pytest.param(
            METAX_SGPU,
            {"metax-tech.com/sgpu": 1, "metax-tech.com/vcore": 60, "metax-tech.com/vmemory": "2Gi"},
            {},
            both("hami.io/metax-sgpu", "GPU-m0,Metax-SGPU,2048,60:;")
            | {
                "metax-tech.com/gpu-devices-allocated": '[[{"uuid":"GPU-m0","compute":60,"vRam":2048}]]',
                "metax-tech.com/predicate-time": NANOSECONDS,
            },
            id="MetaX sGPU: 2048Mi, as the API server writes it",
        ),
        pytest.param(
            GCU,
            {"enflame.com/gcu": 2},
            {},
            both("hami.io/enflame-gcu", "n1-GCU-0,GCU,100,100:n1-GCU-1,GCU,100,100:;"),
            id="Enflame GCU: whole",
        ),
        pytest.param(
            DRS,
            {"enflame.com/drs-gcu": 3},
            {},
            {
                "hami.io/enflame-vgpu-devices-allocated": "n1-enflame-drs-0,Enflame,20480,50:;",
                "enflame.com/gcu-assigned": "false",
                "enflame.com/gcu-assigned-time": NANOSECONDS,
                "enflame.com/gcu-assigned-index": "0",
                "enflame.com/gcu-assigned-id": "0",
                "enflame.com/gcu-assigned-minor": "0",
                "enflame.com/gcu-request-size": "3",
                "assigned-containers": '{"c0":{"allocated":false,"request":3,"profileID":"1","profileName":"3g.20gb"}}',
            },
            id="Enflame DRS: 3 slices are the profile 3g.20gb",
        ),
        pytest.param(
            VGCU,
            {"enflame.com/vgcu": 1, "enflame.com/vgcu-percentage": 22},
            {},
            {
                "hami.io/enflame-vgpu-devices-allocated": "n1-enflame-0,Enflame,22,0:;",
                "enflame.com/gcu-assigned": "false",
                "enflame.com/gcu-assigned-time": NANOSECONDS,
                "enflame.com/gcu-assigned-id": "0",
            },
            id="Enflame vGCU: a percentage of the card",
        ),
        pytest.param(
            KUNLUN,
            {"kunlunxin.com/xpu": 4},
            {},
            {
                "hami.io/kunlun-allocated": (
                    "n1-kunlun-0,kunlun,98304,100:n1-kunlun-1,kunlun,98304,100:"
                    "n1-kunlun-2,kunlun,98304,100:n1-kunlun-3,kunlun,98304,100:;"
                ),
                "BAIDU_COM_DEVICE_IDX": "0,1,2,3",
            },
            id="Kunlunxin: whole cards by number",
        ),
        pytest.param(
            VXPU,
            {"kunlunxin.com/vxpu": 1, "kunlunxin.com/vxpu-memory": 20000},
            {},
            both("hami.io/xpu", "XPU-0,XPU,24576,25:;"),
            id="Kunlunxin vXPU: a quarter of memory comes with a quarter of compute",
        ),
        pytest.param(
            VXPU,
            {"kunlunxin.com/vxpu": 1},
            {},
            both("hami.io/xpu", "XPU-0,XPU,98304,100:;"),
            id="Kunlunxin vXPU: no size is the whole card",
        ),
        pytest.param(
            NEURON,
            {"aws.amazon.com/neuroncore": 1},
            {},
            {
                "hami.io/aws-neuron-devices-allocated": "n1-AWSNeuron-0,AWSNeuron,0,1:;",
                "AWS_NEURON_IDS": "0",
                "NEURON_RESOURCE_TYPE": "aws.amazon.com/neuroncore",
                "NEURON_ALLOC_TIME": NANOSECONDS,
                "NEURON_ALLOCATED": "false",
                "aws.amazon.com/predicate-node": "n1",
            },
            id="AWS: one NeuronCore is one bit",
        ),
        pytest.param(
            NEURON,
            {"aws.amazon.com/neuron": 2},
            {},
            {
                "hami.io/aws-neuron-devices-allocated": "n1-AWSNeuron-0,AWSNeuron,0,3:n1-AWSNeuron-1,AWSNeuron,0,3:;",
                "AWS_NEURON_IDS": "0,1",
                "NEURON_ALLOC_TIME": NANOSECONDS,
                "NEURON_ALLOCATED": "false",
                "aws.amazon.com/predicate-node": "n1",
            },
            id="AWS: whole devices by number",
        ),
        pytest.param(
            NEURON,
            {"aws.amazon.com/neuroncore": 4},
            {},
            {
                "hami.io/aws-neuron-devices-allocated": "n1-AWSNeuron-0,AWSNeuron,0,3:n1-AWSNeuron-1,AWSNeuron,0,3:;",
                "AWS_NEURON_IDS": "0,1,2,3",
                "NEURON_RESOURCE_TYPE": "aws.amazon.com/neuroncore",
                "NEURON_ALLOC_TIME": NANOSECONDS,
                "NEURON_ALLOCATED": "false",
                "aws.amazon.com/predicate-node": "n1",
            },
            id="AWS: four NeuronCores are two devices, named by core",
        ),
        pytest.param(
            INTEL,
            {"gpu.intel.com/i915": 2, "gpu.intel.com/millicores": "1k", "gpu.intel.com/memory.max": "8Gi"},
            {},
            {
                "hami.io/intel-devices-allocated": "n1-card0,Intel,4096,500:n1-card1,Intel,4096,500:;",
                "gas-container-cards": "card0,card1",
                "gas-ts": NANOSECONDS,
            },
            id="Intel: totals of the container, cards as GAS names them",
        ),
        pytest.param(
            VASTAI,
            {"vastaitech.com/va": 1},
            {},
            both("hami.io/Vastai", "7-0-batch-0,Vastai,0,100:;"),
            id="Vastai: whole",
        ),
        pytest.param(
            BIREN, {"birentech.com/gpu": 1}, {}, both("hami.io/Biren", "BR-0,Biren,65024,100:;"), id="Biren: whole"
        ),
    ],
)
def test_a_request_becomes_annotations(
    where: Any, limits: dict[str, Any], pod_annotations: dict[str, str], expected: dict[str, str]
) -> None:
    assert run(pod(limits, annotations=pod_annotations), where).annotations == COMMON | expected


def test_every_vendor_has_a_fact() -> None:
    vendors = {"nvidia", "huawei", "cambricon", "hygon", "iluvatar", "metax", "mthreads", "enflame", "kunlunxin", "amd"}
    assert {kind.vendor for kind in FAMILIES} == vendors | {"intel", "aws", "vastai", "biren"}


def test_containers_keep_their_places() -> None:
    """Init containers come first, containers without a card stay visible: HAMi's grammar knows no names."""
    gpu = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}
    placed = run(pod({}, gpu, gpu | {"nvidia.com/gpucores": 20}, init=({"cpu": 1},)), NVIDIA)
    text = placed.annotations["hami.io/vgpu-devices-allocated"]
    assert text == ";;GPU-a,NVIDIA,1000,0:;GPU-a,NVIDIA,1000,20:;"
    assert [[device.memory for device in devices] for devices in read_devices(text)] == [[], [], [1000], [1000]]


def test_two_families_in_one_pod_write_their_own_strings() -> None:
    both_kinds = node(dict(NVIDIA.metadata.annotations) | dict(BIREN.metadata.annotations))
    placed = run(pod({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}, {"birentech.com/gpu": 1}), both_kinds)
    assert placed.annotations["hami.io/vgpu-devices-allocated"] == "GPU-a,NVIDIA,1000,0:;;"
    assert placed.annotations["hami.io/Biren-devices-allocated"] == ";BR-0,Biren,65024,100:;"


def test_intel_keeps_empty_containers_visible() -> None:
    limits = {"gpu.intel.com/i915": 1, "gpu.intel.com/millicores": 100, "gpu.intel.com/memory.max": "1Gi"}
    assert run(pod({}, limits), INTEL).annotations["gas-container-cards"] == "|card0"


@pytest.mark.parametrize(
    ("where", "limits"),
    [
        pytest.param(NVIDIA, {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}, id="nvidia"),
        pytest.param(AMD, {"amd.com/gpu": 1, "amd.com/gpumem": 4096, "amd.com/gpucores": 25}, id="amd"),
        pytest.param(ascend("Ascend910C", 65536), {"huawei.com/Ascend910C": 2}, id="ascend"),
        pytest.param(KUNLUN, {"kunlunxin.com/xpu": 8}, id="kunlun"),
        pytest.param(MTHREADS, {"mthreads.com/vgpu": 2}, id="mthreads"),
    ],
)
def test_an_independent_reader_finds_the_same_cards(where: Any, limits: dict[str, Any]) -> None:
    placed = run(pod(limits), where)
    family = FAMILIES.by_name[placed.request.containers[0].request.family]
    devices = read_devices(placed.annotations[family.pod.allocated])
    assert [[device.uuid for device in held] for held in devices] == [
        [share.card for share in placed.allocation.containers["c0"]]
    ]
    assert {device.memory for device in devices[0]} == {
        share.memory_mib for share in placed.allocation.containers["c0"]
    }
