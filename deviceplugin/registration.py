"""Keep one resource registered with the kubelet, whatever happens to either side.

    SERVING ──Register──> REGISTERED (a ListAndWatch stream is open) ──stream ended / socket gone──> LOST ─┐
       ^                                                                                                   │
       └────────── end streams, stop the server, new uniquely named socket, back-off with jitter ──────────┘

A plugin is registered exactly while the kubelet has a stream open; the kubelet never reconnects by itself. Facts that
shape the code: the kubelet dials back inside Register, so serving comes first; it removes every socket in the directory
when it starts; the end of an *old* stream disables the *new* registration on kubelets up to 1.35, so the old stream
must have ended before Register; a grpc channel to a socket that was once refused keeps its back-off, so each attempt
has its own channel.
"""

import asyncio
import contextlib
import os
import random
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
import structlog

from deviceplugin.backend import Backend
from deviceplugin.beat import next_beat
from deviceplugin.metrics import PluginMetrics
from deviceplugin.servicer import OPTIONS, DevicePluginServicer, Streams
from deviceplugin.watchdir import DirectoryWatch
from gpuslice.devices.errors import BadConfiguration
from gpuslice.proto.deviceplugin.v1beta1 import api_pb2 as pb
from gpuslice.proto.deviceplugin.v1beta1 import api_pb2_grpc as rpc

log = structlog.get_logger()

API_VERSION = "v1beta1"
KUBELET_SOCKET = "kubelet.sock"
# sun_path of a Unix socket address.
_LONGEST_SOCKET_PATH = 107
_REGISTER_SECONDS = 12.0
_STREAM_OPENS_SECONDS = 5.0
_STOP_SECONDS = 1.0
_POLL_SECONDS = 5.0
_BACKOFF_START_SECONDS = 0.1
_BACKOFF_CAP_SECONDS = 10.0
_CHANNEL_OPTIONS = (("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1))
_incarnations = iter(range(1, 1 << 62))


def socket_prefix(resource: str) -> str:
    """Return the beginning of the names of this resource's sockets."""
    return f"gs-{re.sub(r'[^a-z0-9]+', '-', resource.lower())}-"


@dataclass(slots=True)
class _Incarnation:
    """One server on one socket, from serving to the end of its streams."""

    server: grpc.aio.Server
    socket: Path
    inode: tuple[int, int]
    streams: Streams
    kubelet: tuple[int, int, int]


class Registrar:
    """Owns the socket and the registration of one backend. Run `run` as a task; cancel it to stop cleanly."""

    def __init__(
        self,
        backend: Backend,
        directory: Path,
        metrics: PluginMetrics,
        disconnected: Callable[[], None] = lambda: None,
    ) -> None:
        longest = directory / f"{socket_prefix(backend.resource)}4194304-99999.sock"
        if len(bytes(longest)) > _LONGEST_SOCKET_PATH:
            raise BadConfiguration(
                "command line", "--device-plugin-dir", f"{longest} is longer than {_LONGEST_SOCKET_PATH} bytes",
                "use a shorter directory",
            )  # fmt: skip
        self._backend = backend
        self._directory = directory
        self._metrics = metrics
        self._disconnected = disconnected
        self._wake = asyncio.Event()
        self.registered = asyncio.Event()
        self.registrations = 0

    async def run(self) -> None:
        """Register and stay registered until cancelled; never gives up."""
        watch = DirectoryWatch(self._directory, self._wake.set, suffix=".sock")
        failures, refused_by = 0, None
        try:
            while True:
                watch.ensure()
                incarnation = await self._attempt()
                if incarnation is None:
                    # A kubelet that has just come may have its socket and not listen yet: soon, it admits its pods.
                    kubelet = _identity(self._directory / KUBELET_SOCKET)
                    failures = failures + 1 if kubelet == refused_by else 1
                    refused_by = kubelet
                    await self._pause(failures, watch)
                    continue
                failures = 0
                try:
                    await self._until_lost(incarnation, watch)
                finally:
                    self.registered.clear()
                    self._metrics.registered.labels(self._backend.resource).set(0)
                    await self._end(incarnation)
        finally:
            watch.close()

    async def _end(self, incarnation: _Incarnation) -> None:
        """End the streams, so that another process may register now, then let running calls finish."""
        await _end_streams(incarnation)
        self._disconnected()
        await _stop(incarnation)

    async def _pause(self, failures: int, watch: DirectoryWatch) -> None:
        """Wait before the next attempt; a change in the directory ends the wait."""
        seconds = min(_BACKOFF_START_SECONDS * 2 ** min(failures - 1, 10), _BACKOFF_CAP_SECONDS)
        seconds *= 0.5 + random.random()  # noqa: S311  jitter needs no cryptography
        watch.ensure()
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            # Not wait_for: on Python 3.11 it can swallow a cancellation.
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    async def _attempt(self) -> _Incarnation | None:
        kubelet = _identity(self._directory / KUBELET_SOCKET)
        if kubelet is None:
            return None
        incarnation: _Incarnation | None = None
        try:
            incarnation = await self._serve(kubelet)
            await self._register(incarnation.socket.name)
            async with asyncio.timeout(_STREAM_OPENS_SECONDS):
                await incarnation.streams.opened.wait()
        except (grpc.RpcError, OSError, RuntimeError, TimeoutError) as error:
            self._metrics.registration_failures.labels(self._backend.resource).inc()
            log.warning("registration_failed", resource=self._backend.resource, error=_describe(error))
            if incarnation is not None:
                await _stop(incarnation)
            return None
        except asyncio.CancelledError:
            if incarnation is not None:
                await _stop(incarnation)
            raise
        self.registrations += 1
        self._metrics.registrations.labels(self._backend.resource).inc()
        self._metrics.registered.labels(self._backend.resource).set(1)
        self.registered.set()
        log.info("registered", resource=self._backend.resource, socket=incarnation.socket.name)
        return incarnation

    async def _serve(self, kubelet: tuple[int, int, int]) -> _Incarnation:
        path = self._directory / f"{socket_prefix(self._backend.resource)}{os.getpid()}-{next(_incarnations)}.sock"
        streams = Streams()
        server = grpc.aio.server()
        servicer = DevicePluginServicer(self._backend, streams, self._metrics)
        rpc.add_DevicePluginServicer_to_server(servicer, server)
        # The socket's mode comes from the umask; nobody but root has business here.
        umask = os.umask(0o177)
        try:
            server.add_insecure_port(f"unix:{path}")
        finally:
            os.umask(umask)
        await server.start()
        status = path.stat()
        return _Incarnation(server, path, (status.st_dev, status.st_ino), streams, kubelet)

    async def _register(self, endpoint: str) -> None:
        request = pb.RegisterRequest(
            version=API_VERSION, endpoint=endpoint, resource_name=self._backend.resource, options=OPTIONS
        )
        target = f"unix:{self._directory / KUBELET_SOCKET}"
        async with grpc.aio.insecure_channel(target, options=_CHANNEL_OPTIONS) as channel:
            await rpc.RegistrationStub(channel).Register(request, timeout=_REGISTER_SECONDS)

    async def _until_lost(self, incarnation: _Incarnation, watch: DirectoryWatch) -> None:
        """Return when the registration is gone: the stream ended, or one of the two sockets is not the same."""
        closed = asyncio.ensure_future(incarnation.streams.all_closed.wait())
        clock = asyncio.get_running_loop().time
        try:
            while True:
                self._wake.clear()
                watch.ensure(self._directory / KUBELET_SOCKET, incarnation.socket)
                if reason := self._lost(incarnation):
                    log.info("registration_lost", resource=self._backend.resource, reason=reason)
                    return
                woken = asyncio.ensure_future(self._wake.wait())
                patience = next_beat(clock(), _POLL_SECONDS) - clock()
                await asyncio.wait({closed, woken}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                woken.cancel()
        finally:
            closed.cancel()

    def _lost(self, incarnation: _Incarnation) -> str:
        if not incarnation.streams.open:
            return "the kubelet closed the stream"
        kubelet = _identity(self._directory / KUBELET_SOCKET)
        if kubelet is not None and kubelet != incarnation.kubelet:
            return "the kubelet restarted"
        own = _identity(incarnation.socket)
        if own is None or own[:2] != incarnation.inode:
            return "our socket is gone"
        return ""


async def _end_streams(incarnation: _Incarnation) -> None:
    incarnation.streams.end()
    if incarnation.streams.open:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await incarnation.streams.all_closed.wait()


async def _stop(incarnation: _Incarnation) -> None:
    """End the streams first, so that the kubelet sees it before anything else, then the server; calls may finish."""
    await _end_streams(incarnation)
    await incarnation.server.stop(_STOP_SECONDS)
    own = _identity(incarnation.socket)
    if own is not None and own[:2] == incarnation.inode:
        incarnation.socket.unlink(missing_ok=True)


def remove_stale_sockets(directory: Path, resource: str) -> None:
    """Remove sockets that a killed process of this resource left behind. Call only while holding the node's lock."""
    for path in directory.glob(f"{socket_prefix(resource)}*.sock"):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _describe(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__
