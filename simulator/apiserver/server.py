"""The embedded API server as a thing to start: in this event loop, in a thread, or as a process."""

import asyncio
import concurrent.futures
import random
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Self, TypeVar

import uvloop

from simulator.apiserver import certificates, identity, kubeconfig, wire, writes
from simulator.apiserver.admission import Chain
from simulator.apiserver.calls import Call, State, utc_now
from simulator.apiserver.controllers import Controllers
from simulator.apiserver.failures import Object, StatusError, bad_request, not_found
from simulator.apiserver.faults import Faults
from simulator.apiserver.handlers import Api
from simulator.apiserver.identity import ADMIN, Tokens, User
from simulator.apiserver.paths import Target
from simulator.apiserver.resources import Registry
from simulator.apiserver.store import Store
from simulator.apiserver.watches import BOOKMARK_SECONDS, Watches

T = TypeVar("T")

FIRST_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")


@dataclass(frozen=True, slots=True)
class Options:
    """How a server behaves."""

    host: str = "127.0.0.1"
    port: int = 0
    """0 takes a free port."""
    tls: bool = False
    data: Path | None = None
    """Folder for certificate and kubeconfigs; a temporary one by default."""
    users: tuple[User, ...] = ()
    """More tokens than `identity.ADMIN`."""
    anonymous: bool = False
    """Serve requests without a token as system:anonymous instead of 401."""
    history: int = 20_000
    """Changes remembered per type; a watch from before gets 410."""
    bookmark_seconds: float = BOOKMARK_SECONDS
    gzip: bool = True
    clock: Callable[[], datetime] = utc_now
    seed: int | None = None
    """Fixes UIDs and generated names."""
    namespaces: tuple[str, ...] = FIRST_NAMESPACES
    services: Mapping[str, str] = field(default_factory=dict)
    """Where webhooks' services answer: `namespace/name` or `namespace/name:port` -> `host:port`."""


class ApiServer:
    """A running server. Its methods belong to the event loop that runs it; see ServerThread for other threads."""

    def __init__(self, options: Options, data: Path) -> None:
        self.options = options
        self.data = data
        self.state = State(Store(history=options.history), Registry(), options.clock, random.Random(options.seed))
        self.admission = Chain(self.state, options.services)
        self.state.admission = self.admission
        self.state.after_write = Controllers(self.state).after_write
        self.tokens = Tokens((ADMIN, *options.users), anonymous=options.anonymous)
        self.faults = Faults()
        self.watches = Watches(self.state, bookmark_seconds=options.bookmark_seconds)
        self.url = ""
        self.ca_pem: bytes | None = None
        self._live: set[wire.Connection] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen; `url` is set afterwards."""
        for name in self.options.namespaces:
            await self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        tls = None
        if self.options.tls:
            serving = certificates.make_serving(self.data, self.options.host)
            self.ca_pem, tls = serving.ca_pem, serving.ssl_context()
        api = Api(self.state, self.tokens, self.faults, self.watches, gzip=self.options.gzip)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: wire.Connection(api.handle, self._live), self.options.host, self.options.port, ssl=tls, backlog=1024
        )
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://{self.options.host}:{port}"

    async def stop(self) -> None:
        """Stop listening and cut every connection."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._live):
            connection.cut()
        await self.admission.close()
        await asyncio.sleep(0)
        if self._server is not None:
            await self._server.wait_closed()

    def kubeconfig(self, user: User = ADMIN, path: Path | None = None) -> Path:
        """Write a kubeconfig for a user (its token is accepted from then on)."""
        self.tokens.add(user)
        where = path or self.data / f"{user.name.replace(':', '_')}.kubeconfig"
        return kubeconfig.write_kubeconfig(where, server_url=self.url, user=user, ca_pem=self.ca_pem)

    def drop_watches(self, plural: str = "") -> int:
        """Cut open watches in the middle (of one type, or all); returns how many."""
        found = [watch for watch in self.watches.open() if not plural or watch.resource.plural == plural]
        for watch in found:
            watch.abort()
        return len(found)

    def expire_watches(self, plural: str = "") -> int:
        """End open watches with a 410 ERROR event and forget all history, so that clients must list again."""
        self.compact(plural)
        found = [watch for watch in self.watches.open() if not plural or watch.resource.plural == plural]
        error = StatusError(410, "Expired", f"too old resource version: 0 ({self.state.store.revision})")
        for watch in found:
            watch.fail(error)
        return len(found)

    def compact(self, plural: str = "") -> None:
        """Forget history: a watch or exact list from before now gets 410."""
        self.state.store.revision += 1
        for collection in self.state.store.collections():
            if not plural or collection.storage[1] == plural:
                collection.compact(self.state.store.revision)

    def cut_connections(self, user: str = "") -> None:
        """Drop every connection (with a partition rule in `faults`, a network failure)."""
        del user
        for connection in list(self._live):
            connection.cut()

    def _call(self, api_version: str, kind: str, namespace: str, name: str) -> Call:
        resource = self.state.registry.by_kind(api_version, kind)
        if resource is None:
            raise bad_request(f"no type {kind} in {api_version}")
        group = resource.group
        target = Target(group, resource.version, resource.plural, namespace if resource.namespaced else "", name)
        return Call(resource, target, ADMIN.name, ADMIN.groups)

    async def create(self, obj: Object) -> Object:
        """Create an object as the admin, without HTTP; returns it as stored."""
        meta = obj.get("metadata") or {}
        call = self._call(obj["apiVersion"], obj["kind"], meta.get("namespace") or "default", "")
        return await writes.create(self.state, call, obj)

    async def apply(self, obj: Object) -> Object:
        """Replace an object (or create it) as the admin, without HTTP; status included."""
        meta = obj["metadata"]
        call = self._call(obj["apiVersion"], obj["kind"], meta.get("namespace") or "default", meta["name"])
        if self.state.store.get(call.storage, call.namespace, call.name) is None:
            return await writes.create(self.state, call, obj)
        found, _ = await writes.update(self.state, call, writes.replacement(obj))
        return found

    def get(self, api_version: str, kind: str, name: str, namespace: str = "default") -> Object:
        """Return an object.

        Raises:
            StatusError: 404.
        """
        call = self._call(api_version, kind, namespace, name)
        entry = self.state.store.get(call.storage, call.namespace, name)
        if entry is None:
            raise not_found(call.resource.plural, call.resource.group, name)
        return call.show(entry)

    def list(self, api_version: str, kind: str, namespace: str = "") -> list[Object]:
        """Return all objects of a type, in one namespace or all."""
        call = self._call(api_version, kind, namespace, "")
        entries = self.state.store.collection(call.storage).entries.values()
        return [call.show(entry) for entry in entries if not namespace or entry.namespace == namespace]


@asynccontextmanager
async def running(options: Options | None = None) -> AsyncIterator[ApiServer]:
    """Run a server in the current event loop."""
    chosen = options or Options()
    with _data_folder(chosen) as data:
        server = ApiServer(chosen, data)
        await server.start()
        try:
            yield server
        finally:
            await server.stop()


@contextmanager
def _data_folder(options: Options) -> Iterator[Path]:
    if options.data is not None:
        options.data.mkdir(parents=True, exist_ok=True)
        yield options.data
        return
    with tempfile.TemporaryDirectory(prefix="gpuslice-apiserver-") as folder:
        yield Path(folder)


class ServerThread:
    """A server on its own event loop in its own thread, for synchronous tests and programs.

    Use as a context manager. `call` runs a function of the server on its loop; `url` and `kubeconfig` are ready inside.
    """

    def __init__(self, options: Options | None = None) -> None:
        self._options = options or Options()
        self._started: concurrent.futures.Future[ApiServer] = concurrent.futures.Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="embedded-apiserver", daemon=True)
        self.server: ApiServer

    def __enter__(self) -> Self:
        self._thread.start()
        self.server = self._started.result(timeout=30)
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=30)

    @property
    def url(self) -> str:
        """Base URL of the server."""
        return self.server.url

    def kubeconfig(self, user: User = ADMIN, path: Path | None = None) -> Path:
        """Write a kubeconfig for a user."""
        return self.call(lambda server: server.kubeconfig(user, path))

    def call(self, function: Callable[[ApiServer], T]) -> T:
        """Run a synchronous function with the server on the server's loop and return its result."""

        async def run() -> T:
            return function(self.server)

        return self.wait(run())

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the server's loop and return its result."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=60)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._main())
        except BaseException as error:
            if not self._started.done():
                self._started.set_exception(error)
            else:
                raise

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with running(self._options) as server:
            self._started.set_result(server)
            await self._stop.wait()


__all__ = ["ADMIN", "ApiServer", "Options", "ServerThread", "User", "identity", "running"]
