"""Defaults and ceilings by namespace, from a file that the administrator writes."""

from typing import Any

import pytest

from gpuslice.devices.errors import BadConfiguration
from tests.webhook.reviews import container, mutate, patched, pod, validate
from webhook.namespaces import NamespacePolicies, parse_namespace_policies
from webhook.policy import Policy

RULES = """
version: 1
namespaces:
  team-a:
    defaults:
      nvidia: {memory: 4000, cores: 25}
      huawei: {}
    allowedModels: [A100, H100]
    maxCardsPerContainer: 2
    maxCardsPerPod: 3
    maxMemoryMib: 20000
  agents:
    privileged: true
  "*":
    maxCardsPerPod: 8
"""
POLICY = Policy(namespaces=parse_namespace_policies(RULES.replace("      huawei: {}\n", ""), "rules.yaml"))


def denial(limits: Any, *, namespace: str = "team-a", annotations: Any = None) -> tuple[str, ...]:
    object_ = pod(limits, annotations=annotations)
    lines = mutate(object_, policy=POLICY, namespace=namespace).denial
    assert validate(object_, policy=POLICY, namespace=namespace).denial == lines
    return lines


@pytest.mark.parametrize(
    ("limits", "line"),
    [
        pytest.param(
            {"nvidia.com/gpu": "3", "nvidia.com/gpumem": "1k"}, "allows 2 per container", id="too many in a container"
        ),
        pytest.param(
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "20001"}, "allows 20000 MiB", id="too much of a card"
        ),
        pytest.param(
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "90"},
            "write the memory you need",
            id="a percentage",
        ),
    ],
)
def test_a_ceiling_is_a_denial_that_names_the_rule(limits: Any, line: str) -> None:
    (found,) = denial(limits)
    assert line in found
    assert "namespace policy" in found


def test_the_pod_as_a_whole_has_a_ceiling() -> None:
    limits = {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "1k"}
    object_ = pod(containers=[container("a", limits), container("b", limits)])
    (line,) = mutate(object_, policy=POLICY, namespace="team-a").denial
    assert "4 cards" in line


def test_a_namespace_without_rules_has_those_of_everybody() -> None:
    assert "allows 8 per pod" in denial({"nvidia.com/gpu": "9"}, namespace="other")[0]
    assert denial({"nvidia.com/gpu": "8"}, namespace="other") == ()


def test_allowed_models_are_written_where_the_pod_says_nothing() -> None:
    object_ = pod({"nvidia.com/gpumem": "1k"})
    result = patched(object_, mutate(object_, policy=POLICY, namespace="team-a"))
    assert result["metadata"]["annotations"] == {"nvidia.com/use-gputype": "A100,H100"}


def test_a_wish_within_the_allowed_models_stays() -> None:
    object_ = pod({"nvidia.com/gpumem": "1k"}, annotations={"nvidia.com/use-gputype": "A100-SXM4"})
    result = patched(object_, mutate(object_, policy=POLICY, namespace="team-a"))
    assert result["metadata"]["annotations"] == {"nvidia.com/use-gputype": "A100-SXM4"}


def test_a_wish_outside_the_allowed_models_is_denied() -> None:
    (line,) = denial({"nvidia.com/gpumem": "1k"}, annotations={"nvidia.com/use-gputype": "A10"})
    assert "'A10'" in line
    assert "A100, H100" in line


def test_a_kind_without_types_is_a_model_by_itself() -> None:
    (line,) = denial({"huawei.com/Ascend910B4": "1", "huawei.com/Ascend910B4-memory": "8192"})
    assert "'Ascend910B4'" in line


def test_defaults_fill_what_is_left_open() -> None:
    object_ = pod({"nvidia.com/gpu": "1"})
    result = patched(object_, mutate(object_, policy=POLICY, namespace="team-a"))
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000", "nvidia.com/gpucores": "25"}
    assert result["spec"]["containers"][0]["resources"]["limits"] == limits


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        pytest.param({"nvidia.com/gpumem": "1k"}, "nvidia.com/gpumem", id="memory given"),
        pytest.param({"nvidia.com/gpucores": "5", "nvidia.com/gpumem": "1"}, "nvidia.com/gpucores", id="compute given"),
    ],
)
def test_defaults_never_replace_what_is_given(limits: Any, kept: str) -> None:
    object_ = pod(limits)
    result = patched(object_, mutate(object_, policy=POLICY, namespace="team-a"))
    assert result["spec"]["containers"][0]["resources"]["limits"][kept] == limits[kept]


def test_node_agents_may_be_privileged_in_their_namespace() -> None:
    object_ = pod(
        containers=[container(limits={"nvidia.com/gpu": "1"}, securityContext={"privileged": True})], hostPID=True
    )
    assert mutate(object_, policy=POLICY, namespace="agents").allowed
    assert not mutate(object_, policy=POLICY, namespace="other").allowed


@pytest.mark.parametrize(
    ("text", "place"),
    [
        pytest.param("namespaces: [", "YAML", id="not YAML"),
        pytest.param("namespaces: {a: {maxCards: 1}}", r"\$\.namespaces\[\.\.\.\]", id="unknown key"),
        pytest.param("namespaces: {a: {maxCardsPerPod: many}}", "maxCardsPerPod", id="not a number"),
        pytest.param("namespaces: {a: {maxCardsPerPod: -1}}", "maxCardsPerPod", id="negative"),
        pytest.param("- a", r"\$", id="a list"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(text: str, place: str) -> None:
    with pytest.raises(BadConfiguration, match=place):
        parse_namespace_policies(text, "rules.yaml")


def test_no_file_is_no_rule() -> None:
    assert NamespacePolicies().of("any").max_cards_per_pod is None
