"""The servers that the contract holds for: the embedded one always, a real kube-apiserver under the `cluster` marker.

`--api-server embedded|real` limits the run to one of them. GPUSLICE_CONTRACT_KUBECONFIG names a running cluster to use
as the real one (its user must be an admin with a token); without it etcd and kube-apiserver are built and started.
"""

import base64
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from simulator.apiserver import ADMIN, Options, ServerThread, User
from tests.contract.client import Client
from tests.contract.hooks import Hook, serve_hook
from tests.contract.manifests import binding, config_map, node, pod

BOB = User("bob-token", "bob", ("devs",))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--api-server", choices=["embedded", "real"], help="hold the contract against this server only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.getoption("--api-server", default=None)
    if wanted is None:
        return
    kept = [item for item in items if f"[{wanted}" in item.name or "target" not in getattr(item, "fixturenames", ())]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


@dataclass(frozen=True, slots=True)
class Target:
    """One API server under contract."""

    name: str
    admin: Client


@pytest.fixture(scope="session", params=["embedded", pytest.param("real", marks=pytest.mark.cluster)])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("contract")
    if request.param == "embedded":
        with ServerThread(Options(users=(BOB,), tls=True, data=folder)) as handle:
            authority = folder / "ca.crt"
            authority.write_bytes(handle.server.ca_pem or b"")
            yield Target("embedded", Client(handle.url, ADMIN.token, str(authority)))
    elif kubeconfig := os.environ.get("GPUSLICE_CONTRACT_KUBECONFIG"):
        yield Target("real", _client_of(Path(kubeconfig), folder))
    else:
        yield from _started(folder)


def _client_of(kubeconfig: Path, folder: Path) -> Client:
    config = yaml.safe_load(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    authority = folder / "ca.crt"
    if data := cluster.get("certificate-authority-data"):
        authority.write_bytes(base64.b64decode(data))
    else:
        authority = Path(cluster["certificate-authority"])
    return Client(cluster["server"], user["token"], str(authority))


def _started(folder: Path) -> Iterator[Target]:
    from tests.cluster.build import ensure
    from tests.cluster.harness.control_plane import ADMIN as REAL_ADMIN
    from tests.cluster.harness.control_plane import ControlPlane

    plane = ControlPlane(folder, ensure(("etcd", "kube-apiserver")))
    try:
        plane.start()
        token = plane.tokens.token(REAL_ADMIN)
        yield Target("real", Client(plane.url, token, str(plane.authority.certificate)))
    finally:
        plane.stop()
        plane.remove_data()


@pytest.fixture
def api(target: Target) -> Client:
    """A client with all rights."""
    return target.admin


_numbers = iter(range(1_000_000))


def make_namespace(api: Client) -> str:
    """Make a namespace in which pods can be created (the real server wants a service account)."""
    name = f"contract-{os.getpid()}-{next(_numbers)}"
    assert api.post("/api/v1/namespaces", {"metadata": {"name": name}}).code == 201
    account = api.post(f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})
    assert account.code == 201
    return name


@pytest.fixture
def ns(api: Client) -> str:
    """A namespace of the test's own."""
    return make_namespace(api)


@pytest.fixture(scope="module")
def furnished(target: Target) -> str:
    """A namespace with: pods free, taken (bound to node NAMESPACE), gated; config map cm; lease held."""
    api = target.admin
    name = make_namespace(api)
    base = f"/api/v1/namespaces/{name}"
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{name}/leases"
    made = [
        api.post("/api/v1/nodes", node(name)),
        api.post(f"{base}/pods", pod("free", labels={"x": "y"})),
        api.post(f"{base}/pods", pod("taken")),
        api.post(f"{base}/pods/taken/binding", binding("taken", name)),
        api.post(f"{base}/pods", pod("gated", schedulingGates=[{"name": "example.com/gate"}])),
        api.post(f"{base}/configmaps", config_map("cm")),
        api.post(leases, {"metadata": {"name": "held"}, "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15}}),
    ]
    assert {answer.code for answer in made} == {201}
    return name


@pytest.fixture
def hook() -> Iterator[Hook]:
    """An HTTPS admission webhook on loopback."""
    with serve_hook() as found:
        yield found
