"""One write for each answer: uvicorn writes head and body apart, which costs a system call and a packet each.

Small calls are most of what our daemons serve, and a sixth of the extender's time went into those writes.
"""

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class CorkedTransport:
    """Gathers what is written within one step of the event loop, and writes it at the end of the step."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._gathered: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Write soon."""
        if not self._gathered:
            self._loop.call_soon(self.flush)
        self._gathered.append(data)

    def flush(self) -> None:
        """Write what was gathered."""
        if self._gathered:
            gathered, self._gathered = self._gathered, []
            self._transport.write(gathered[0] if len(gathered) == 1 else b"".join(gathered))

    def close(self) -> None:
        """Close after everything was written."""
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  everything else is the transport's own
        return getattr(self._transport, name)


class CorkedHttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol on a corked transport."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve a connection."""
        corked = CorkedTransport(cast("asyncio.Transport", transport))
        super().connection_made(cast("asyncio.Transport", corked))
