"""The way through a proxy: a real one of a few lines, with and without TLS, in front of the embedded API server."""

import asyncio
import base64
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme

from gpuslice.cluster.client import KubeClient
from gpuslice.cluster.config import ClusterConfig, load_cluster_config
from gpuslice.cluster.credentials import FixedHeaders
from gpuslice.cluster.errors import ApiError, Unreachable
from gpuslice.cluster.resources import PODS
from gpuslice.cluster.transport import Transport
from gpuslice.devices.errors import BadConfiguration
from gpuslice.devices.pods import Pod
from simulator.apiserver.server import Options, running
from tests.cluster_client.objects import pod

pytestmark = pytest.mark.anyio
INTRODUCTION = b"Proxy-Authorization: Basic " + base64.b64encode(b"me:p@ss")


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


class Proxy:
    """Passes on CONNECT and absolute URLs, for whoever introduces himself."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head.split(b"\r\n")[0])
        if INTRODUCTION not in head:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        else:
            method, target, _ = head.split(b" ", 2)
            where = target if method == b"CONNECT" else urlsplit(target).netloc
            host, _, port = where.decode().partition(":")
            upstream, out = await asyncio.open_connection(host, int(port))
            if method == b"CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                first_line, _, rest = head.replace(b"http://" + where, b"").partition(b"\r\n")
                out.write(first_line + b"\r\nConnection: close\r\n" + rest)
            await asyncio.gather(_pass_on(reader, out), _pass_on(upstream, writer))
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def proxy(tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[str, Proxy]]:
    made = Proxy()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=tls)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"{'https' if tls else 'http'}://me:p%40ss@127.0.0.1:{port}", made


@pytest.mark.parametrize("proxy_tls", [False, True], ids=["a plain proxy", "a proxy with TLS"])
@pytest.mark.parametrize("server_tls", [False, True], ids=["a plain server", "a server with TLS"])
async def test_a_server_is_reached_through_a_proxy(proxy_tls: bool, server_tls: bool, tmp_path: Path) -> None:
    authority = trustme.CA()
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(ours)
    async with running(Options(seed=1, tls=server_tls, data=tmp_path)) as server:
        await server.create(pod("a"))
        config = load_cluster_config(server.kubeconfig())
        tls = config.tls or ssl.create_default_context()
        authority.configure_trust(tls)
        async with (
            proxy(ours if proxy_tls else None) as (url, made),
            Transport(replace(config, tls=tls, proxy=url)) as transport,
        ):
            for _ in range(2):
                assert (await KubeClient(transport).get(PODS, "a", Pod, namespace="default")).metadata.name == "a"
    host = config.server.partition("://")[2].encode()
    read = b"GET http://%b/api/v1/namespaces/default/pods/a HTTP/1.1" % host
    assert made.asked == ([b"CONNECT %b HTTP/1.1" % host] if server_tls else [read, read])


async def test_a_proxy_that_does_not_know_us_is_named() -> None:
    async with proxy() as (url, _):
        stranger = url.replace("me:", "you:")
        async with Transport(ClusterConfig("https://127.0.0.1:1", FixedHeaders(), proxy=stranger)) as transport:
            with pytest.raises(Unreachable, match="the proxy answered 407"):
                await transport.request("GET", "/a")
        async with Transport(ClusterConfig("http://127.0.0.1:1", FixedHeaders(), proxy=stranger)) as transport:
            with pytest.raises(ApiError, match="407"):
                await transport.request("GET", "/a")


def test_a_proxy_of_another_kind_is_refused() -> None:
    with pytest.raises(BadConfiguration, match="proxy-url: begins with socks5:"):
        Transport(ClusterConfig("https://a", FixedHeaders(), proxy="socks5://b"))


async def _greet(tls: ssl.SSLContext, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Be the proxy and a server that speaks first: in one go with its last words of the handshake."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    spoken = tls.wrap_bio(incoming, outgoing, server_side=True)
    while True:
        try:
            spoken.do_handshake()
            break
        except ssl.SSLWantReadError:
            writer.write(outgoing.read())
            incoming.write(await reader.read(65536))
    spoken.write(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
    writer.write(outgoing.read())
    await reader.read()
    writer.close()


async def test_a_server_behind_a_proxy_may_speak_too_soon() -> None:
    authority = trustme.CA()
    theirs, ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    theirs.maximum_version = ssl.TLSVersion.TLSv1_2
    authority.issue_cert("127.0.0.1").configure_cert(theirs)
    authority.configure_trust(ours)
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, complaint: complaints.append(complaint))
    server = await asyncio.start_server(partial(_greet, theirs), "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        config = ClusterConfig("https://127.0.0.1:1", FixedHeaders(), tls=ours, proxy=url)
        async with Transport(config) as transport:
            # It may still be in time to be taken for the answer.
            with pytest.raises((Unreachable, ApiError)):
                await transport.request("POST", "/a", body=b"{}")
    assert not complaints


async def test_a_proxy_with_tls_may_hang_up_when_it_has_let_us_through() -> None:
    authority = trustme.CA()
    theirs, ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(theirs)
    authority.configure_trust(ours)

    async def let_through(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await reader.read(1)
        writer.transport.abort()

    # asyncio may complain of itself here.
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _complaint: None)
    server = await asyncio.start_server(let_through, "127.0.0.1", 0, ssl=theirs)
    async with server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        config = ClusterConfig("https://127.0.0.1:1", FixedHeaders(), tls=ours, proxy=url)
        async with Transport(config) as transport:
            with pytest.raises(Unreachable):
                await transport.request("POST", "/a", body=b"{}", timeout_seconds=1)
