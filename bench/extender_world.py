"""The world of the extender's benchmark: an API server that only serves canned lists, watches and bindings.

It is a process of its own and does as little as possible, so that what is measured is the extender. Nodes have 8 cards
of 10 slices; pods follow the request mix of the openb trace and fill half of the cards. For each binding the watch
brings the bound pod, and the oldest pod is deleted: the cluster stays half full, and the extender pays for its watch. A
binding without an allocation is the baseline's: it costs this process the same, and the watch tells nothing of it.

Usage: ``python -m bench.extender_world NODES PODS PORTS_FILE``.
"""

import asyncio
import json
import random
import socket
import sys
from pathlib import Path
from typing import Any, cast

import httptools
import uvloop

from gpuslice.devices.allocation import PodAllocation, SliceShare
from gpuslice.devices.annotations import ALLOCATION, CARDS, encode_allocation, encode_cards
from gpuslice.devices.inventory import Card, NodeCards, slice_id

BINDING_SECONDS = 0.002
"""A real API server takes as long for a binding, and more when it is busy."""
CARDS_PER_NODE = 8
SLOTS = 10
CARD_MIB = 81_920
# Thousandths of a card and their frequency in the openb trace: the eight commonest shares, and whole cards.
MIX = ((810, 1078), (470, 750), (320, 328), (650, 253), (230, 140), (460, 128), (590, 75), (160, 74), (1000, 3911))


def share_of(rng: random.Random) -> tuple[int, int]:
    """Draw a request: MiB and percent of one card."""
    milli = rng.choices([milli for milli, _ in MIX], [weight for _, weight in MIX])[0]
    return CARD_MIB * milli // 1000, milli // 10


def node_object(index: int) -> dict[str, Any]:
    """One node with 8 NVSwitch cards."""
    name = f"node-{index:05d}"
    cards = tuple(
        Card(
            f"GPU-{index:08x}-0000-4000-8000-{n:012x}",
            CARD_MIB,
            SLOTS,
            model="NVIDIA A100-SXM4-80GB",
            index=n,
            numa=n // 4,
        )
        for n in range(CARDS_PER_NODE)
    )
    links = tuple(tuple(0 if a == b else 1200 for b in range(CARDS_PER_NODE)) for a in range(CARDS_PER_NODE))
    offered = {"cpu": "128", "memory": "1024Gi", "nvidia.com/gpu": str(CARDS_PER_NODE * SLOTS)}
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "annotations": {CARDS: encode_cards(NodeCards(name, cards, links))},
        },
        "status": {"capacity": offered, "allocatable": offered},
    }


def pod_object(number: int, mib: int, cores: int) -> dict[str, Any]:
    """One pod as a user and the webhook leave it."""
    limits = {
        "nvidia.com/gpu": "1",
        "nvidia.com/gpumem": str(mib),
        "nvidia.com/gpucores": str(cores),
        "cpu": "4",
        "memory": "16Gi",
    }
    environment = [{"name": f"SETTING_{n}", "value": "x" * 40} for n in range(20)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"pod-{number}",
            "namespace": f"team-{number % 20}",
            "uid": f"00000000-0000-4000-8000-{number:012x}",
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": "train", "team": f"team-{number % 20}"},
        },
        "spec": {
            "schedulerName": "gpuslice-scheduler",
            "priority": 0,
            "containers": [
                {
                    "name": "main",
                    "image": "example.org/train:1",
                    "env": environment,
                    "resources": {"limits": limits, "requests": limits},
                }
            ],
        },
        "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]},
    }


def bound(pod: dict[str, Any], node: str, allocation: str) -> dict[str, Any]:
    """The pod after its binding."""
    metadata = pod["metadata"] | {"annotations": {ALLOCATION: allocation}}
    return pod | {"metadata": metadata, "spec": pod["spec"] | {"nodeName": node}, "status": {"phase": "Running"}}


def populate(nodes: int, pods: int, seed: int = 1) -> list[dict[str, Any]]:
    """Place pods at random until ``pods`` are placed or half of all compute is promised."""
    rng = random.Random(seed)
    free = [[100] * CARDS_PER_NODE for _ in range(nodes)]
    slot = [[0] * CARDS_PER_NODE for _ in range(nodes)]
    placed: list[dict[str, Any]] = []
    budget = nodes * CARDS_PER_NODE * 50
    while len(placed) < pods and budget > 0:
        mib, cores = share_of(rng)
        if pods - len(placed) > budget // 50:
            mib, cores = CARD_MIB // 10, 10
        index = rng.randrange(nodes)
        card = next((n for n in range(CARDS_PER_NODE) if free[index][n] >= cores and slot[index][n] < SLOTS), None)
        if card is None:
            continue
        free[index][card] -= cores
        budget -= cores
        uuid = f"GPU-{index:08x}-0000-4000-8000-{card:012x}"
        share = SliceShare(slice_id(uuid, slot[index][card]), mib, cores)
        slot[index][card] += 1
        name = f"node-{index:05d}"
        allocation = encode_allocation(PodAllocation(name, {"main": (share,)}))
        placed.append(bound(pod_object(len(placed), mib, cores), name, allocation))
    return placed


class World:
    """The canned objects and the open watches."""

    def __init__(self, nodes: int, pods: int) -> None:
        self.pages: dict[str, list[bytes]] = {
            "/api/v1/nodes": _pages([node_object(index) for index in range(nodes)]),
        }
        placed = populate(nodes, pods)
        self.pages["/api/v1/pods"] = _pages(placed)
        self.oldest = placed
        self.next_deleted = 0
        self.version = 10
        self.watches: dict[str, list[asyncio.Transport]] = {"/api/v1/nodes": [], "/api/v1/pods": []}
        self.known: dict[str, dict[str, Any]] = {}

    def bind(self, body: bytes) -> None:
        """Show the bound pod to the watch, and delete the oldest pod of all."""
        binding = json.loads(body)
        metadata = binding["metadata"]
        number = int(metadata["name"].rpartition("-")[2])
        pod = pod_object(number, 0, 0)
        allocation = metadata.get("annotations", {}).get(ALLOCATION, "")
        found = bound(pod, binding["target"]["name"], allocation)
        lines = [self.line("MODIFIED", found), self.line("DELETED", self.oldest[self.next_deleted])]
        if allocation:
            self.oldest.append(found)
            self.next_deleted += 1
            self.tell(lines)

    def line(self, kind: str, pod: dict[str, Any]) -> bytes:
        """Make a line of a watch."""
        self.version += 1
        pod["metadata"]["resourceVersion"] = str(self.version)
        return json.dumps({"type": kind, "object": pod}, separators=(",", ":")).encode() + b"\n"

    def tell(self, lines: list[bytes]) -> None:
        """Send watch events."""
        for transport in self.watches["/api/v1/pods"]:
            for line in lines:
                transport.write(b"%x\r\n" % len(line) + line + b"\r\n")


def _pages(items: list[dict[str, Any]], size: int = 500) -> list[bytes]:
    chunks = [items[at : at + size] for at in range(0, len(items), size)] or [[]]
    last = len(chunks) - 1
    return [
        json.dumps(
            {"metadata": {"resourceVersion": "10", "continue": "" if n == last else str(n + 1)}, "items": chunk}
        ).encode()
        for n, chunk in enumerate(chunks)
    ]


class Connection(asyncio.Protocol):
    """HTTP/1.1, just enough."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._url = b""
        self._body = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; uvloop's is no asyncio.Transport, but does the same."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio's name
        """Forget a watch."""
        for watches in self._world.watches.values():
            if self._transport in watches:
                watches.remove(self._transport)

    def data_received(self, data: bytes) -> None:
        """Parse."""
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        """Note path and query."""
        self._url = url

    def on_body(self, body: bytes) -> None:
        """Collect the body."""
        self._body += body

    def on_message_complete(self) -> None:
        """Answer."""
        path, _, query = self._url.decode().partition("?")
        if path.endswith("/binding"):
            asyncio.get_running_loop().call_later(BINDING_SECONDS, self._bound, bytes(self._body))
        elif "watch=true" in query:
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            self._transport.write(head)
            self._world.watches.setdefault(path, []).append(self._transport)
        elif path in self._world.pages:
            token = next((part[9:] for part in query.split("&") if part.startswith("continue=")), "")
            self._reply(self._world.pages[path][int(token or 0)], 200)
        else:
            self._reply(b'{"kind":"Status","metadata":{},"items":[]}', 201)
        self._body.clear()

    def _bound(self, binding: bytes) -> None:
        self._reply(b'{"kind":"Status","status":"Success"}', 201)
        self._world.bind(binding)

    def _reply(self, body: bytes, status: int) -> None:
        head = b"HTTP/1.1 %d OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
        self._transport.write(head + body)


async def serve(nodes: int, pods: int, ports_file: Path) -> None:
    """Serve until the process is ended."""
    world = World(nodes, pods)
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(world), "127.0.0.1", 0, family=socket.AF_INET
    )
    port = server.sockets[0].getsockname()[1]
    temporary = ports_file.with_suffix(".new")
    temporary.write_text(json.dumps({"listen": port, "pods": len(world.oldest)}), encoding="ascii")
    temporary.replace(ports_file)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
