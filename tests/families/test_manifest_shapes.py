"""The request shapes of manifests that people have: accepted unchanged by the webhook, placed, and written."""

from typing import Any

import msgspec
import pytest

from gpuslice.devices.pods import Pod
from gpuslice.devices.requests import PodRequest, read_request
from tests.families import test_facts as facts
from tests.families.cluster import node, run
from tests.families.cluster import pod as pod_view
from tests.families.hami_decoder import read_devices
from tests.webhook.reviews import FAMILIES, container, mutate, patched, pod, validate

EIGHT_A100 = node(
    {
        "hami.io/node-nvidia-register": facts.registered(
            *(
                {
                    "id": f"GPU-{i}",
                    "index": i,
                    "count": 10,
                    "devmem": 40960,
                    "devcore": 100,
                    "type": "NVIDIA-NVIDIA A100",
                    "numa": i // 4,
                    "health": True,
                }
                for i in range(8)
            )
        )
    }
)
SHAPES = [
    pytest.param(EIGHT_A100, [{"nvidia.com/gpu": 1, "nvidia.com/gpumem": "3k"}], {}, id="nvidia: default use"),
    pytest.param(EIGHT_A100, [{"nvidia.com/gpu": 2}], {}, id="nvidia: as with the stock plugin"),
    pytest.param(
        EIGHT_A100,
        [{"nvidia.com/gpu": 2, "nvidia.com/gpumem-percentage": 50, "nvidia.com/gpucores": 30}],
        {},
        id="fraction",
    ),
    pytest.param(EIGHT_A100, [{"nvidia.com/gpu": 1, "nvidia.com/gpucores": 100}], {}, id="nvidia: exclusive card"),
    pytest.param(
        EIGHT_A100, [{"nvidia.com/gpu": 2}], {"nvidia.com/use-gputype": "A100,V100"}, id="nvidia: types to use"
    ),
    pytest.param(
        EIGHT_A100, [{"nvidia.com/gpu": 2}], {"nvidia.com/nouse-gputype": "1080,2080"}, id="nvidia: types not to use"
    ),
    pytest.param(
        EIGHT_A100, [{"nvidia.com/gpu": 1}], {"nvidia.com/use-gpuuuid": "GPU-3"}, id="nvidia: one card by uuid"
    ),
    pytest.param(
        EIGHT_A100, [{"nvidia.com/gpu": 1}], {"nvidia.com/nouse-gpuuuid": "GPU-0"}, id="nvidia: not this card"
    ),
    pytest.param(
        EIGHT_A100,
        [{"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000}, {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000}],
        {"hami.io/node-scheduler-policy": "binpack", "hami.io/gpu-scheduler-policy": "spread"},
        id="nvidia: policies, two containers",
    ),
    pytest.param(
        EIGHT_A100, [{"nvidia.com/gpu": 4}], {"nvidia.com/numa-bind": "true"}, id="nvidia: four cards of one NUMA node"
    ),
    pytest.param(EIGHT_A100, [{"nvidia.com/gpu": 1}], {"nvidia.com/vgpu-mode": "hami-core"}, id="nvidia: mode"),
    pytest.param(
        EIGHT_A100,
        [{"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1024, "nvidia.com/gpucores": 50, "nvidia.com/priority": 1}],
        {},
        id="nvidia: everything at once",
    ),
    pytest.param(
        facts.HYGON, [{"hygon.com/dcunum": 1, "hygon.com/dcumem": 2000, "hygon.com/dcucores": 60}], {}, id="hygon"
    ),
    pytest.param(facts.HYGON, [{"hygon.com/dcunum": 1, "hygon.com/dcucores": 100}], {}, id="hygon: exclusive card"),
    pytest.param(
        facts.HYGON, [{"hygon.com/dcunum": 1}], {"hygon.com/use-dcutype": "Z100L"}, id="hygon: a type, by whole words"
    ),
    pytest.param(facts.AMD, [{"amd.com/gpu": 1}], {}, id="amd: whole"),
    pytest.param(facts.AMD, [{"amd.com/gpu": 1, "amd.com/gpumem-percentage": 50}], {}, id="amd: half the memory"),
    pytest.param(facts.AMD, [{"amd.com/gpu": 1}], {"amd.com/use-gputype": "MI300X"}, id="amd: a type"),
    pytest.param(facts.AMD, [{"amd.com/gpu": 1, "amd.com/gpucores": 50}], {}, id="amd: half the compute"),
    pytest.param(
        facts.ascend("Ascend910A", 32768),
        [{"huawei.com/Ascend910A": 1, "huawei.com/Ascend910A-memory": 2000}],
        {},
        id="910A",
    ),
    pytest.param(
        facts.ascend("Ascend910B4-1", 65536), [{"huawei.com/Ascend910B4-1": 2}], {}, id="Ascend 910B4-1: two whole NPUs"
    ),
    pytest.param(
        facts.ascend("Ascend310P", 21527, count=7),
        [{"huawei.com/Ascend310P": 1, "huawei.com/Ascend310P-memory": 1024}],
        {},
        id="Ascend 310P",
    ),
    pytest.param(facts.ascend("Ascend910C", 65536), [{"huawei.com/Ascend910C": 2}], {}, id="Ascend 910C: one module"),
    pytest.param(
        facts.ascend("Ascend910C", 65536),
        [{"huawei.com/Ascend910C": 1, "huawei.com/Ascend910C-memory": 16384}],
        {},
        id="Ascend 910C: a part of each chip of a module",
    ),
    pytest.param(
        facts.ILUVATAR,
        [
            {"iluvatar.ai/MR-V100-vgpu": 1, "iluvatar.ai/MR-V100.vCore": 20, "iluvatar.ai/MR-V100.vMem": 32},
            {"iluvatar.ai/MR-V100-vgpu": 1, "iluvatar.ai/MR-V100.vCore": 20, "iluvatar.ai/MR-V100.vMem": 32},
        ],
        {},
        id="iluvatar: two containers",
    ),
    pytest.param(facts.METAX_GPU, [{"metax-tech.com/gpu": 2}], {}, id="metax: whole cards"),
    pytest.param(
        facts.METAX_SGPU,
        [{"metax-tech.com/sgpu": 1, "metax-tech.com/vcore": 20, "metax-tech.com/vmemory": 4}],
        {"metax-tech.com/sgpu-qos-policy": "fixed-share"},
        id="metax: quality of service",
    ),
    pytest.param(
        facts.METAX_SGPU, [{"metax-tech.com/sgpu": 1}], {"metax-tech.com/sgpu-app-class": "online"}, id="online"
    ),
    pytest.param(
        facts.METAX_SGPU, [{"metax-tech.com/sgpu": 1}], {"metax-tech.com/use-gpuuuid": "GPU-m0"}, id="metax: uuid"
    ),
    pytest.param(facts.MTHREADS, [{"mthreads.com/vgpu": 1}], {}, id="moore threads: exclusive"),
    pytest.param(facts.GCU, [{"enflame.com/gcu": 1}], {}, id="enflame: whole"),
    pytest.param(facts.DRS, [{"enflame.com/gcu-memory": 10, "enflame.com/gcu-core": 20}], {}, id="enflame: by size"),
    pytest.param(facts.VGCU, [{"enflame.com/vgcu": 1}], {}, id="enflame: vgcu"),
    pytest.param(facts.KUNLUN, [{"kunlunxin.com/xpu": 8}], {}, id="kunlun: all cards"),
    pytest.param(facts.VXPU, [{"kunlunxin.com/vxpu": 1, "kunlunxin.com/vxpu-memory": 24576}], {}, id="kunlun: quarter"),
    pytest.param(
        facts.NEURON,
        [{"aws.amazon.com/neuroncore": 1}, {"aws.amazon.com/neuroncore": 1}],
        {},
        id="neuron: two containers",
    ),
    pytest.param(facts.NEURON, [{"aws.amazon.com/neuron": 1}], {}, id="neuron: a device"),
    pytest.param(facts.VASTAI, [{"vastaitech.com/va": 1}], {}, id="vastai"),
    pytest.param(facts.BIREN, [{"birentech.com/gpu": 1}], {}, id="biren"),
    pytest.param(facts.INTEL, [{"gpu.intel.com/i915": 1}], {}, id="intel"),
]


@pytest.mark.parametrize(("where", "limits", "annotations"), SHAPES)
def test_a_manifest_is_accepted_unchanged_and_placed(
    where: Any, limits: list[Any], annotations: dict[str, str]
) -> None:
    asked = [container(f"c{i}", {key: str(value) for key, value in each.items()}) for i, each in enumerate(limits)]
    object_ = pod(containers=asked, annotations=annotations or None)
    verdict = mutate(object_)
    assert verdict.allowed, verdict.denial
    admitted = patched(object_, verdict)
    assert validate(admitted).allowed
    read = read_request(msgspec.convert(admitted, Pod), FAMILIES)
    assert isinstance(read, PodRequest)

    placed = run(pod_view(*limits, annotations=annotations), where)
    assert read.containers == placed.request.containers, "what the scheduler reads is what the user wrote"
    family = FAMILIES.by_name[placed.request.containers[0].request.family]
    written = read_devices(placed.annotations[family.pod.allocated])
    assert [[device.uuid for device in devices] for devices in written] == [
        [share.card for share in placed.allocation.containers[f"c{i}"]] for i in range(len(limits))
    ]


def test_two_neuron_cores_of_one_device_are_different_bits() -> None:
    placed = run(pod_view({"aws.amazon.com/neuroncore": 1}, {"aws.amazon.com/neuroncore": 1}), facts.NEURON)
    devices = [
        device for held in read_devices(placed.annotations["hami.io/aws-neuron-devices-allocated"]) for device in held
    ]
    cores = {(device.uuid, device.cores) for device in devices}
    assert len(cores) == 2
    assert len(set(placed.annotations["AWS_NEURON_IDS"].split(","))) == 2
