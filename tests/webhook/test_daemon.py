"""The webhook as a process over real TLS: start, stop, rotation, broken input, refused settings."""

import asyncio
import functools
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

from gpuslice.devices.errors import BadConfiguration
from gpuslice.service.settings import load_settings
from tests.webhook.reviews import body, pod
from webhook.certificates import Issued, ensure_self_signed, issue
from webhook.daemon import serve
from webhook.settings import WebhookSettings

GPU = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k"}
POLL_SECONDS = "0.1"


def wait_for(condition: Callable[[], Any], seconds: float = 45.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError("it did not happen in time")
        time.sleep(0.02)
    return found


def write_pair(folder: Path, issued: Issued) -> None:
    """Write a pair in two steps, as an administrator without a Secret mount would."""
    for name, content in (("tls.crt", issued.certificate), ("tls.key", issued.key), ("ca.crt", issued.authority)):
        temporary = folder / f".{name}"
        temporary.write_bytes(content)
        temporary.replace(folder / name)


class Webhook:
    """A running process and how to call it."""

    def __init__(self, folder: Path, process: "subprocess.Popen[bytes]") -> None:
        self.folder = folder
        self.process = process
        self._connections: list[HTTPSConnection] = []
        ports = wait_for(self._ports)
        self.port, self.metrics_port = ports["listen"], ports["metrics"]

    def _ports(self) -> dict[str, int] | None:
        assert self.process.poll() is None, (self.folder / "log").read_text()
        path = self.folder / "ports.json"
        return json.loads(path.read_text()) if path.exists() else None

    def connect(self, authority: Path | None = None) -> HTTPSConnection:
        trust = ssl.create_default_context(cafile=str(authority or self.folder / "ca.crt"))
        connection = HTTPSConnection("127.0.0.1", self.port, context=trust, timeout=30)
        self._connections.append(connection)
        return connection

    def hang_up(self) -> None:
        for connection in self._connections:
            connection.close()

    def probe(self, path: str) -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", self.metrics_port, timeout=30)
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def serial(self) -> bytes:
        """Return the certificate that a new connection is shown."""
        unverified = ssl.create_default_context()
        unverified.check_hostname = False
        unverified.verify_mode = ssl.CERT_NONE
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=30) as raw,
            unverified.wrap_socket(raw) as secure,
        ):
            return secure.getpeercert(binary_form=True) or b""


@contextmanager
def webhook(folder: Path, *flags: str) -> Iterator[Webhook]:
    arguments = ["--listen", "127.0.0.1:0", "--metrics-host", "127.0.0.1", "--ports-file", str(folder / "ports.json")]
    pair = (
        []
        if "--self-signed" in flags
        else ["--tls-cert", str(folder / "tls.crt"), "--tls-key", str(folder / "tls.key")]
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "webhook", *arguments, *pair, *flags], stderr=log)
        running: Webhook | None = None
        try:
            running = Webhook(folder, process)
            yield running
        finally:
            if running is not None:
                running.hang_up()
            process.kill()
            process.wait(10)


def append(path: Path, content: bytes) -> None:
    """Lengthen a file in one step: clients read it all the time."""
    temporary = path.with_suffix(".new")
    temporary.write_bytes(path.read_bytes() + content)
    temporary.replace(path)


def new_serial(running: Webhook, old: bytes) -> bytes | None:
    shown = running.serial()
    return None if shown == old else shown


def ask(connection: HTTPSConnection, content: bytes, path: str = "/mutate") -> tuple[int, Any]:
    connection.request("POST", path, content, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    return answer.status, json.loads(text)["response"] if answer.status == 200 else text.decode()


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    write_pair(tmp_path, issue(["127.0.0.1"], now=datetime.now(UTC)))
    return tmp_path


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    folder = tmp_path_factory.mktemp("webhook")
    write_pair(folder, issue(["127.0.0.1"], now=datetime.now(UTC)))
    with webhook(folder) as running:
        yield running


def outcomes(running: Webhook) -> Counter[str]:
    """Return how many reviews of /mutate ended how."""
    found = re.findall(r'reviews_total\{endpoint="mutate",outcome="(\w+)"} (\d+)', running.probe("/metrics")[1])
    return Counter({outcome: int(number) for outcome, number in found})


def test_it_serves_over_tls_and_counts(shared: Webhook) -> None:
    before = outcomes(shared)
    connection = shared.connect()
    assert ask(connection, body(pod(GPU)))[1]["patchType"] == "JSONPatch"
    assert ask(connection, body(pod({"cpu": "1"})))[1] == {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "allowed": True,
    }
    assert ask(connection, body(pod({"nvidia.com/gpu": "-1"})))[1]["allowed"] is False
    assert outcomes(shared) - before == Counter(denied=1, patched=1, untouched=1)
    assert shared.probe("/readyz")[0] == 200
    assert shared.probe("/livez")[0] == 200


def test_broken_input_is_answered_and_survived(shared: Webhook) -> None:
    connection = shared.connect()
    assert ask(connection, b"{")[0] == 400
    assert ask(connection, b"")[0] == 400
    assert ask(connection, body({"metadata": 7}))[0] == 400
    assert ask(connection, b" " * (8 * 2**20 + 1))[0] == 413
    assert ask(shared.connect(), body(pod(GPU)), "/nothing")[0] == 404
    assert ask(shared.connect(), body(pod(GPU)))[1]["allowed"] is True


def test_certificates_are_rotated_without_a_dropped_request(pair: Path) -> None:
    """Four clients never stop asking, on kept and on fresh connections, while the pair changes five times."""
    trusted = pair / "trusted.pem"
    trusted.write_bytes((pair / "ca.crt").read_bytes())
    stop = threading.Event()
    failures: list[BaseException] = []
    answered = [0] * 4

    def client(number: int, running: Webhook) -> None:
        kept = running.connect(trusted)
        try:
            while not stop.is_set():
                fresh = running.connect(trusted) if number % 2 else kept
                assert ask(fresh, body(pod(GPU)))[1]["allowed"] is True
                answered[number] += 1
                if number % 2:
                    fresh.close()
        except BaseException as error:  # noqa: BLE001  a thread hands its failure over
            failures.append(error)

    with webhook(pair, "--certificate-poll-seconds", POLL_SECONDS) as running:
        threads = [threading.Thread(target=client, args=(number, running)) for number in range(4)]
        for thread in threads:
            thread.start()
        shown = running.serial()
        for _ in range(5):
            issued = issue(["127.0.0.1"], now=datetime.now(UTC))
            # As in a cluster: the new authority is trusted before the new certificate is served.
            append(trusted, issued.authority)
            write_pair(pair, issued)
            shown = wait_for(functools.partial(new_serial, running, shown))
        (pair / "tls.key").write_bytes(issue(["127.0.0.1"], now=datetime.now(UTC)).key)
        wait_for(lambda: "certificate_not_loaded" in (pair / "log").read_text())
        assert running.serial() == shown, "a key that does not match must leave the last good pair in use"
        stop.set()
        for thread in threads:
            thread.join(30)
    assert failures == []
    assert min(answered) > 10


def test_it_makes_its_own_certificate_and_follows_the_policy_file(tmp_path: Path) -> None:
    """A broken policy file is logged, and the last good rules stay."""
    folder, rules = tmp_path / "tls", tmp_path / "rules.yaml"
    rules.write_text("namespaces: {default: {maxCardsPerPod: 1}}")
    two = body(pod({"nvidia.com/gpu": "2"}))
    flags = ["--self-signed", str(folder), "--self-signed-host", "127.0.0.1"]
    flags += ["--namespace-policy", str(rules), "--policy-poll-seconds", POLL_SECONDS]
    with webhook(tmp_path, *flags) as running:
        connection = running.connect(folder / "ca.crt")
        assert ask(connection, two)[1]["allowed"] is False
        rules.write_text("namespaces: {default: {maxCardsPerPod: 2}}")
        wait_for(lambda: ask(connection, two)[1]["allowed"])
        rules.write_text("namespaces: [")
        wait_for(lambda: "policy_not_loaded" in (tmp_path / "log").read_text())
        assert ask(connection, two)[1]["allowed"] is True
    assert (folder / "tls.key").stat().st_mode & 0o777 == 0o600
    before = (folder / "tls.crt").read_bytes()
    ensure_self_signed(folder, ["127.0.0.1"])
    assert (folder / "tls.crt").read_bytes() == before


def test_killed_it_comes_back_on_the_same_address_and_asked_to_stop_it_stops(pair: Path) -> None:
    with webhook(pair) as first:
        port = first.port
        first.process.kill()
        first.process.wait(10)
    (pair / "ports.json").unlink()
    with webhook(pair, "--listen", f"127.0.0.1:{port}") as second:
        assert second.port == port
        assert ask(second.connect(), body(pod(GPU)))[1]["allowed"] is True
        started = time.monotonic()
        second.process.send_signal(signal.SIGTERM)
        assert second.process.wait(30) == 0
        assert time.monotonic() - started < 4.0, "two seconds are promised, two more are for a busy machine"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        pytest.param([], "--tls-cert", id="no certificate"),
        pytest.param(["--tls-cert", "none.crt", "--tls-key", "none.key"], "none.crt", id="files that are not there"),
        pytest.param(["--self-signed", "{tmp}"], "--self-signed-host", id="a certificate for nobody"),
        pytest.param(
            ["--self-signed", "{tmp}", "--self-signed-host", "x", "--listen", "nowhere"], "nowhere", id="bad address"
        ),
        pytest.param(
            ["--self-signed", "{tmp}", "--self-signed-host", "x", "--device-files", "none.yaml"],
            "none.yaml",
            id="no family",
        ),
        pytest.param(
            ["--self-signed", "{tmp}", "--self-signed-host", "x", "--namespace-policy", "none.yaml"],
            "none.yaml",
            id="no rules",
        ),
    ],
)
def test_a_wrong_setting_is_named_and_nothing_starts(tmp_path: Path, flags: list[str], said: str) -> None:
    arguments = [flag.replace("{tmp}", str(tmp_path)) for flag in ("--listen", "127.0.0.1:0", *flags)]
    with pytest.raises(BadConfiguration, match=re.escape(said)):
        asyncio.run(serve(load_settings(WebhookSettings, arguments, program="webhook", environ={}), asyncio.Event()))


def test_the_process_says_so_and_ends_with_2() -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GPUSLICE_")}
    command = [sys.executable, "-m", "webhook", "--listen", "127.0.0.1:0"]
    done = subprocess.run(command, capture_output=True, timeout=30, env=environment, check=False)
    assert done.returncode == 2
    said = json.loads(done.stderr)
    assert said["event"] == "daemon_failed"
    assert said["error"].startswith("command line: --tls-cert: is required")
