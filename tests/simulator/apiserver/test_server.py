"""What only the embedded server has: faults, its own clock, controllers, forms of running."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from simulator.apiserver import ADMIN, Options, ServerThread, matching, node, service_account
from tests.contract.client import Client
from tests.contract.manifests import binding, config_map, pod

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
MOMENT = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def server() -> Iterator[ServerThread]:
    with ServerThread(Options(clock=lambda: MOMENT, seed=1)) as handle:
        yield handle


@pytest.fixture
def api(server: ServerThread) -> Client:
    return Client(server.url, ADMIN.token)


def test_time_and_names_are_arguments(api: Client) -> None:
    made = api.post(MAPS, {"metadata": {"generateName": "g-"}}).meta
    with ServerThread(Options(clock=lambda: MOMENT, seed=1)) as twin:
        again = Client(twin.url, ADMIN.token).post(MAPS, {"metadata": {"generateName": "g-"}}).meta
    assert made["creationTimestamp"] == "2030-01-02T03:04:05Z"
    assert (made["name"], made["uid"]) == (again["name"], again["uid"])


def test_a_failure_is_injected_as_often_as_asked(server: ServerThread, api: Client) -> None:
    server.call(lambda s: s.faults.fail(503, matching(method="GET", path="/configmaps"), times=2, retry_after=1))
    answers = [api.get(MAPS) for _ in range(3)]
    assert [answer.code for answer in answers] == [503, 503, 200]
    assert (answers[0].body["reason"], answers[0].headers["retry-after"]) == ("ServiceUnavailable", "1")
    assert api.get("/api/v1/nodes").code == 200


def test_a_lost_answer_did_happen(server: ServerThread, api: Client) -> None:
    server.call(lambda s: s.faults.lose_answer(matching(method="POST"), times=1))
    assert api.post(MAPS, config_map("a")).code == 504
    assert api.get(f"{MAPS}/a").code == 200


def test_a_partition_cuts_one_user_and_heals(server: ServerThread, api: Client) -> None:
    user = service_account("gpuslice-system", "gpuslice-node")
    server.kubeconfig(user)
    other = api.with_token(user.token)
    server.call(lambda s: s.faults.partition(matching(user=user.name)))
    with pytest.raises((ConnectionError, OSError)):
        other.get(MAPS)
    assert api.get(MAPS).code == 200
    server.call(lambda s: s.faults.clear())
    assert other.get(MAPS).code == 200


def test_a_delay_delays(server: ServerThread, api: Client) -> None:
    server.call(lambda s: s.faults.delay(0.2, times=1))
    began = time.monotonic()
    api.get(MAPS)
    assert time.monotonic() - began >= 0.2


def test_a_dropped_watch_ends_in_the_middle(server: ServerThread, api: Client) -> None:
    api.post(MAPS, config_map("a"))
    port = int(server.url.rpartition(":")[2])
    request = f"GET {MAPS}?watch=1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN.token}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request.encode())
        received = b""
        while b"ADDED" not in received:
            received += connection.recv(65536)
        assert server.call(lambda s: s.drop_watches("configmaps")) == 1
        with contextlib.suppress(ConnectionError):
            received += b"".join(iter(lambda: connection.recv(65536), b""))
    assert not received.endswith(b"0\r\n\r\n")


def test_an_expired_watch_says_410_and_so_does_every_older_version(server: ServerThread, api: Client) -> None:
    then = api.post(MAPS, config_map("a")).meta["resourceVersion"]
    page = api.get(f"{MAPS}?limit=1").meta
    with api.watch(f"{MAPS}?watch=1&resourceVersion={then}") as events:
        assert server.call(lambda s: s.expire_watches()) == 1
        error = list(events)[-1]
    assert (error["type"], error["object"]["code"], error["object"]["reason"]) == ("ERROR", 410, "Expired")
    with api.watch(f"{MAPS}?watch=1&resourceVersion={then}") as events:
        assert [event["object"]["reason"] for event in events] == ["Expired"]
    exact = api.get(f"{MAPS}?resourceVersion={then}&resourceVersionMatch=Exact")
    assert exact.refusal == (410, "Expired", "The resourceVersion for the provided list is too old.")
    assert "continue" not in page
    fresh = api.get(MAPS).meta["resourceVersion"]
    with api.watch(f"{MAPS}?watch=1&timeoutSeconds=1&resourceVersion={fresh}") as events:
        assert list(events) == []


def test_bookmarks_come_at_their_interval() -> None:
    with ServerThread(Options(bookmark_seconds=0.05)) as handle:
        api = Client(handle.url, ADMIN.token)
        with api.watch(f"{MAPS}?watch=1&allowWatchBookmarks=true&timeoutSeconds=5") as events:
            first = next(events)
            made = int(api.post(PODS, pod("elsewhere")).meta["resourceVersion"])
            later = next(e for e in events if int(e["object"]["metadata"]["resourceVersion"]) >= made)
    assert (first["type"], later["type"]) == ("BOOKMARK", "BOOKMARK")


def test_a_namespace_empties_itself_but_waits_for_kubelets(api: Client) -> None:
    base = "/api/v1/namespaces/n"
    api.post("/api/v1/namespaces", {"metadata": {"name": "n"}})
    api.post(f"{base}/configmaps", config_map("a"))
    api.post(f"{base}/pods", pod("a"))
    api.post(f"{base}/pods/a/binding", binding("a", "n1"))
    assert api.delete(base).body["status"]["phase"] == "Terminating"
    assert [api.get(f"{base}/configmaps").body["items"], api.get(base).code] == [[], 200]
    api.delete(f"{base}/pods/a", {"gracePeriodSeconds": 0})
    assert api.get(base).code == 404


OWNED = [
    pytest.param("Background", 404, id="background: the dependent goes"),
    pytest.param("Foreground", 404, id="foreground: the dependent goes first"),
    pytest.param("Orphan", 200, id="orphan: the dependent stays"),
]


@pytest.mark.parametrize(("policy", "code"), OWNED)
def test_dependents_follow_their_owner(api: Client, policy: str, code: int) -> None:
    uid = api.post(MAPS, config_map("owner")).meta["uid"]
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}
    api.post(MAPS, config_map("dependent", ownerReferences=[owner]))
    api.delete(f"{MAPS}/owner", {"propagationPolicy": policy})
    assert (api.get(f"{MAPS}/owner").code, api.get(f"{MAPS}/dependent").code) == (404, code)


def test_a_token_is_issued_for_a_service_account(api: Client) -> None:
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    api.post(accounts, {"metadata": {"name": "a"}})
    token = api.post(f"{accounts}/a/token", {"spec": {}}).body["status"]["token"]
    review = api.post("/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": token}}).body["status"]
    assert (review["authenticated"], review["user"]["username"]) == (True, "system:serviceaccount:default:a")
    assert api.with_token(token).get(MAPS).code == 200


def test_a_big_list_is_compressed_for_those_who_ask(api: Client, server: ServerThread) -> None:
    for index in range(3):
        api.post(MAPS, config_map(f"m{index}", {"a": "x" * 100_000}))
    port = int(server.url.rpartition(":")[2])
    request = f"GET {MAPS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN.token}\r\n"
    sizes = []
    for header in ("", "Accept-Encoding: gzip\r\n"):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(f"{request}{header}Connection: close\r\n\r\n".encode())
            sizes.append(len(b"".join(iter(lambda c=connection: c.recv(65536), b""))))  # type: ignore[misc]
    assert sizes[0] > 300_000
    assert sizes[1] < 50_000


def test_requests_on_one_connection_are_answered_in_order(server: ServerThread, api: Client) -> None:
    for name in ("a", "b"):
        api.post(MAPS, config_map(name))
    port = int(server.url.rpartition(":")[2])
    head = f"HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN.token}\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(f"GET {MAPS}/b {head}\r\nGET {MAPS}/a {head}Connection: close\r\n\r\n".encode())
        text = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    assert text.index('"name":"b"') < text.index('"name":"a"')


BROKEN = [
    pytest.param(b"nonsense\r\n\r\n", b"HTTP/1.1 400 ", id="no HTTP"),
    pytest.param(
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n" + b"x" * 4_000_000,
        b"HTTP/1.1 413 ",
        id="more than 3 MiB",
    ),
]


@pytest.mark.parametrize(("sent", "answered"), BROKEN)
def test_a_broken_request_is_refused_and_the_server_lives(
    server: ServerThread, api: Client, sent: bytes, answered: bytes
) -> None:
    port = int(server.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(sent)
        assert connection.recv(65536).startswith(answered)
    assert api.get(MAPS).code == 200


def _pb(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2, len(value)]) + value


def test_protobuf_of_go_clients_is_read(api: Client) -> None:
    meta = _pb(1, b"a") + _pb(11, _pb(1, b"k") + _pb(2, b"v"))
    secret = _pb(1, meta) + _pb(2, _pb(1, b"x") + _pb(2, b"y")) + _pb(3, b"helm.sh/release.v1")
    envelope = b"k8s\x00" + _pb(1, _pb(1, b"v1") + _pb(2, b"Secret")) + _pb(2, secret)
    path = "/api/v1/namespaces/default/secrets"
    made = api.call("POST", path, envelope, "application/vnd.kubernetes.protobuf")
    assert (made.code, made.body["data"], made.body["type"]) == (201, {"x": "eQ=="}, "helm.sh/release.v1")
    assert made.meta["labels"] == {"k": "v"}
    pod_envelope = b"k8s\x00" + _pb(1, _pb(1, b"v1") + _pb(2, b"Pod"))
    assert api.call("POST", PODS, pod_envelope, "application/vnd.kubernetes.protobuf").code == 415
    assert api.call("POST", path, b"k8s\x00\x0a\xff", "application/vnd.kubernetes.protobuf").code == 400


def test_a_quota_stops_the_second_card(api: Client) -> None:
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"requests.nvidia.com/gpu": "1"}}}
    api.post("/api/v1/namespaces/default/resourcequotas", quota)
    container: dict[str, Any] = {"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    codes = [api.post(PODS, pod(name, containers=[container])) for name in ("a", "b")]
    assert [answer.code for answer in codes] == [201, 403]
    said = "requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=1, limited: requests.nvidia.com/gpu=1"
    assert f"exceeded quota: q, {said}" in codes[1].body["message"]


def test_a_quota_on_limits_of_an_extended_resource_stops_nobody(api: Client) -> None:
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"limits.nvidia.com/gpu": "0"}}}
    api.post("/api/v1/namespaces/default/resourcequotas", quota)
    container: dict[str, Any] = {"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    assert api.post(PODS, pod("a", containers=[container])).code == 201


def test_two_servers_do_not_meet(tmp_path: Path) -> None:
    with ServerThread(Options(data=tmp_path / "a")) as one, ServerThread(Options(data=tmp_path / "b")) as two:
        Client(one.url, ADMIN.token).post(MAPS, config_map("only-here"))
        assert Client(two.url, ADMIN.token).get(f"{MAPS}/only-here").code == 404
        assert one.url != two.url


def test_a_kubeconfig_names_server_user_and_authority(tmp_path: Path) -> None:
    with ServerThread(Options(tls=True, data=tmp_path)) as handle:
        path = handle.kubeconfig(node("n1"))
        config = yaml.safe_load(path.read_text())
        user = {"name": "system:node:n1", "user": {"token": "node-n1"}}
        assert (config["clusters"][0]["cluster"]["server"], config["users"]) == (handle.url, [user])
        assert "certificate-authority-data" in config["clusters"][0]["cluster"]
        assert path.stat().st_mode & 0o077 == 0


def test_the_process_announces_itself_and_ends_on_sigterm(tmp_path: Path) -> None:
    ports = tmp_path / "ports.json"
    command = [sys.executable, "-m", "simulator.apiserver", "--data", str(tmp_path), "--ports-file", str(ports)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        facts = json.loads(process.stdout.readline())
        assert Client(facts["url"], ADMIN.token).get("/version").body["minor"] == "34"
        assert yaml.safe_load(Path(facts["kubeconfig"]).read_text())["current-context"] == "embedded"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0
    assert json.loads(ports.read_text()) == facts
