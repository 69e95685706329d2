"""Benchmark of the webhook over TLS: ``python -m bench.webhook [--requests 4000] [--connections 8]``.

Latency is one keep-alive connection, one review at a time, as the API server's client does it, in rounds; the quietest
quarter of the rounds counts, because a shared machine interrupts the others. Throughput keeps several connections busy
while the webhook is bound to one core and the client to the others; ``admissions_per_second`` divides by the CPU time
that the webhook took, which is what a core of its own gives, ``…_wall`` by the clock. The pods are a mix: GPU
pods that are patched, GPU pods that are denied, and pods without a device, of 5 kB. The baseline allows all
without reading it, on the same stack, measured in turns with the webhook.
"""

import argparse
import json
import os
import select
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.harness import Figure, cpu_seconds, percentile, report, resident_mib
from webhook.certificates import issue

WARM_UP = 500
ROUNDS = 20
START_SECONDS = 20.0


LIMITS: tuple[dict[str, str], ...] = (
    {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3k", "nvidia.com/gpucores": "30"},
    {"nvidia.com/gpumem": "16Gi"},
    {"cpu": "2", "memory": "4Gi"},
    {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "101"},
)


def app(limits: dict[str, str]) -> dict[str, Any]:
    """Return the container that may ask for a device."""
    environment = [{"name": f"SETTING_{i}", "value": f"value-{i}-of-the-application"} for i in range(20)]
    environment.append({"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"})
    probe = {
        "httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"},
        "periodSeconds": 10,
        "failureThreshold": 3,
    }
    return {
        "name": "main",
        "image": "registry.example.com/team/application:2026.11.29",
        "env": environment,
        "resources": {"limits": limits, "requests": limits},
        "livenessProbe": probe,
        "readinessProbe": probe,
        "volumeMounts": [{"name": f"volume-{i}", "mountPath": f"/data/{i}"} for i in range(4)],
    }


def sidecar() -> dict[str, Any]:
    """Return the container that a service mesh adds."""
    return {
        "name": "istio-proxy",
        "image": "docker.io/istio/proxyv2:1.27.0",
        "args": [
            "proxy",
            "sidecar",
            "--domain",
            "$(POD_NAMESPACE).svc.cluster.local",
            "--log_output_level=default:info",
        ],
        "env": [{"name": f"ISTIO_META_{i}", "value": "x" * 40} for i in range(15)],
        "resources": {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "10m", "memory": "40Mi"}},
        "securityContext": {"runAsUser": 1337, "capabilities": {"drop": ["ALL"]}},
    }


def pod(index: int) -> dict[str, Any]:
    """Return a pod as the API server hands it over: an app with a service-mesh sidecar."""
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "generateName": f"app-{index}-",
            "namespace": "default",
            "labels": {f"label-{i}": f"value-{i}" for i in range(8)},
            "annotations": {f"example.com/annotation-{i}": "text " * 12 for i in range(6)},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "app", "uid": "u" * 36}],
        },
        "spec": {
            "containers": [app(LIMITS[index % len(LIMITS)]), sidecar()],
            "initContainers": [{"name": "istio-init", "image": "docker.io/istio/proxyv2:1.27.0", "resources": {}}],
            "volumes": [{"name": f"volume-{i}", "emptyDir": {}} for i in range(4)],
            "schedulerName": "default-scheduler",
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
        },
    }


def request_bytes(index: int) -> bytes:
    """Return a whole HTTP request with a review."""
    review = {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": f"00000000-0000-0000-0000-{index:012d}",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "namespace": "default",
            "operation": "CREATE",
            "userInfo": {
                "username": "system:serviceaccount:kube-system:replicaset-controller",
                "groups": ["system:serviceaccounts", "system:authenticated"],
            },
            "object": pod(index),
            "oldObject": None,
            "dryRun": False,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    }
    body = json.dumps(review, separators=(",", ":")).encode()
    head = (
        "POST /mutate?timeout=5s HTTP/1.1\r\nHost: gpuslice-webhook.gpuslice-system.svc:443\r\n"
        "User-Agent: kube-apiserver-admission\r\nAccept: application/json, */*\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nAccept-Encoding: gzip\r\n\r\n"
    )
    return head.encode() + body


REQUESTS = [request_bytes(index) for index in range(64)]


class Connection:
    """One keep-alive TLS connection, blocking."""

    def __init__(self, port: int, trust: ssl.SSLContext) -> None:
        raw = socket.create_connection(("127.0.0.1", port))
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = trust.wrap_socket(raw, server_hostname="127.0.0.1")
        self.socket.settimeout(30)

    def ask(self, request: bytes) -> None:
        """Send a request."""
        self.socket.sendall(request)

    def read(self) -> bytes:
        """Return the body of the next answer; anything but 200 is an error."""
        received = bytearray()
        while (end := received.find(b"\r\n\r\n")) < 0:
            received += self._receive()
        head, rest = bytes(received[:end]).lower(), received[end + 4 :]
        length = int(head.split(b"content-length: ", 1)[1].split(b"\r\n", 1)[0])
        while len(rest) < length:
            rest += self._receive()
        if not head.startswith(b"http/1.1 200"):
            raise RuntimeError(head.decode())
        return bytes(rest)

    def _receive(self) -> bytes:
        data = self.socket.recv(1 << 16)
        if not data:
            raise RuntimeError("the webhook closed the connection")
        return data


def latencies(connection: Connection, count: int) -> list[float]:
    """Return milliseconds of single reviews."""
    found: list[float] = []
    for index in range(count):
        request = REQUESTS[index % len(REQUESTS)]
        started = time.perf_counter()
        connection.ask(request)
        connection.read()
        found.append((time.perf_counter() - started) * 1000)
    return found


def quietest(rounds: Sequence[list[float]]) -> list[float]:
    """Return the samples of the quarter of the rounds that took least time."""
    ordered = sorted(rounds, key=sum)
    return [sample for samples in ordered[: max(1, len(ordered) // 4)] for sample in samples]


def throughput(pid: int, connections: Sequence[Connection], seconds: float) -> tuple[float, float]:
    """Return reviews per CPU second of the server and per second on the clock, every connection always busy."""
    by_descriptor = {connection.socket.fileno(): connection for connection in connections}
    poller = select.epoll()
    for descriptor, connection in by_descriptor.items():
        poller.register(descriptor, select.EPOLLIN)
        connection.ask(REQUESTS[descriptor % len(REQUESTS)])
    answered = 0
    cpu_before = cpu_seconds(pid)
    started = time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        for descriptor, _ in poller.poll(1):
            by_descriptor[descriptor].read()
            answered += 1
            by_descriptor[descriptor].ask(REQUESTS[answered % len(REQUESTS)])
    for connection in connections:
        connection.read()
    return answered / (cpu_seconds(pid) - cpu_before), answered / elapsed


@contextmanager
def process(folder: Path, name: str, *arguments: str) -> Iterator[tuple[int, int]]:
    """Start a server on the first core; gives its process id and port."""
    ports = folder / f"{name}.json"
    with (folder / f"{name}.log").open("wb") as log:
        started = subprocess.Popen([sys.executable, "-m", *arguments, *_ports(name, ports)], stderr=log)
        try:
            os.sched_setaffinity(started.pid, {min(os.sched_getaffinity(0))})
            yield started.pid, _read_port(ports, started)
        finally:
            started.terminate()
            started.wait(10)


def _ports(name: str, path: Path) -> list[str]:
    return [str(path)] if name == "trivial" else ["--ports-file", str(path)]


def _read_port(path: Path, started: "subprocess.Popen[bytes]") -> int:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if path.exists():
            return int(json.loads(path.read_text())["listen"])
        if started.poll() is not None:
            raise RuntimeError(f"the server ended with {started.returncode}; see {path.with_suffix('.log')}")
        time.sleep(0.05)
    raise RuntimeError("the server did not start")


def measure(requests: int, connections: int, seconds: float) -> list[Figure]:
    """Run both servers in turns."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpuslice-bench-")))
        issued = issue(["127.0.0.1"], now=datetime.now(UTC))
        certificate, key = folder / "tls.crt", folder / "tls.key"
        certificate.write_bytes(issued.certificate)
        key.write_bytes(issued.key)
        trust = ssl.create_default_context(cadata=issued.authority.decode())
        pid, port = stack.enter_context(
            process(
                folder, "webhook", "webhook", "--listen", "127.0.0.1:0", "--tls-cert", str(certificate), "--tls-key",
                str(key), "--metrics-host", "127.0.0.1", "--log-level", "warning",
            )
        )  # fmt: skip
        trivial_pid, trivial = stack.enter_context(
            process(folder, "trivial", "bench.webhook_trivial", str(certificate), str(key))
        )
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores - {min(cores)} or cores)
        ours, theirs = Connection(port, trust), Connection(trivial, trust)
        latencies(ours, WARM_UP), latencies(theirs, WARM_UP)
        rounds: list[list[float]] = []
        base_rounds: list[list[float]] = []
        for _ in range(ROUNDS):
            rounds.append(latencies(ours, requests // ROUNDS))
            base_rounds.append(latencies(theirs, requests // ROUNDS))
        single, base = quietest(rounds), quietest(base_rounds)
        rate, wall = throughput(pid, [Connection(port, trust) for _ in range(connections)], seconds)
        base_rate, base_wall = throughput(
            trivial_pid, [Connection(trivial, trust) for _ in range(connections)], seconds
        )
        return [
            Figure.compared("admission_p50", "ms", percentile(single, 50), percentile(base, 50), target=0.4),
            Figure.compared("admission_p99", "ms", percentile(single, 99), percentile(base, 99), target=1.5),
            Figure.compared("admissions_per_second", "1/s", rate, base_rate, target=1500),
            Figure.compared("admissions_per_second_wall", "1/s", wall, base_wall),
            Figure.alone("webhook_rss", "MiB", resident_mib(pid), target=80),
        ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=4000, help="reviews measured one at a time")
    parser.add_argument("--connections", type=int, default=8, help="busy connections for the throughput")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long the throughput is measured")
    options = parser.parse_args(argv)
    figures = measure(options.requests, options.connections, options.seconds)
    report("Admission over TLS, mixed pods, webhook on one core", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
