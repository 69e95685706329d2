"""The extender as a process of its own, for tests that kill and pause it."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from simulator.apiserver.server import ApiServer


class ExtenderProcess:
    """One running extender."""

    def __init__(
        self, process: asyncio.subprocess.Process, ports: dict[str, int], session: aiohttp.ClientSession
    ) -> None:
        self.sent = asyncio.Event()
        """A call has left for the process since somebody cleared this; the process need not have read it."""
        self.process = process
        self.ports = ports
        self._session = session

    async def post(self, verb: str, body: object) -> tuple[int, dict[str, Any]]:
        url = f"http://127.0.0.1:{self.ports['listen']}/{verb}"
        asking = self._session.post(url, data=msgspec.json.encode(body), trace_request_ctx=self.sent)
        async with asking as answer:
            return answer.status, msgspec.json.decode(await answer.read())

    async def bind(self, pod: dict[str, Any], node: str) -> tuple[int, str]:
        meta = pod["metadata"]
        args = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
        status, answer = await self.post("bind", args)
        return status, str(answer["Error"])

    async def filter(self, pod: dict[str, Any], *names: str) -> tuple[int, dict[str, Any]]:
        return await self.post("filter", {"Pod": pod, "Nodes": None, "NodeNames": list(names)})

    async def is_ready(self) -> bool:
        url = f"http://127.0.0.1:{self.ports['metrics']}/readyz"
        async with self._session.get(url) as answer:
            return answer.status == 200

    async def until_ready(self, *, seconds: float = 20.0) -> None:
        async with asyncio.timeout(seconds):
            while not await self.is_ready():  # noqa: ASYNC110  another process has no event to give us
                await asyncio.sleep(0.02)

    def kill(self) -> None:
        self.process.kill()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    async def stop(self) -> int:
        if self.process.returncode is None:
            self.process.terminate()
        return await asyncio.wait_for(self.process.wait(), 10)


@asynccontextmanager
async def extender_process(server: ApiServer, folder: Path, name: str, *flags: str) -> AsyncIterator[ExtenderProcess]:
    """Run ``python -m extender`` until the block ends."""
    ports_file = folder / f"{name}.json"
    ports_file.unlink(missing_ok=True)
    arguments = ["--kubeconfig", str(server.kubeconfig()), "--listen", "127.0.0.1:0", "--metrics-host", "127.0.0.1"]
    arguments += ["--ports-file", str(ports_file), "--namespace", "default", "--identity", name]
    arguments += ["--log-level", "warning", "--node-policy", "binpack", "--card-policy", "binpack", *flags]
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "extender", *arguments)
    tracing = aiohttp.TraceConfig()
    tracing.on_request_chunk_sent.append(_note_sent)
    async with aiohttp.ClientSession(trace_configs=[tracing]) as session:
        try:
            async with asyncio.timeout(20):
                while not ports_file.exists():  # noqa: ASYNC110  another process has no event to give us
                    await asyncio.sleep(0.02)
            ports = json.loads(ports_file.read_text(encoding="utf-8"))
            yield ExtenderProcess(process, ports, session)
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            await process.wait()


async def _note_sent(_session: aiohttp.ClientSession, context: Any, _params: object) -> None:
    context.trace_request_ctx.set()
