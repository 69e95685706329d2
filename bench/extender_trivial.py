"""The baseline: an extender with the same verbs that decides nothing.

FastAPI on uvicorn and uvloop, bindings through aiohttp, no watch. Same answers in shape: all nodes fit, all score
alike, the binding is posted as it comes.

Usage: ``python -m bench.extender_trivial API_URL PORTS_FILE``.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import aiohttp
import msgspec
from fastapi import FastAPI, Request, Response

from gpuslice.service.listener import open_socket, serve_http
from gpuslice.service.process import run_daemon


class Args(msgspec.Struct, rename="pascal"):
    """The node names of ExtenderArgs."""

    node_names: list[str]


class Bind(msgspec.Struct, rename="pascal"):
    """ExtenderBindingArgs."""

    pod_name: str
    pod_namespace: str
    node: str


def build_app(api: str, session: aiohttp.ClientSession) -> FastAPI:
    """Three verbs."""
    app = FastAPI()
    args, binds = msgspec.json.Decoder(Args), msgspec.json.Decoder(Bind)

    def answer(body: object) -> Response:
        return Response(msgspec.json.encode(body), media_type="application/json")

    @app.post("/filter")
    async def filter_nodes(request: Request) -> Response:
        names = args.decode(await request.body()).node_names
        return answer({"NodeNames": names, "FailedNodes": {}, "Error": ""})

    @app.post("/prioritize")
    async def prioritize(request: Request) -> Response:
        names = args.decode(await request.body()).node_names
        return answer([{"Host": name, "Score": 5} for name in names])

    @app.post("/bind")
    async def bind(request: Request) -> Response:
        wanted = binds.decode(await request.body())
        binding = {"metadata": {"name": wanted.pod_name}, "target": {"name": wanted.node}}
        url = f"{api}/api/v1/namespaces/{wanted.pod_namespace}/pods/{wanted.pod_name}/binding"
        async with session.post(url, data=msgspec.json.encode(binding)) as reply:
            await reply.read()
        return answer({"Error": ""})

    return app


async def serve(stopping: asyncio.Event) -> None:
    """Serve until told to stop."""
    listening = open_socket("127.0.0.1:0")
    ports = {"listen": listening.getsockname()[1], "pid": os.getpid()}
    async with aiohttp.ClientSession() as session:
        app = build_app(sys.argv[1], session)

        def started() -> None:
            Path(sys.argv[2]).write_text(json.dumps(ports), encoding="ascii")

        await serve_http(app, listening, stopping, on_started=started)


if __name__ == "__main__":
    sys.exit(run_daemon(serve))
