"""The real Helm on the chart (built with the control plane, so these belong to the cluster tier)."""

import base64
from typing import Any

import pytest
from cryptography import x509

from tests.charts.rendering import render, snapshot, variants
from tests.cluster.build import ensure
from tests.cluster.harness.chart import Helm
from tests.cluster.harness.process import ClusterError

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(ensure(("helm",)), tmp_path_factory.mktemp("helm"))


def kube_scheduler_image(helm: Helm, values: dict[str, Any], kube_version: str) -> str:
    found = helm.template(values, f"--kube-version={kube_version}")
    deployment = next(
        item for item in found if item["kind"] == "Deployment" and "scheduler" in item["metadata"]["name"]
    )
    image: str = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    return image


@pytest.mark.parametrize("name", variants())
def test_the_snapshots_are_what_helm_renders(helm: Helm, name: str) -> None:
    assert render(helm, variants()[name]) == snapshot(name).read_text(), "run: python -m tests.charts.rendering"


@pytest.mark.parametrize("name", variants())
def test_lint(helm: Helm, name: str) -> None:
    assert "0 chart(s) failed" in helm.lint(variants()[name])


@pytest.mark.parametrize(
    ("kube_version", "tag"),
    [
        ("v1.31.2", "v1.31.2"),
        ("v1.31.2+k3s1", "v1.31.2"),
        ("v1.33.11-eks-56e63d8", "v1.33.11"),
        ("v1.32.3-gke.100", "v1.32.3"),
        ("v1.30.0+rke2r1", "v1.30.0"),
    ],
)
def test_ch01_the_scheduler_image_has_a_tag_that_exists(helm: Helm, kube_version: str, tag: str) -> None:
    assert kube_scheduler_image(helm, {}, kube_version) == f"registry.k8s.io/kube-scheduler:{tag}"


def test_ch01_an_explicit_tag_wins_untouched(helm: Helm) -> None:
    values = {"scheduler": {"kubeScheduler": {"image": {"tag": "v1.29.0-custom+1"}}}}
    assert kube_scheduler_image(helm, values, "v1.31.2+k3s1").endswith(":v1.29.0-custom+1")


@pytest.mark.parametrize(
    ("values", "word"),
    [
        pytest.param({"scheduler": {"replicsa": 1}}, "replicsa", id="a misspelt value is named"),
        pytest.param({"webhook": {"timeoutSeconds": 30}}, "timeoutSeconds", id="a value out of range is named"),
        pytest.param(
            {"webhook": {"tls": {"existingSecret": "mine"}}},
            "webhook.tls.caBundle",
            id="a secret without its authority",
        ),
    ],
)
def test_wrong_values_are_refused_by_name(helm: Helm, values: dict[str, Any], word: str) -> None:
    with pytest.raises(ClusterError, match=word):
        helm.render(values)


def test_the_generated_certificate_fits_the_bundle_and_the_service(helm: Helm) -> None:
    found = helm.template({})
    secret = next(item for item in found if item["kind"] == "Secret")
    bundles = {
        hook["clientConfig"]["caBundle"]
        for item in found
        if item["kind"].endswith("WebhookConfiguration")
        for hook in item["webhooks"]
    }
    assert bundles == {secret["data"]["ca.crt"]}
    certificate = x509.load_pem_x509_certificate(base64.b64decode(secret["data"]["tls.crt"]))
    authority = x509.load_pem_x509_certificate(base64.b64decode(secret["data"]["ca.crt"]))
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "gpuslice-webhook.gpuslice-system.svc" in names.get_values_for_type(x509.DNSName)


@pytest.mark.parametrize("component", ["scheduler", "webhook", "node"])
def test_a_component_can_be_left_out(helm: Helm, component: str) -> None:
    found = helm.template({component: {"enabled": False}})
    kinds = {item["kind"] for item in found if item["metadata"]["name"].startswith(f"gpuslice-{component}")}
    assert kinds == set()
