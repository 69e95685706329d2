"""The baseline of the extender's benchmarks: an extender with the same verbs that decides nothing.

FastAPI on uvicorn, uvloop and httptools, raw bodies read and written by msgspec, bindings through aiohttp, no watch:
what somebody who knows how writes in an afternoon. All nodes fit (the first K in filter mode,
as ours offers K), all score alike, and the binding is posted as it comes. ``--bare`` leaves FastAPI out: the same three
functions as an ASGI application, to see what the framework takes of the difference.

Usage: ``python -m bench.trivial KUBECONFIG PORTS_FILE [--best-nodes K] [--bare]``; without K all nodes are offered.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import aiohttp
import msgspec
from fastapi import FastAPI, Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from extender.wire import ExtenderBindingArgs, ExtenderBindingResult, binding_decoder
from gpuslice.cluster.config import ClusterConfig, load_cluster_config
from gpuslice.cluster.resources import PODS
from gpuslice.service.listener import open_socket, serve_http
from gpuslice.service.process import run_daemon

CONNECTIONS = 16


class Answer(NamedTuple):
    """A body, and the seconds of it that were spent waiting for the API server."""

    body: bytes
    api_seconds: float = 0.0

    @property
    def headers(self) -> dict[str, str]:
        """As our own extender says it."""
        return {"server-timing": f"api;dur={self.api_seconds * 1000:.3f}"} if self.api_seconds else {}


Verb = Callable[[bytes], Awaitable[Answer]]


class Args(msgspec.Struct, rename="pascal"):
    """The node names of ExtenderArgs."""

    node_names: list[str]


args_decoder = msgspec.json.Decoder(Args)


class Trivial:
    """Three verbs without a thought."""

    def __init__(self, config: ClusterConfig, session: aiohttp.ClientSession, best_nodes: int | None) -> None:
        self._config = config
        self._session = session
        self._best_nodes = best_nodes
        self.verbs: Mapping[str, Verb] = {
            "/filter": self._filter,
            "/prioritize": self._prioritize,
            "/bind": self._bind,
        }

    async def _filter(self, body: bytes) -> Answer:
        names = args_decoder.decode(body).node_names[: self._best_nodes]
        return Answer(msgspec.json.encode({"NodeNames": names, "FailedNodes": {}, "Error": ""}))

    async def _prioritize(self, body: bytes) -> Answer:
        names = args_decoder.decode(body).node_names
        return Answer(msgspec.json.encode([{"Host": name, "Score": 5} for name in names]))

    async def _bind(self, body: bytes) -> Answer:
        args: ExtenderBindingArgs = binding_decoder.decode(body)
        binding = {
            "metadata": {"name": args.pod_name, "uid": args.pod_uid},
            "target": {"kind": "Node", "name": args.node},
        }
        url = self._config.server + PODS.path(args.pod_namespace, args.pod_name, "binding")
        headers = {**await self._config.credentials.headers(), "Content-Type": "application/json"}
        data = msgspec.json.encode(binding)
        started = time.perf_counter()
        async with self._session.post(url, data=data, headers=headers) as reply:
            await reply.read()
            reply.raise_for_status()
        return Answer(msgspec.json.encode(ExtenderBindingResult("")), time.perf_counter() - started)


def fastapi_app(verbs: Mapping[str, Verb]) -> ASGIApp:
    """Put the verbs into FastAPI."""

    def operation(verb: Verb) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            found = await verb(await request.body())
            return Response(found.body, media_type="application/json", headers=found.headers)

        return answer

    app = FastAPI()
    for path, verb in verbs.items():
        app.add_api_route(path, operation(verb), methods=["POST"])
    return app


def bare_app(verbs: Mapping[str, Verb]) -> ASGIApp:
    """Put the verbs into nothing."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        found = await verbs[scope["path"]](body)
        headers = {"content-type": "application/json", "content-length": str(len(found.body)), **found.headers}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        await send({"type": "http.response.body", "body": found.body})

    return app


async def serve(options: argparse.Namespace, stopping: asyncio.Event) -> None:
    """Serve until told to stop."""
    listening = open_socket("127.0.0.1:0")
    config = load_cluster_config(options.kubeconfig)
    connector = aiohttp.TCPConnector(limit=CONNECTIONS, ssl=config.tls or True)
    async with aiohttp.ClientSession(connector=connector) as session:
        verbs = Trivial(config, session, options.best_nodes).verbs
        app = bare_app(verbs) if options.bare else fastapi_app(verbs)

        def started() -> None:
            options.ports_file.write_text(json.dumps({"listen": listening.getsockname()[1]}), encoding="ascii")

        await serve_http(app, listening, stopping, on_started=started)


def main() -> int:
    """Serve as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("ports_file", type=Path)
    parser.add_argument("--best-nodes", type=int)
    parser.add_argument("--bare", action="store_true")
    return run_daemon(partial(serve, parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
