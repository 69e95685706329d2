"""The cache of read requests never says anything else than reading would."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from extender.request_reader import RequestReader
from gpuslice.devices.families import load_builtin
from gpuslice.devices.pods import Pod
from gpuslice.devices.requests import read_request

QUANTITY = st.sampled_from(["0", "1", "2", "30", "100", "101", "3000", "3k", "16Gi", "1.5", "-1", "x", 1, 2.5])
RESOURCE = st.sampled_from(
    ["nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores", "cpu"]
)
RESOURCES = st.dictionaries(RESOURCE, QUANTITY, max_size=4)
CONTAINER = st.builds(
    lambda name, limits, policy: {"name": name, "resources": {"limits": limits}, **policy},
    st.sampled_from(["a", "b", "c"]),
    RESOURCES,
    st.sampled_from([{}, {"restartPolicy": "Always"}]),
)
ANNOTATIONS = st.dictionaries(
    st.sampled_from(
        [
            "nvidia.com/use-gputype",
            "nvidia.com/nouse-gpuuuid",
            "nvidia.com/numa-bind",
            "hami.io/node-scheduler-policy",
            "hami.io/gpu-scheduler-policy",
            "hami.io/device-scoring-weights",
            "unrelated",
        ]
    ),
    st.sampled_from(["", "true", "A100", "binpack", "spread,numa", "slot=1,core=1,memory=1", "nonsense"]),
    max_size=4,
)
PODS = st.builds(
    lambda init, app, notes: {
        "metadata": {"annotations": notes},
        "spec": {"initContainers": init, "containers": app},
    },
    st.lists(CONTAINER, max_size=2),
    st.lists(CONTAINER, min_size=1, max_size=2),
    ANNOTATIONS,
)
reader = RequestReader(load_builtin())


@given(pod=PODS)
def test_a_remembered_reading_equals_a_fresh_one(pod: dict[str, Any]) -> None:
    view = msgspec.convert(pod, Pod)
    assert reader.read(view) == read_request(view, load_builtin())


def test_equal_pods_get_the_same_object() -> None:
    pods = [
        msgspec.convert(
            {
                "metadata": {"name": name},
                "spec": {"containers": [{"name": "m", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
            },
            Pod,
        )
        for name in ("a", "b")
    ]
    assert reader.read(pods[0]) is reader.read(pods[1])
