# ruff: noqa: ANN401  a channel's methods take whatever serializer and message the generated stub has
"""Calls a device plugin from a process that does nothing else.

The stub kubelet and the workers of 64 pods share one Python process; what they do meanwhile is not the plugin's time.
So the benchmark's kubelet has its admission calls made here, as they come: ``python -m bench.allocate_caller SOCKET``.

Frames on standard input: lengths of the method's name and of the request (little-endian, 32 bits each), then both.
Frames on standard output: seconds (a double), status code (0: well), length of what follows: the answer, or the error's
text.
"""

import asyncio
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

REQUEST = struct.Struct("<II")
ANSWER = struct.Struct("<dII")
_OPTIONS = (("grpc.default_authority", "localhost"),)


class CallFailed(grpc.RpcError):
    """The plugin answered with an error."""


class Caller:
    """The kubelet's side: hands that process calls once it was started. One call at a time, as admission is."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self.seconds: dict[str, list[float]] = {}
        """Durations by method, as that process saw them."""

    async def start(self) -> None:
        """Start the process."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.allocate_caller", str(self._socket),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip

    async def call(self, method: str, request: bytes) -> bytes:
        """Have one call made; give the raw answer."""
        async with self._turn:
            assert self._process is not None
            sending, receiving = self._process.stdin, self._process.stdout
            assert sending is not None
            assert receiving is not None
            sending.write(REQUEST.pack(len(method), len(request)) + method.encode() + request)
            seconds, code, length = ANSWER.unpack(await receiving.readexactly(ANSWER.size))
            answer = await receiving.readexactly(length)
        if code:
            raise CallFailed(answer.decode())
        self.seconds.setdefault(method.rpartition("/")[2], []).append(seconds)
        return answer

    async def close(self) -> None:
        """End the process."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            await self._process.wait()


class CalledElsewhere:
    """A kubelet's channel to a plugin whose admission calls are made by a :class:`Caller`."""

    def __init__(self, channel: grpc.aio.Channel, caller: Caller) -> None:
        self._channel = channel
        self._caller = caller

    def unary_unary(
        self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **kwargs: Any
    ) -> Callable[..., Any]:
        """Give what makes calls of one method."""
        if not method.endswith(("/Allocate", "/GetPreferredAllocation")):
            made: Callable[..., Any] = self._channel.unary_unary(
                method, request_serializer=request_serializer, response_deserializer=response_deserializer, **kwargs
            )
            return made

        async def made_there(request: Any) -> Any:
            return response_deserializer(await self._caller.call(method, request_serializer(request)))

        return made_there

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)


def main(socket: str) -> None:
    """Make calls until standard input ends."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    with grpc.insecure_channel(f"unix:{socket}", options=_OPTIONS) as channel:
        calls: dict[str, grpc.UnaryUnaryMultiCallable[bytes, bytes]] = {}
        while head := source.read(REQUEST.size):
            name_length, request_length = REQUEST.unpack(head)
            name, request = source.read(name_length).decode(), source.read(request_length)
            if name not in calls:
                calls[name] = channel.unary_unary(name)
            sink.write(_timed(calls[name], request))
            sink.flush()


def _timed(call: "grpc.UnaryUnaryMultiCallable[bytes, bytes]", request: bytes) -> bytes:
    started = time.perf_counter()
    try:
        answer, code = call(request), 0
    except grpc.RpcError as error:
        answer, code = str(error.details()).encode(), int(error.code().value[0])
    return ANSWER.pack(time.perf_counter() - started, code, len(answer)) + answer


if __name__ == "__main__":
    main(sys.argv[1])
