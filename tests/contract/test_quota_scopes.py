"""Which pods the real API server counts for which quota: the rows that ours are held against in tests/extender."""

import pytest

from tests.contract.client import Client
from tests.contract.conftest import Target
from tests.extender.quota_scope_rows import ABOUT, PODS, QUOTAS

RESOURCE = "requests.nvidia.com/gpu"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
LAST = "no scope"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("target", [pytest.param("real", marks=pytest.mark.cluster)], indirect=True)
def test_the_api_server_counts_the_same_pods(target: Target, api: Client, ns: str) -> None:
    for value, name in enumerate(("high", "low")):
        assert api.post(CLASSES, {"metadata": {"name": name}, "value": 1000 + value}).code in (201, 409)
    for name in sorted(QUOTAS, key=lambda name: name == LAST):
        make_quota(api, ns, name)
    probes = 0
    while LAST not in counted(api, ns):
        # The admission plugin follows the quotas by a watch; when it has the last one it has them all.
        probes += 1
        create(api, ns, f"probe-{probes}", "plain")
        assert probes < 500
    for at, pod in enumerate(PODS):
        before = used(api, ns)
        create(api, ns, f"pod-{at}", pod)
        after = used(api, ns)
        assert {name for name in QUOTAS if after[name] > before[name]} == {q for q in ABOUT if pod in ABOUT[q]}, pod


def object_name(quota: str) -> str:
    return quota.lower().replace(" ", "-")


def make_quota(api: Client, ns: str, name: str) -> None:
    path = f"/api/v1/namespaces/{ns}/resourcequotas"
    spec = {"hard": {RESOURCE: "10000"}, **QUOTAS[name]}
    made = api.post(path, {"metadata": {"name": object_name(name)}, "spec": spec})
    assert made.code == 201, made
    body = {**made.body, "status": {"hard": {RESOURCE: "10000"}, "used": {RESOURCE: "0"}}}
    assert api.put(f"{path}/{object_name(name)}/status", body).code == 200


def create(api: Client, ns: str, name: str, row: str) -> None:
    made = api.post(f"/api/v1/namespaces/{ns}/pods", {"metadata": {"name": name}, "spec": PODS[row]})
    assert made.code == 201, made


def used(api: Client, ns: str) -> dict[str, int]:
    items = api.get(f"/api/v1/namespaces/{ns}/resourcequotas").body["items"]
    by_name = {item["metadata"]["name"]: int(item["status"]["used"][RESOURCE]) for item in items}
    return {name: by_name[object_name(name)] for name in QUOTAS}


def counted(api: Client, ns: str) -> set[str]:
    return {name for name, count in used(api, ns).items() if count}
