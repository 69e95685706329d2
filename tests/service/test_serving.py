"""Probes, HTTPS with an exchanged certificate, ports files, signals."""

import asyncio
import contextlib
import json
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
import trustme
from prometheus_client import CollectorRegistry, Counter

from gpuslice.devices.errors import BadConfiguration
from gpuslice.service.certificates import ServingCertificate
from gpuslice.service.health import Health, HealthServer
from gpuslice.service.listener import open_socket, serve_http
from gpuslice.service.process import until_stopped, write_ports
from tests.service.application import answer_ok

pytestmark = pytest.mark.anyio


async def test_probes_tell_what_is_wrong() -> None:
    registry, health, problems = CollectorRegistry(), Health(), {"cache": "not synced"}
    Counter("seen", "things", registry=registry).inc()
    health.ready["cache"] = lambda: problems.get("cache")
    async with (
        HealthServer(health, registry, host="127.0.0.1", port=0) as server,
        aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session,
    ):
        found = {}
        for path in ("/livez", "/readyz", "/metrics"):
            async with session.get(path) as reply:
                found[path] = (reply.status, await reply.text())
        problems.clear()
        async with session.get("/readyz") as reply:
            later = reply.status
    assert found["/livez"] == (200, "ok\n")
    assert found["/readyz"] == (503, "cache: not synced\n")
    assert "seen_total 1.0" in found["/metrics"][1]
    assert later == 200


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        pytest.param(b"GET /livez?verbose HTTP/1.1\r\n\r\n", b"200", id="a query is ignored"),
        pytest.param(b"HEAD /readyz HTTP/1.0\r\n\r\n", b"200", id="head only"),
        pytest.param(b"GET /secrets HTTP/1.1\r\n\r\n", b"404", id="there is nothing else"),
        pytest.param(b"POST /livez HTTP/1.1\r\n\r\n", b"405", id="nothing is to be posted"),
        pytest.param(b"\x16\x03\x01\r\n\r\n", b"400", id="another protocol"),
        pytest.param(b"GET /" + b"x" * 20_000, b"", id="an endless head is not read"),
    ],
)
async def test_the_probe_port_answers_what_it_is_asked(request_: bytes, status: bytes) -> None:
    async with HealthServer(Health(), CollectorRegistry(), host="127.0.0.1", port=0) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request_)
        with contextlib.suppress(ConnectionResetError):
            answer = await reader.read()
            assert answer[9:12] == status
            assert (b"ok" in answer) == (request_.startswith(b"GET") and status == b"200")
        writer.close()


@asynccontextmanager
async def serving(tls: ssl.SSLContext | None) -> AsyncIterator[int]:
    stopping, started, listening = asyncio.Event(), asyncio.Event(), open_socket("127.0.0.1:0")
    port = int(listening.getsockname()[1])
    task = asyncio.create_task(
        until_stopped(stopping, serving=serve_http(answer_ok, listening, stopping, tls=tls, on_started=started.set))
    )
    await started.wait()
    try:
        yield port
    finally:
        stopping.set()
        await task


def write_pair(authority: trustme.CA, folder: Path, name: str) -> None:
    issued = authority.issue_cert("127.0.0.1", common_name=name)
    issued.private_key_pem.write_to_path(folder / "key.pem")
    issued.cert_chain_pems[0].write_to_path(folder / "cert.pem")


async def serial_served(port: int, authority: trustme.CA) -> str:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="127.0.0.1")
    serial = writer.get_extra_info("peercert")["serialNumber"]
    writer.close()
    await writer.wait_closed()
    del reader
    return str(serial)


async def test_a_new_certificate_is_served_without_a_restart(tmp_path: Path) -> None:
    authority = trustme.CA()
    write_pair(authority, tmp_path, "first")
    certificate = ServingCertificate(tmp_path / "cert.pem", tmp_path / "key.pem")
    async with serving(certificate.context) as port:
        before = await serial_served(port, authority)
        unchanged = certificate.reload_if_changed()
        write_pair(authority, tmp_path, "second")
        changed = certificate.reload_if_changed()
        after = await serial_served(port, authority)
    assert (unchanged, changed, before != after) == (False, True, True)


async def test_a_broken_pair_leaves_the_last_good_one_in_use(tmp_path: Path) -> None:
    authority = trustme.CA()
    write_pair(authority, tmp_path, "first")
    certificate = ServingCertificate(tmp_path / "cert.pem", tmp_path / "key.pem")
    (tmp_path / "cert.pem").write_text("not a certificate", encoding="utf-8")
    async with serving(certificate.context) as port:
        assert not certificate.reload_if_changed()
        assert await serial_served(port, authority)


async def test_without_a_pair_nothing_starts(tmp_path: Path) -> None:
    with pytest.raises(BadConfiguration, match=r"cert\.pem"):
        ServingCertificate(tmp_path / "cert.pem", tmp_path / "key.pem")


@pytest.mark.parametrize("listen", ["nowhere", "127.0.0.1:99999", "127.0.0.1:x", "256.0.0.1:0"])
async def test_a_bad_address_is_named(listen: str) -> None:
    with pytest.raises(BadConfiguration, match="--listen"):
        open_socket(listen)


async def test_a_taken_port_is_named() -> None:
    taken = open_socket("127.0.0.1:0")
    taken.listen()
    with pytest.raises(BadConfiguration, match="choose a free address"):
        open_socket(f"127.0.0.1:{taken.getsockname()[1]}")
    taken.close()


def test_ports_are_written_in_one_step(tmp_path: Path) -> None:
    write_ports(tmp_path / "ports.json", {"listen": 1})
    assert json.loads((tmp_path / "ports.json").read_text(encoding="utf-8")) == {"listen": 1}


async def test_a_task_that_fails_ends_all_the_others() -> None:
    ended = asyncio.Event()

    async def lives() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def fails() -> None:
        raise BadConfiguration("a", "b", "c", "d")

    with pytest.raises(BadConfiguration):
        await until_stopped(asyncio.Event(), lives(), fails())
    assert ended.is_set()


PROGRAM = """
import asyncio, sys
from gpuslice.devices.errors import BadConfiguration
from gpuslice.service.process import run_daemon

async def polite(stopping):
    print("up", flush=True)
    await stopping.wait()

async def stubborn(stopping):
    print("up", flush=True)
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

async def wrong(stopping):
    raise BadConfiguration("file", "field", "is wrong", "mend it")

async def broken(stopping):
    raise RuntimeError("a bug")

sys.exit(run_daemon(globals()[sys.argv[1]]))
"""


@pytest.mark.parametrize(
    ("behaviour", "code"),
    [
        pytest.param("polite", 0, id="ends by itself"),
        pytest.param("stubborn", 1, id="is left behind after two seconds"),
    ],
)
def test_sigterm_ends_a_daemon_within_two_seconds(behaviour: str, code: int) -> None:
    command = [sys.executable, "-c", PROGRAM, behaviour]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.terminate()
        try:
            assert process.wait(timeout=10) == code
        finally:
            process.kill()


@pytest.mark.parametrize(("behaviour", "code"), [("wrong", 2), ("broken", 1)])
def test_a_daemon_that_fails_says_so_in_its_exit_code(behaviour: str, code: int) -> None:
    finished = subprocess.run([sys.executable, "-c", PROGRAM, behaviour], capture_output=True, timeout=20, check=False)
    assert finished.returncode == code
