"""Measure the embedded API server: big lists, creates and bindings under five watches, memory.

It is test equipment: the figures say how large a cluster the simulator can play on one machine.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.harness import Figure, cpu_seconds, percentile, report, resident_mib

_TOKEN = "admin-token"
_CARDS = json.dumps(
    [
        {"uuid": f"GPU-{index}-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee", "index": index, "model": "A100-SXM4-80GB",
         "memoryMiB": 81920, "numa": index // 4, "healthy": True, "links": [2] * 8, "slots": 10}
        for index in range(8)
    ]
)  # fmt: skip
Job = tuple[str, dict[str, object]]


def _node(index: int) -> Job:
    conditions = [
        {"type": type_, "status": "True" if type_ == "Ready" else "False", "reason": "Kubelet", "message": "said so"}
        for type_ in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    ]
    images = [{"names": [f"registry.example/i{n}@sha256:{'a' * 64}"], "sizeBytes": 1} for n in range(20)]
    status = {"capacity": {"cpu": "64", "nvidia.com/gpu": "80"}, "conditions": conditions, "images": images}
    meta = {"name": f"node-{index:05d}", "annotations": {"gpuslice.io/cards": _CARDS}}
    return "/api/v1/nodes", {"metadata": meta, "status": status}


def _pod(index: int) -> Job:
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}
    container = {"name": "main", "image": "example.invalid/app:1", "resources": {"limits": limits}}
    return "/api/v1/namespaces/default/pods", {
        "metadata": {"name": f"pod-{index:06d}"},
        "spec": {"containers": [container]},
    }


def _binding(index: int, nodes: int) -> Job:
    meta = {"name": f"pod-{index:06d}", "annotations": {"gpuslice.io/allocation": _CARDS[:700]}}
    target = {"kind": "Node", "name": f"node-{index % nodes:05d}"}
    return f"/api/v1/namespaces/default/pods/pod-{index:06d}/binding", {"metadata": meta, "target": target}


@contextmanager
def server() -> Iterator[tuple[int, int]]:
    """Run the server as a process; yields its pid and port."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "simulator.apiserver", "--data", folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1]) as process:
            assert process.stdout is not None
            try:
                yield process.pid, json.loads(process.stdout.readline())["port"]
            finally:
                process.terminate()


def _head(method: str, path: str) -> str:
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {_TOKEN}\r\n"


async def _post_all(port: int, jobs: Sequence[Job], connections: int = 4) -> list[float]:
    """POST everything over a few keep-alive connections; returns the latencies in seconds."""
    waiting = iter([(path, json.dumps(body).encode()) for path, body in jobs])
    latencies: list[float] = []

    async def work() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for path, body in waiting:
            began = time.perf_counter()
            head = _head("POST", path) + f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(answer.lower().partition(b"content-length: ")[2].partition(b"\r")[0]))
            assert answer.startswith(b"HTTP/1.1 201"), answer
            latencies.append(time.perf_counter() - began)
        writer.close()

    await asyncio.gather(*(work() for _ in range(connections)))
    return latencies


async def _list(port: int, path: str) -> tuple[float, int]:
    """GET a list; returns seconds and bytes."""
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    writer.write((_head("GET", path) + "Connection: close\r\n\r\n").encode())
    size = 0
    while chunk := await reader.read(2**22):
        size += len(chunk)
    writer.close()
    return time.perf_counter() - began, size


async def _watch(port: int, seen: list[int], index: int, wanted: int) -> None:
    """Count events until all have come; an event cut by two reads is joined again."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    writer.write((_head("GET", "/api/v1/pods?watch=1") + "\r\n").encode())
    mark, rest = b',"object":{"kind"', b""
    while seen[index] < wanted and (chunk := await reader.read(2**20)):
        text = rest + chunk
        seen[index] += text.count(mark)
        rest = text[1 - len(mark) :]
    writer.close()


async def measure(pid: int, port: int, nodes: int, pods: int) -> list[Figure]:
    """Fill the server and time it."""
    await _post_all(port, [_node(index) for index in range(nodes)])
    listed = [await _list(port, "/api/v1/nodes") for _ in range(5)]
    seen = [0] * 5
    watches = [asyncio.create_task(_watch(port, seen, index, 2 * pods)) for index in range(5)]
    began, before = time.perf_counter(), cpu_seconds(pid)
    latencies = await _post_all(port, [_pod(index) for index in range(pods)])
    latencies += await _post_all(port, [_binding(index, nodes) for index in range(pods)])
    wall, cpu = time.perf_counter() - began, cpu_seconds(pid) - before
    await asyncio.wait_for(asyncio.gather(*watches), timeout=60)
    assert seen == [2 * pods] * 5, f"watches saw {seen} of {2 * pods} events"
    whole, _ = await _list(port, "/api/v1/pods")
    by_node, _ = await _list(port, "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-00007")
    return [
        Figure.alone("apiserver_list_nodes", "ms", min(seconds for seconds, _ in listed) * 1e3),
        Figure.alone("apiserver_list_nodes_size", "MB", listed[0][1] / 1e6),
        Figure.alone("apiserver_pods_bound_per_second", "1/s", pods / wall, target=1000),
        Figure.alone("apiserver_pods_bound_per_cpu_second", "1/s", pods / cpu),
        Figure.alone("apiserver_write_p50", "ms", percentile(latencies, 50) * 1e3),
        Figure.alone("apiserver_list_pods", "ms", whole * 1e3),
        Figure.alone("apiserver_list_pods_of_node", "ms", by_node * 1e3),
        Figure.alone("apiserver_rss", "MiB", resident_mib(pid)),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=20_000, help="created and bound under five watches")
    options = parser.parse_args(argv)
    with server() as (pid, port):
        figures = asyncio.run(measure(pid, port, options.nodes, options.pods))
    report(f"Embedded API server, {options.nodes} nodes of 8 cards, {options.pods} pods, 5 watches", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
