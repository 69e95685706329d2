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
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
Query = Mapping[str, str]


class BadAnswer(Exception):
    """The other side does not speak HTTP/1.1, or ended in the middle of it."""


class ApiTransport(Protocol):
    """An open door to one API server, an async context manager.

    :class:`gpuslice.cluster.transport.Transport` is one; tests put others in front of it.
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
