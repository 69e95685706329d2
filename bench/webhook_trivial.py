"""The baseline: a webhook on the same stack that allows everything without reading it.

Usage: ``python -m bench.webhook_trivial CERTIFICATE KEY PORTS_FILE``.
"""

import asyncio
import sys
from pathlib import Path

from fastapi import FastAPI, Request, Response

from gpuslice.service.certificates import ServingCertificate
from gpuslice.service.listener import open_socket, serve_http
from gpuslice.service.process import run_daemon, write_ports

ANSWER = b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":true}}'


async def serve(stopping: asyncio.Event) -> None:
    """Serve until told to stop."""
    certificate = ServingCertificate(Path(sys.argv[1]), Path(sys.argv[2]))
    listening = open_socket("127.0.0.1:0")
    port = int(listening.getsockname()[1])
    app = FastAPI()

    @app.post("/mutate")
    async def mutate(request: Request) -> Response:
        await request.body()
        return Response(ANSWER, media_type="application/json")

    await serve_http(
        app,
        listening,
        stopping,
        tls=certificate.context,
        on_started=lambda: write_ports(Path(sys.argv[3]), {"listen": port}),
    )


if __name__ == "__main__":
    sys.exit(run_daemon(serve))
