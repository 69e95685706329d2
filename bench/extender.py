"""Benchmark of the extender over HTTP: ``python -m bench.extender [--nodes 100 1000 5000] [--cycles 2000]``.

A cycle is what kube-scheduler does for one pod: /filter with all node names, /prioritize with those that fit, /bind to
the best one, on one keep-alive connection. The cluster is half full. The API server is a stub that takes two
milliseconds for a binding; the time spent waiting for it (the extender says it in Server-Timing) is taken out of the
cycle. Cycles per second are counted as kube-scheduler works: the next pod is judged while bindings are under way.

The baseline (bench/trivial.py) decides nothing and is measured between the same two points, in turns.
"""

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec

from bench.extender_world import pod_object, share_of
from bench.harness import Figure, cpu_seconds, percentile, report, resident_mib

TARGETS = {100: (0.5, 1.0), 1000: (0.7, 1.5), 5000: (1.5, 3.5)}
PODS_PER_NODE = 4
WARM_UP = 200
TURN = 50
"""Cycles of one extender before it is the other's turn: the machine is never quick for one of them alone."""
BINDERS = 8
FIRST_POD = 1_000_000
MOST_BYTES = 1 << 22


class Connection:
    """One keep-alive HTTP/1.1 connection, blocking, as plain as can be.

    It shares two processors with the extender, so it copies little and takes no memory for each answer.
    """

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(30)
        self._received = bytearray(MOST_BYTES)
        self._room = memoryview(self._received)

    def post(self, path: str, *body: bytes) -> tuple[bytes, bytes]:
        """Send a request whose body comes in parts; gives head and body of the answer."""
        length = sum(map(len, body))
        head = f"POST {path} HTTP/1.1\r\nHost: extender\r\nContent-Type: application/json\r\n"
        parts = [f"{head}Content-Length: {length}\r\n\r\n".encode(), *body]
        sent = self._socket.sendmsg(parts)
        if sent < len(parts[0]) + length:
            self._socket.sendall(b"".join(parts)[sent:])
        size, end = 0, -1
        while end < 0:
            size += self._receive(size)
            end = self._received.find(b"\r\n\r\n", 0, size)
        found = bytes(self._room[:end]).lower()
        whole = end + 4 + int(found.split(b"content-length: ", 1)[1].split(b"\r\n", 1)[0])
        while size < whole:
            size += self._receive(size)
        answer = bytes(self._room[end + 4 : whole])
        if not found.startswith(b"http/1.1 200"):
            raise RuntimeError(f"{path}: {found.decode()} {answer[:300].decode()}")
        return found, answer

    def _receive(self, at: int) -> int:
        count = self._socket.recv_into(self._room[at:])
        if not count:
            raise RuntimeError("the extender closed the connection, or its answer is too long")
        return count

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


@dataclass
class Result:
    """Milliseconds of each cycle by part, and the whole."""

    filter: list[float] = field(default_factory=list)
    prioritize: list[float] = field(default_factory=list)
    bind: list[float] = field(default_factory=list)
    cycle: list[float] = field(default_factory=list)
    refused: int = 0
    rushed: int = 0
    """Pods whose bindings were not waited for before the next pod."""
    rush_seconds: float = 0.0
    rss_mib: float = 0.0
    cpu_ms: float = 0.0
    """CPU time of the extender for one cycle, its share of the watches included."""


def waiting_ms(head: bytes) -> float:
    """Milliseconds that /bind waited for the API server."""
    _, found, rest = head.partition(b"api;dur=")
    return float(rest.split(b"\r\n", 1)[0]) if found else 0.0


class Contender:
    """One extender, driven over one connection with the same pods as the other."""

    def __init__(self, port: int, pid: int, nodes: int) -> None:
        self.result = Result()
        self._pid = pid
        self._connection = Connection(port)
        self._pool = ThreadPoolExecutor(BINDERS)
        self._binders: SimpleQueue[Connection] = SimpleQueue()
        for _ in range(BINDERS):
            self._binders.put(Connection(port))
        self._rng = random.Random(7)
        self._names = json.dumps([f"node-{index:05d}" for index in range(nodes)]).encode()
        self._encode = msgspec.json.Encoder().encode
        self._next = FIRST_POD
        self._used = 0.0

    def begin(self) -> None:
        """Warm up, and count from here."""
        self.run(WARM_UP)
        self.result, self._used = Result(), cpu_seconds(self._pid)

    def run(self, cycles: int) -> None:
        """Schedule so many pods, one after the other."""
        for _ in range(cycles):
            pod = pod_object(self._next, *share_of(self._rng))
            self._next += 1
            one_cycle(self._connection, pod, self._encode(pod), self._names, self.result)

    def rush(self, cycles: int) -> None:
        """Schedule so many pods and wait for no binding before the next pod."""
        started = time.perf_counter()
        bindings = []
        for _ in range(cycles):
            pod = pod_object(self._next, *share_of(self._rng))
            self._next += 1
            best, _, _ = judged(self._connection, self._encode(pod), self._names)
            if best:
                bindings.append(self._pool.submit(self._bind, binding_of(pod, best)))
        bound = sum(binding.result() for binding in bindings)
        self.result.rushed += bound
        self.result.refused += cycles - bound
        self.result.rush_seconds += time.perf_counter() - started

    def _bind(self, body: bytes) -> bool:
        connection = self._binders.get()
        _, answer = connection.post("/bind", body)
        self._binders.put(connection)
        return not msgspec.json.decode(answer)["Error"]

    def end(self) -> Result:
        """Hang up and say what was measured."""
        self._pool.shutdown()
        for connection in (self._connection, *(self._binders.get() for _ in range(BINDERS))):
            connection.close()
        cycles = self._next - FIRST_POD - WARM_UP
        self.result.cpu_ms = (cpu_seconds(self._pid) - self._used) * 1000 / cycles
        self.result.rss_mib = resident_mib(self._pid)
        return self.result


def one_cycle(connection: Connection, pod: dict[str, Any], encoded: bytes, names: bytes, result: Result) -> None:
    """Filter, prioritize, bind one pod."""
    best, filter_ms, prioritize_ms = judged(connection, encoded, names)
    if not best:
        result.refused += 1
        return
    body = binding_of(pod, best)
    started = time.perf_counter()
    head, answer = connection.post("/bind", body)
    bind_ms = (time.perf_counter() - started) * 1000 - waiting_ms(head)
    if msgspec.json.decode(answer)["Error"]:
        result.refused += 1
        return
    result.filter.append(filter_ms)
    result.prioritize.append(prioritize_ms)
    result.bind.append(bind_ms)
    result.cycle.append(filter_ms + prioritize_ms + bind_ms)


def judged(connection: Connection, encoded: bytes, names: bytes) -> tuple[str, float, float]:
    """Filter and prioritize; give the best node (an empty name if none fits), and the milliseconds of both calls."""
    clock = time.perf_counter
    pod = b'{"Pod":' + encoded + b',"Nodes":null,"NodeNames":'
    t0 = clock()
    _, answer = connection.post("/filter", pod, names, b"}")
    t1 = clock()
    fitting = names_that_fit(answer)
    if fitting == b"[]":
        return "", (t1 - t0) * 1000, 0.0
    t2 = clock()
    _, answer = connection.post("/prioritize", pod, fitting, b"}")
    t3 = clock()
    return best_host(answer), (t1 - t0) * 1000, (t3 - t2) * 1000


def binding_of(pod: dict[str, Any], node: str) -> bytes:
    """Give an ExtenderBindingArgs."""
    meta = pod["metadata"]
    args = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
    return msgspec.json.encode(args)


def names_that_fit(answer: bytes) -> bytes:
    """The names in an ExtenderFilterResult, as they came.

    kube-scheduler is compiled and reads such lists in another process than ours: to decode 5,000 names here would take
    longer than the extender.
    """
    start = answer.index(b'"NodeNames":') + len(b'"NodeNames":')
    return answer[start : answer.index(b"]", start) + 1].strip()


def best_host(answer: bytes) -> str:
    """Name of the node with 10 points in a HostPriorityList; the baseline scores all alike, then the first one."""
    key = b'"Host":"'
    ten = answer.find(b"10}")
    start = answer.rindex(key, 0, ten) if ten >= 0 else answer.index(key)
    start += len(key)
    return answer[start : answer.index(b'"', start)].decode()


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python process of ours, ended with the block."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started = subprocess.Popen([sys.executable, "-m", *arguments], env=environment)
    try:
        yield started
    finally:
        started.terminate()
        started.wait(10)


def read_ports(path: Path, ready: subprocess.Popen[bytes]) -> dict[str, int]:
    """Wait for a ports file."""
    deadline = time.monotonic() + 60
    while not (path.exists() and path.stat().st_size):
        if ready.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{path.name}: the process did not come up")
        time.sleep(0.02)
    found: dict[str, int] = json.loads(path.read_text(encoding="ascii"))
    return found


def wait_ready(port: int) -> float:
    """Seconds until /readyz says ok."""
    started = time.monotonic()
    while time.monotonic() - started < 60:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
                return time.monotonic() - started
        except (urllib.error.URLError, OSError):
            time.sleep(0.02)
    raise RuntimeError("the extender was not ready within 60 s")


def write_kubeconfig(path: Path, port: int) -> None:
    """A kubeconfig for the stub."""
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    context = {"name": "c", "context": {"cluster": "c"}}
    path.write_text(
        json.dumps({"current-context": "c", "clusters": [cluster], "contexts": [context]}), encoding="ascii"
    )


def measure(nodes: int, cycles: int, folder: Path, extra: list[str]) -> tuple[Result, Result, float, int]:
    """Run ours and the baseline on a cluster of this size; also seconds to ready, and pods at the start."""
    with ExitStack() as stack:
        pods = nodes * PODS_PER_NODE
        world = stack.enter_context(process("bench.extender_world", str(nodes), str(pods), str(folder / "world.json")))
        ports = read_ports(folder / "world.json", world)
        kubeconfig = str(folder / "kubeconfig")
        write_kubeconfig(folder / "kubeconfig", ports["listen"])
        flags = ["--kubeconfig", kubeconfig, "--no-leader-elect", "--listen", "127.0.0.1:0"]
        flags += ["--metrics-host", "127.0.0.1", "--ports-file", str(folder / "ours.json"), "--log-level", "warning"]
        started = time.monotonic()
        ours = stack.enter_context(process("extender", *flags, *extra))
        mine = read_ports(folder / "ours.json", ours)
        wait_ready(mine["metrics"])
        ready_seconds = time.monotonic() - started
        other = stack.enter_context(process("bench.trivial", kubeconfig, str(folder / "trivial.json")))
        theirs = read_ports(folder / "trivial.json", other)
        contenders = [Contender(mine["listen"], ours.pid, nodes), Contender(theirs["listen"], other.pid, nodes)]
        for contender in contenders:
            contender.begin()
        for _ in range(cycles // TURN):
            for contender in contenders:
                contender.run(TURN)
                contender.rush(TURN)
        result, baseline = (contender.end() for contender in contenders)
    for file in folder.iterdir():
        file.unlink()
    return result, baseline, ready_seconds, ports["pods"]


def figures(nodes: int, ours: Result, baseline: Result, ready_seconds: float) -> list[Figure]:
    """The figures of one cluster size."""
    p50, p99 = TARGETS.get(nodes, (None, None))
    found = []
    for part in ("filter", "prioritize", "bind", "cycle"):
        for percent in (50, 99):
            mine, theirs = (percentile(getattr(result, part), percent) for result in (ours, baseline))
            target = (p50 if percent == 50 else p99) if part == "cycle" else None
            found.append(Figure.compared(f"{part}_p{percent}_{nodes}", "ms", mine, theirs, target=target))
    rates = [result.rushed / result.rush_seconds for result in (ours, baseline)]
    found.append(Figure.compared(f"cycles_per_second_{nodes}", "1/s", *rates, target=500))
    found.append(Figure.compared(f"extender_cpu_{nodes}", "ms/cycle", ours.cpu_ms, baseline.cpu_ms, target=2))
    found.append(Figure.compared(f"extender_rss_{nodes}", "MiB", ours.rss_mib, baseline.rss_mib, target=250))
    found.append(Figure.alone(f"extender_ready_{nodes}", "s", ready_seconds, target=5))
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1000, 5000])
    parser.add_argument("--cycles", type=int, default=2000)
    parser.add_argument("--policy", default="", help="node and card policy instead of the default")
    options = parser.parse_args()
    extra = ["--node-policy", options.policy, "--card-policy", options.policy] if options.policy else []
    found: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="gpuslice-bench-") as folder:
        for nodes in options.nodes:
            ours, baseline, ready_seconds, pods = measure(nodes, options.cycles, Path(folder), extra)
            sys.stderr.write(f"{nodes} nodes, {pods} pods at the start, {ours.refused} of {options.cycles} refused\n")
            found += figures(nodes, ours, baseline, ready_seconds)
    report("extender over HTTP, half-full cluster, 8 cards a node, all node names sent", found)


if __name__ == "__main__":
    main()
