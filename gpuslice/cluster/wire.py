"""What calls on the API server are made of: raw bytes in, raw bytes out, and what may carry them."""

import socket
from collections.abc import AsyncGenerator, Mapping
from typing import Protocol, Self

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
JSON = "application/json"

SILENCE_SECONDS = 90.0
"""A watch without a single byte for this long is taken for dead: the API server sends a bookmark every minute."""
MAX_LINE_BYTES = 64 * 1024 * 1024
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
Query = Mapping[str, str]


class BadAnswer(Exception):
    """The other side does not speak HTTP/1.1, or ended in the middle of it."""


class ApiTransport(Protocol):
    """An open door to one API server, an async context manager.

    There are two (see :mod:`gpuslice.cluster.door`): :class:`gpuslice.cluster.transport.Transport`, on aiohttp, and
    :class:`gpuslice.cluster.lean.LeanTransport`.
    """

    async def __aenter__(self) -> Self:
        """Open."""

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        timeout_seconds: float = 10.0,
    ) -> bytes:
        """Send one request and give the body of its answer.

        Raises:
            ApiError: the API server refused; the subclass says how.
            Unreachable: no answer within ``timeout_seconds``, or none at all.
        """

    def stream(
        self, path: str, *, query: Query, silence_seconds: float = SILENCE_SECONDS
    ) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a watch until the API server ends it.

        Raises:
            ApiError: the watch was refused.
            Unreachable: it broke, or was silent for ``silence_seconds``.
        """


def notice_silence(opened: socket.socket) -> None:
    """Let the kernel notice a TCP peer that vanished without a word within about half a minute."""
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        opened.setsockopt(socket.IPPROTO_TCP, option, value)


class LineSplitter:
    """Splits a body that comes in pieces into lines of any length up to 64 MiB; empty lines are left out."""

    def __init__(self) -> None:
        self._begun = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Give the lines that ``data`` completes.

        Raises:
            BadAnswer: a line is longer.
        """
        *ends, rest = data.split(b"\n")
        if ends and self._begun:
            ends[0] = bytes(self._begun + ends[0])
            self._begun.clear()
        self._begun += rest
        if len(self._begun) > MAX_LINE_BYTES:
            raise BadAnswer("a line longer than 64 MiB")
        return [line for line in ends if line]
