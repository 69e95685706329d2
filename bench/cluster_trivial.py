"""The baseline of the cluster benchmark: an extender with the same verbs that decides nothing.

A bare ASGI application on uvicorn, bindings through aiohttp, no watch. All nodes fit (the first K in filter mode, as
ours offers K), all score alike, and the binding is posted as it comes.

Usage: ``python -m bench.cluster_trivial KUBECONFIG PORTS_FILE BEST_NODES``; BEST_NODES 0 means all.
"""

import asyncio
import json
import sys
from pathlib import Path

import aiohttp
import msgspec
from starlette.types import Receive, Scope, Send

from extender.wire import ExtenderArgs, ExtenderBindingArgs, ExtenderBindingResult, args_decoder, binding_decoder
from gpuslice.cluster.config import ClusterConfig, load_cluster_config
from gpuslice.cluster.resources import PODS
from gpuslice.service.listener import open_socket, serve_http
from gpuslice.service.process import run_daemon

CONNECTIONS = 16
_HEADERS = [(b"content-type", b"application/json")]


class TrivialExtender:
    """Three verbs without a thought, as an ASGI application."""

    def __init__(self, config: ClusterConfig, session: aiohttp.ClientSession, best_nodes: int) -> None:
        self._config = config
        self._session = session
        self._best_nodes = best_nodes
        self._verbs = {"/filter": self._filter, "/prioritize": self._prioritize, "/bind": self._bind}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call."""
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        answer = await self._verbs[scope["path"]](body)
        headers = [*_HEADERS, (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _filter(self, body: bytes) -> bytes:
        args: ExtenderArgs = args_decoder.decode(body)
        names = bytes(args.node_names)
        if self._best_nodes:
            names = msgspec.json.encode(msgspec.json.decode(names)[: self._best_nodes])
        return b'{"NodeNames":' + names + b',"FailedNodes":{},"Error":""}'

    async def _prioritize(self, body: bytes) -> bytes:
        args: ExtenderArgs = args_decoder.decode(body)
        names = msgspec.json.decode(bytes(args.node_names), type=list[str])
        return msgspec.json.encode([{"Host": name, "Score": 5} for name in names])

    async def _bind(self, body: bytes) -> bytes:
        args: ExtenderBindingArgs = binding_decoder.decode(body)
        binding = {
            "metadata": {"name": args.pod_name, "uid": args.pod_uid},
            "target": {"kind": "Node", "name": args.node},
        }
        url = self._config.server + PODS.path(args.pod_namespace, args.pod_name, "binding")
        headers = {**await self._config.credentials.headers(), "Content-Type": "application/json"}
        async with self._session.post(url, data=msgspec.json.encode(binding), headers=headers) as reply:
            await reply.read()
            reply.raise_for_status()
        return msgspec.json.encode(ExtenderBindingResult(""))


async def serve(stopping: asyncio.Event) -> None:
    """Serve until told to stop."""
    listening = open_socket("127.0.0.1:0")
    ports = Path(sys.argv[2])
    config = load_cluster_config(Path(sys.argv[1]))
    connector = aiohttp.TCPConnector(limit=CONNECTIONS, ssl=config.tls or True)
    async with aiohttp.ClientSession(connector=connector) as session:
        app = TrivialExtender(config, session, int(sys.argv[3]))

        def started() -> None:
            ports.write_text(json.dumps({"listen": listening.getsockname()[1]}), encoding="ascii")

        await serve_http(app, listening, stopping, on_started=started)


if __name__ == "__main__":
    sys.exit(run_daemon(serve))
