"""The way to the API server: straight, or through an HTTP proxy; with TLS or without."""

import asyncio
import base64
import ssl
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from gpuslice.cluster.config import ClusterConfig
from gpuslice.cluster.http1 import Connection
from gpuslice.cluster.wire import SILENCE_SECONDS, BadAnswer, notice_silence
from gpuslice.devices.errors import BadConfiguration


@dataclass(frozen=True, slots=True)
class _Host:
    """Where a connection goes, and the name by which its certificate is checked."""

    name: str
    port: int
    tls: ssl.SSLContext | None
    tls_name: str | None


class Route:
    """How to reach one API server.

    As kubectl does, it speaks with a proxy over TLS by the same authorities and client certificate as with the server.
    """

    def __init__(self, config: ClusterConfig) -> None:
        """Prepare.

        Raises:
            BadConfiguration: the proxy is of a kind that we do not know.
        """
        where = urlsplit(config.server)
        self.authority = where.netloc.rpartition("@")[2]
        """What a request says in its Host header."""
        self.prefix = where.path
        """What comes before the path of a request."""
        self.headers: dict[str, str] = {}
        """What each request says to a proxy that reads it."""
        self._server = _host(where, config.tls, config.tls_server_name)
        self._proxy: _Host | None = None
        self._introduction: dict[str, str] = {}
        if config.proxy:
            proxy = urlsplit(config.proxy)
            if proxy.scheme not in ("http", "https"):
                raise BadConfiguration("cluster", "proxy-url", f"begins with {proxy.scheme}:", "give an http(s) URL")
            self._proxy = _host(proxy, config.tls, None)
            self._introduction = _introduction(proxy)
            if self._server.tls is None:
                self.prefix, self.headers = f"http://{self.authority}{where.path}", self._introduction

    async def connect(self) -> Connection:
        """Open a connection.

        Raises:
            OSError: it cannot be opened, or one side does not believe the other (TLS errors are OSErrors).
            BadAnswer: the proxy does not let us through.
        """
        if self._proxy is None:
            return await _open(self._server)
        connection = await _open(self._proxy)
        if self._server.tls is None:
            return connection
        try:
            return await self._tunnel(connection, self._server.tls)
        except BaseException:
            connection.abort()
            raise

    async def _tunnel(self, connection: Connection, tls: ssl.SSLContext) -> Connection:
        """Let the proxy connect us through, and speak TLS with the server in there (RFC 9110, 9.3.6)."""
        name = f"[{self._server.name}]" if ":" in self._server.name else self._server.name
        goal = f"{name}:{self._server.port}"
        fields = "".join(f"{name}: {value}\r\n" for name, value in {"Host": goal, **self._introduction}.items())
        request = f"CONNECT {goal} HTTP/1.1\r\n{fields}\r\n".encode("latin-1")
        # Like a watch, a tunnel begins when the head of the answer is there. There are no lines in it.
        answer = await connection.ask(request, silence_seconds=SILENCE_SECONDS)
        if answer.lines is None:
            raise BadAnswer(f"the proxy answered {answer.status}")
        answer.lines.end()
        inner = Connection()
        # The server may speak, and out of turn, before we are given the transport with TLS.
        inner.connection_made(connection.transport)
        try:
            transport = await asyncio.get_running_loop().start_tls(
                connection.transport, inner, tls, server_hostname=self._server.tls_name
            )
        except TypeError as error:
            # asyncio before 3.12.2 stumbles (gh-113214) when TLS inside of TLS breaks before it has begun.
            raise BadAnswer("the connection broke behind the proxy") from error
        if transport is None:
            raise BadAnswer("the proxy closed the connection")
        inner.connection_made(transport)
        return inner


def _host(where: SplitResult, tls: ssl.SSLContext | None, tls_name: str | None) -> _Host:
    name = where.hostname or ""
    if where.scheme == "http":
        return _Host(name, where.port or 80, None, None)
    return _Host(name, where.port or 443, tls or ssl.create_default_context(), tls_name or name)


def _introduction(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair).decode('ascii')}"}


async def _open(host: _Host) -> Connection:
    transport, connection = await asyncio.get_running_loop().create_connection(
        Connection, host.name, host.port, ssl=host.tls, server_hostname=host.tls_name
    )
    notice_silence(transport.get_extra_info("socket"))
    return connection
