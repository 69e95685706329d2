"""One verdict for each pod, before anything else sees it."""

import json
from typing import Any

import pytest

from tests.devices.test_requests import BAD_REQUESTS
from tests.webhook.reviews import SCHEDULER, body, container, mutate, patched, pod, validate, wire_patch
from webhook.policy import Policy
from webhook.review import UNTOUCHED, BadReview, Verdict, decode_review, encode_review
from webhook.surprises import POLICY_NAMES

GPU = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k"}


def ops(verdict: Verdict) -> list[tuple[Any, ...]]:
    assert verdict.allowed, verdict.denial
    return [(op["op"], op["path"], op.get("value")) for op in wire_patch(verdict)]


@pytest.mark.parametrize(
    "object_",
    [
        pytest.param(pod({"cpu": "1"}), id="cpu only"),
        pytest.param(pod(), id="no resources at all"),
        pytest.param(pod({"nvidia.com/gpu": "0"}), id="0 cards"),
        pytest.param(
            pod(containers=[container(limits={"cpu": "1"}, securityContext={"privileged": True})], hostPID=True),
            id="privileged, but no card (the other half of WH01)",
        ),
        pytest.param(
            pod(containers=[container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])], schedulerName="mine"),
            id="no card, own scheduler, own environment",
        ),
        pytest.param(pod({"cpu": "1"}, annotations={"team": "a", "predicate-time": "7"}), id="annotations of others"),
        pytest.param(pod({"example.com/gpu": "1"}), id="a device that is none of ours"),
    ],
)
def test_a_pod_without_devices_is_never_touched(object_: Any) -> None:
    assert mutate(object_) is UNTOUCHED
    assert validate(object_) is UNTOUCHED


@pytest.mark.parametrize(("limits", "line"), BAD_REQUESTS)
def test_bad_requests_are_denied_by_both_endpoints(limits: dict[str, Any], line: str) -> None:
    for verdict in (mutate(pod(limits)), validate(pod(limits))):
        assert not verdict.allowed
        assert verdict.patch == ()
        assert any(line in text for text in verdict.denial)


def test_a_gpu_pod_gets_our_scheduler_and_nothing_else() -> None:
    assert ops(mutate(pod(GPU))) == [("replace", "/spec/schedulerName", "gpuslice-scheduler")]


@pytest.mark.parametrize("name", ["", "default-scheduler", "hami-scheduler"])
def test_known_scheduler_names_become_ours(name: str) -> None:
    assert (
        patched(object_ := pod(GPU, schedulerName=name), mutate(object_))["spec"]["schedulerName"]
        == "gpuslice-scheduler"
    )


def test_our_scheduler_name_needs_no_patch() -> None:
    assert mutate(pod(GPU, schedulerName="gpuslice-scheduler")).patch == ()


def test_another_scheduler_is_denied_unless_it_is_known_to_work_with_us() -> None:
    assert "volcano" in mutate(pod(GPU, schedulerName="volcano")).denial[0]
    allowed = mutate(pod(GPU, schedulerName="volcano"), policy=Policy(other_schedulers=frozenset({"volcano"})))
    assert allowed.allowed
    assert allowed.patch == ()


@pytest.mark.parametrize(
    ("limits", "added"),
    [
        pytest.param({"nvidia.com/gpumem": "4k"}, "nvidia.com/gpu", id="memory only (WH03)"),
        pytest.param({"nvidia.com/gpucores": "30"}, "nvidia.com/gpu", id="compute only (WH03)"),
        pytest.param({"cambricon.com/mlu.smlu.vmemory": "20"}, "cambricon.com/vmlu", id="another family"),
    ],
)
def test_a_missing_count_becomes_one(limits: dict[str, Any], added: str) -> None:
    assert patched(object_ := pod(limits), mutate(object_))["spec"]["containers"][0]["resources"][
        "limits"
    ] == limits | {added: "1"}


def test_limits_and_requests_both_get_the_count() -> None:
    memory = {"nvidia.com/gpumem": "4k"}
    object_ = pod(containers=[container() | {"resources": {"limits": memory, "requests": memory}}])
    assert patched(object_, mutate(object_))["spec"]["containers"][0]["resources"] == {
        "limits": memory | {"nvidia.com/gpu": "1"},
        "requests": memory | {"nvidia.com/gpu": "1"},
    }


def test_requests_alone_get_limits_too() -> None:
    object_ = pod(containers=[container() | {"resources": {"requests": {"nvidia.com/gpumem": "4k"}}}])
    resources = patched(object_, mutate(object_))["spec"]["containers"][0]["resources"]
    assert resources["limits"] == {"nvidia.com/gpu": "1"}
    assert resources["requests"]["nvidia.com/gpu"] == "1"


def test_a_module_of_two_is_written_as_two() -> None:
    object_ = pod({"huawei.com/Ascend910C": "1"})
    limits = patched(object_, mutate(object_))["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"huawei.com/Ascend910C": "2"}


def test_steering_environment_is_removed_from_every_container() -> None:
    env = [
        {"name": "A", "value": "1"},
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
        {"name": "CUDA_DEVICE_MEMORY_LIMIT_0", "value": "1g"},
        {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "CUDA_DISABLE_CONTROL", "value": "true"},
        {"name": "LD_PRELOAD", "value": "/usr/local/vgpu/libvgpu.so"},
        {"name": "GPUSLICE_DIR", "value": "/tmp"},
        {"name": "CUDA_VISIBLE_DEVICES", "value": "0"},
    ]
    object_ = pod(
        containers=[container("gpu", GPU, env=env), container("side", env=env)],
        initContainers=[container("init", env=env)],
    )
    spec = patched(object_, mutate(object_))["spec"]
    for each in (*spec["containers"], *spec["initContainers"]):
        assert [variable["name"] for variable in each["env"]] == ["A", "B", "CUDA_VISIBLE_DEVICES"]


def test_another_preloaded_library_stays() -> None:
    object_ = pod(containers=[container(limits=GPU, env=[{"name": "LD_PRELOAD", "value": "/opt/libjemalloc.so"}])])
    assert patched(object_, mutate(object_))["spec"]["containers"][0]["env"] == object_["spec"]["containers"][0]["env"]


def test_our_library_is_taken_out_of_a_list_of_libraries() -> None:
    env = [{"name": "LD_PRELOAD", "value": "/opt/a.so:/usr/local/gpuslice/libvgpu.so /opt/b.so"}]
    object_ = pod(containers=[container(limits=GPU, env=env)])
    result = patched(object_, mutate(object_))
    assert result["spec"]["containers"][0]["env"] == [{"name": "LD_PRELOAD", "value": "/opt/a.so:/opt/b.so"}]
    assert mutate(result).patch == ()


def test_what_another_webhook_puts_back_is_denied() -> None:
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    (line,) = validate(pod(containers=[container(limits=GPU, env=env)], schedulerName="gpuslice-scheduler")).denial
    assert "env NVIDIA_VISIBLE_DEVICES" in line


def test_cards_are_hidden_from_other_containers_when_asked() -> None:
    object_ = pod(containers=[container("gpu", GPU), container("side")])
    policy = Policy(hide_cards=True)
    result = patched(object_, mutate(object_, policy=policy))
    assert result["spec"]["containers"][1]["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]
    assert "env" not in result["spec"]["containers"][0]
    assert validate(result, policy=policy).allowed


@pytest.mark.parametrize("key", ["containers", "initContainers"])
def test_a_privileged_container_anywhere_denies_a_gpu_pod(key: str) -> None:
    """WH01: the verdict comes before any mutation, and names the container."""
    loud = container("loud", securityContext={"privileged": True})
    object_ = pod(containers=[container("gpu", GPU)])
    object_["spec"].setdefault(key, []).append(loud)
    verdict = mutate(object_)
    assert verdict.patch == ()
    assert [line for line in verdict.denial if line.startswith("container loud: privileged=true")]
    answer = json.loads(encode_review("u", verdict))["response"]
    assert answer["allowed"] is False
    assert "patch" not in answer


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        pytest.param({"hostPID": True}, "hostPID=true", id="the node's processes"),
        pytest.param({"volumes": [{"name": "d", "hostPath": {"path": "/dev"}}]}, "hostPath='/dev'", id="all devices"),
        pytest.param(
            {"volumes": [{"name": "d", "hostPath": {"path": "/dev/nvidia0"}}]}, "hostPath='/dev/nvidia0'", id="one card"
        ),
        pytest.param({"volumes": [{"name": "d", "hostPath": {"path": "/"}}]}, "hostPath='/'", id="the whole node"),
        pytest.param(
            {"volumes": [{"name": "k", "hostPath": {"path": "/var/lib/kubelet/device-plugins/"}}]},
            "device-plugins",
            id="the kubelet's sockets",
        ),
        pytest.param({"nodeName": "n1"}, "nodeName='n1'", id="past the scheduler"),
    ],
)
def test_ways_around_a_share_are_denied(spec: dict[str, Any], line: str) -> None:
    verdict = mutate(pod(GPU, **spec))
    assert line in verdict.denial[0]


@pytest.mark.parametrize("path", ["/dev/shm", "/dev/shm/x", "/data", "/devices", "/var/lib/kubelets"], ids=str)
def test_harmless_paths_of_the_node_stay(path: str) -> None:
    assert mutate(pod(GPU, volumes=[{"name": "v", "hostPath": {"path": path}}])).allowed


@pytest.mark.parametrize(
    "path",
    [
        "/etc/ld.so.preload",
        "/usr/local/gpuslice/",
        "/var/run/gpuslice/limits",
        "/var/run//nvidia-container-devices/all",
        "var/run/gpuslice",
    ],
)
def test_mounts_over_the_enforcing_files_are_denied(path: str) -> None:
    mounts = [{"name": "v", "mountPath": path}]
    assert f"mountPath={path!r}" in mutate(pod(containers=[container(limits=GPU, volumeMounts=mounts)])).denial[0]


@pytest.mark.parametrize(
    ("stance", "denied", "warned"), [("deny", True, False), ("warn", False, True), ("allow", False, False)]
)
def test_policy_decides_about_privileges(stance: Any, denied: bool, warned: bool) -> None:
    object_ = pod(containers=[container(limits=GPU, securityContext={"privileged": True})], hostPID=True)
    verdict = mutate(object_, policy=Policy(privileged=stance, host_pid=stance))
    assert bool(verdict.denial) is denied
    assert any("privileged=true" in line for line in verdict.warnings) is warned


def test_strong_capabilities_are_warned_about() -> None:
    context = {"capabilities": {"add": ["SYS_ADMIN", "NET_BIND_SERVICE"]}}
    warnings = mutate(pod(containers=[container(limits=GPU, securityContext=context)])).warnings
    assert [line for line in warnings if "SYS_ADMIN" in line]
    assert not [line for line in warnings if "NET_BIND_SERVICE" in line]


@pytest.mark.parametrize(
    ("limits", "line"),
    [
        pytest.param({"nvidia.com/gpu": "1"}, "it gets all memory of the card", id="no memory given"),
        pytest.param({"nvidia.com/gpu": "2"}, "all memory of each card", id="no memory given, two cards"),
        pytest.param(GPU | {"nvidia.com/gpucores": "100"}, "takes the whole card", id="all compute, little memory"),
        pytest.param(GPU | {"nvidia.com/gpu": "2"}, "counts on each of 2 different cards", id="memory of each card"),
        pytest.param(
            {"huawei.com/Ascend910B4": "1", "huawei.com/Ascend910B4-memory": "5k"},
            "is given as 8192 MiB, the next size",
            id="rounded up",
        ),
    ],
)
def test_what_is_legal_but_surprising_is_warned_about(limits: dict[str, Any], line: str) -> None:
    verdict = mutate(pod(limits))
    assert verdict.allowed
    assert [text for text in verdict.warnings if line in text], verdict.warnings


def test_a_policy_that_nobody_knows_is_warned_about() -> None:
    annotations = {"hami.io/node-scheduler-policy": "binpak", "hami.io/gpu-scheduler-policy": "spread, numa"}
    verdict = mutate(pod(GPU, annotations=annotations))
    assert [line for line in verdict.warnings if "policy" in line and "'binpak'" in line]
    assert not [line for line in verdict.warnings if "'spread'" in line or "'numa'" in line]


def test_the_known_policies_are_those_of_the_scheduler() -> None:
    from gpuslice.placement.policies.registry import NAMES

    assert set(NAMES) <= POLICY_NAMES


@pytest.mark.parametrize(
    ("annotations", "denied"),
    [
        pytest.param({"nvidia.com/use-gpuuuid": "GPU-a"}, True, id="one card named, two wanted"),
        pytest.param({"nvidia.com/use-gpuuuid": "GPU-a,GPU-b"}, False, id="enough named"),
        pytest.param(
            {"nvidia.com/use-gpuuuid": "GPU-a,GPU-b", "nvidia.com/nouse-gpuuuid": "GPU-b"},
            True,
            id="one named and refused",
        ),
        pytest.param({"nvidia.com/nouse-gpuuuid": "GPU-b"}, False, id="only refused"),
    ],
)
def test_more_cards_than_are_named_is_impossible(annotations: dict[str, str], denied: bool) -> None:
    verdict = mutate(pod({"nvidia.com/gpu": "2"}, annotations=annotations))
    assert bool(verdict.denial) is denied


@pytest.mark.parametrize(
    "key",
    [
        "gpuslice.io/allocation",
        "gpuslice.io/anything",
        "hami.io/bind-phase",
        "hami.io/vgpu-node",
        "hami.io/vgpu-devices-to-allocate",
        "hami.io/vgpu-devices-allocated",
        "hami.io/amd-devices-allocated",
        "huawei.com/Ascend910B4",
        "mthreads.com/gpu-index",
        "metax-tech.com/gpu-devices-allocated",
    ],
)
@pytest.mark.parametrize("limits", [{"cpu": "1"}, GPU], ids=["CPU pod", "GPU pod"])
def test_nobody_writes_an_allocation_by_hand(key: str, limits: dict[str, Any]) -> None:
    """WH02, whatever schedulerName says."""
    object_ = pod(limits, annotations={key: "x"}, schedulerName="default-scheduler")
    for verdict in (mutate(object_), validate(object_)):
        assert [line for line in verdict.denial if key in line]
    old, new = pod(limits), pod(limits, annotations={key: "x"})
    for before, after in ((old, new), (new, old), (new, pod(limits, annotations={key: "y"}))):
        assert key in validate(after, old=before, operation="UPDATE").denial[0]
        assert key in validate(after, old=before, operation="UPDATE", sub_resource="status").denial[0]
    assert validate(new, old=new, operation="UPDATE").allowed


def test_the_daemons_write_allocations() -> None:
    new, old = pod(GPU, annotations={"gpuslice.io/allocation": "{}"}), pod(GPU)
    assert validate(new, old=old, operation="UPDATE", user=SCHEDULER).allowed
    assert not validate(new, old=old, operation="UPDATE", user=SCHEDULER.replace("gpuslice-system", "evil")).allowed


def test_a_binding_may_not_smuggle_annotations() -> None:
    """The API server merges a Binding's annotations into the pod."""
    binding = {"metadata": {"name": "p", "annotations": {"gpuslice.io/allocation": "{}"}}, "target": {"name": "n1"}}
    assert not validate(binding, kind="Binding", sub_resource="binding").allowed
    assert validate(binding, kind="Binding", sub_resource="binding", user=SCHEDULER).allowed
    assert validate({"metadata": {"name": "p"}}, kind="Binding", sub_resource="binding").allowed


def test_an_update_is_judged_by_what_it_brings() -> None:
    """A pod admitted under older rules must still lose its finalizer."""
    bad = pod(GPU | {"nvidia.com/gpucores": "500"}, hostPID=True)
    labelled = {**bad, "metadata": bad["metadata"] | {"labels": {"a": "b"}, "annotations": {"c": "d"}}}
    assert validate(labelled, old=bad, operation="UPDATE").allowed
    worse = {**labelled, "metadata": labelled["metadata"] | {"annotations": {"nvidia.com/numa-bind": "perhaps"}}}
    (line,) = validate(worse, old=bad, operation="UPDATE").denial
    assert "numa-bind" in line


def test_a_bound_pod_has_a_node_name() -> None:
    bound = pod(GPU, nodeName="n1", schedulerName="gpuslice-scheduler")
    assert validate(
        bound | {"metadata": bound["metadata"] | {"labels": {"x": "y"}}}, old=bound, operation="UPDATE"
    ).allowed


def test_a_static_pod_stays_visible() -> None:
    """The kubelet runs it whatever we say, and the node's plugin refuses it cards that nobody reserved."""
    mirror = pod(GPU, annotations={"kubernetes.io/config.mirror": "x"}, nodeName="n1")
    assert mutate(mirror, user="system:node:n1") is UNTOUCHED
    assert not mutate(mirror).allowed


def test_scheduling_gates_and_generated_names_pass() -> None:
    gated = pod(GPU, schedulingGates=[{"name": "example.com/wait"}])
    gated["metadata"] = {"generateName": "job-", "namespace": "default"}
    assert ops(mutate(gated)) == [("replace", "/spec/schedulerName", "gpuslice-scheduler")]
    released = pod(GPU, schedulerName="gpuslice-scheduler")
    assert validate(released, old=pod(GPU, schedulingGates=[{"name": "w"}]), operation="UPDATE").allowed


def test_dry_run_gets_the_same_verdict() -> None:
    assert mutate(pod(GPU), dry_run=True) == mutate(pod(GPU))


def test_a_share_is_not_resized_in_place() -> None:
    old, new = pod(GPU), pod(GPU | {"nvidia.com/gpumem": "4k"})
    (line,) = validate(new, old=old, operation="UPDATE", sub_resource="resize").denial
    assert "nvidia.com/gpumem" in line
    assert "in place" in line


def test_cpu_and_memory_of_a_gpu_pod_are_resized() -> None:
    old, new = pod(GPU | {"cpu": "1"}), pod(GPU | {"cpu": "2"})
    assert validate(new, old=old, operation="UPDATE", sub_resource="resize").allowed


def test_a_debug_container_joins_a_gpu_pod_without_its_cards() -> None:
    old = pod(GPU, schedulerName="gpuslice-scheduler", nodeName="n1")
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "A", "value": "1"}]
    new = pod(GPU, schedulerName="gpuslice-scheduler", nodeName="n1", ephemeralContainers=[container("debug", env=env)])
    verdict = mutate(new, old=old, operation="UPDATE", sub_resource="ephemeralcontainers")
    assert ops(verdict) == [("remove", "/spec/ephemeralContainers/0/env/0", None)]


def test_a_privileged_debug_container_is_denied_in_a_gpu_pod_only() -> None:
    loud = [container("debug", securityContext={"privileged": True})]
    sub: Any = {"operation": "UPDATE", "sub_resource": "ephemeralcontainers"}
    assert "container debug" in validate(pod(GPU, ephemeralContainers=loud), old=pod(GPU), **sub).denial[0]
    assert validate(pod({"cpu": "1"}, ephemeralContainers=loud), old=pod({"cpu": "1"}), **sub) is UNTOUCHED


def test_a_vendor_default_is_written() -> None:
    object_ = pod({"metax-tech.com/sgpu": "1"})
    assert patched(object_, mutate(object_))["metadata"]["annotations"] == {
        "metax-tech.com/sgpu-qos-policy": "best-effort"
    }
    online = pod({"metax-tech.com/sgpu": "1"}, annotations={"metax-tech.com/sgpu-app-class": "online"})
    assert patched(online, mutate(online))["metadata"]["annotations"] == online["metadata"]["annotations"]


def test_a_vendor_variable_is_added() -> None:
    object_ = pod({"iluvatar.ai/BI-V150-vgpu": "1"})
    env = patched(object_, mutate(object_))["spec"]["containers"][0]["env"]
    assert env == [{"name": "SOL_CONTINER_NAME", "value": "main"}]


def test_a_runtime_class_is_set_where_none_is_named() -> None:
    policy = Policy(runtime_class="nvidia")
    object_ = pod(GPU)
    assert patched(object_, mutate(object_, policy=policy))["spec"]["runtimeClassName"] == "nvidia"
    named = pod(GPU, runtimeClassName="kata")
    assert patched(named, mutate(named, policy=policy))["spec"]["runtimeClassName"] == "kata"


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        pytest.param(b"", "not an AdmissionReview", id="empty"),
        pytest.param(b"{", "not an AdmissionReview", id="half a document"),
        pytest.param(b'{"apiVersion":"admission.k8s.io/v1beta1","request":{"uid":"u"}}', "v1beta1", id="old version"),
        pytest.param(b'{"apiVersion":"admission.k8s.io/v1"}', "has no request", id="no request"),
    ],
)
def test_a_body_that_is_no_review_is_refused(raw: bytes, problem: str) -> None:
    with pytest.raises(BadReview, match=problem):
        decode_review(raw)


def test_a_pod_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(BadReview, match="Pod in the request is not readable"):
        mutate({"metadata": {"annotations": ["no", "map"]}, "spec": {}})


def test_the_answer_carries_the_uid_and_every_problem() -> None:
    request = decode_review(body(pod(GPU)))
    answer = json.loads(encode_review(request.uid, Verdict(denial=('a "quoted" line', "another"))))
    assert answer["response"] == {
        "uid": request.uid,
        "allowed": False,
        "status": {
            "status": "Failure",
            "code": 403,
            "reason": "Forbidden",
            "message": 'a "quoted" line; another',
            "details": {
                "causes": [
                    {"reason": "FieldValueInvalid", "message": 'a "quoted" line'},
                    {"reason": "FieldValueInvalid", "message": "another"},
                ]
            },
        },
    }


def test_warnings_keep_to_what_the_api_server_passes_on() -> None:
    answer = json.loads(encode_review("u", Verdict(warnings=tuple(f"{i} " + "x" * 400 for i in range(40)))))
    warnings = answer["response"]["warnings"]
    assert max(len(line) for line in warnings) == 256
    assert sum(len(line.encode()) for line in warnings) <= 4096
