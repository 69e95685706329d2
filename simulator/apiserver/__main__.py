"""Run the embedded API server as a process: `python -m simulator.apiserver --listen HOST:PORT --data DIR`."""

import argparse
import asyncio
import json
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from simulator.apiserver.server import ApiServer, Options, running


def _parse(argv: Sequence[str] | None) -> tuple[Options, Path | None]:
    parser = argparse.ArgumentParser(prog="python -m simulator.apiserver", description=__doc__)
    parser.add_argument("--listen", default="127.0.0.1:0", help="HOST:PORT; port 0 takes a free one")
    parser.add_argument("--data", type=Path, help="folder for certificate and kubeconfig (default: a temporary one)")
    parser.add_argument("--tls", action="store_true", help="serve https with a certificate made at start")
    parser.add_argument("--anonymous", action="store_true", help="serve requests without a token")
    parser.add_argument("--ports-file", type=Path, help="write url, port and kubeconfig as JSON to this file")
    chosen = parser.parse_args(argv)
    host, _, port = chosen.listen.rpartition(":")
    if not host or not port.isdigit():
        parser.error(f"--listen {chosen.listen}: write HOST:PORT, such as 127.0.0.1:6443")
    options = Options(host=host, port=int(port), tls=chosen.tls, data=chosen.data, anonymous=chosen.anonymous)
    return options, chosen.ports_file


async def _serve(options: Options, ports_file: Path | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with running(options) as server:
        _announce(server, ports_file)
        await stop.wait()


def _announce(server: ApiServer, ports_file: Path | None) -> None:
    port = int(server.url.rpartition(":")[2])
    facts = json.dumps({"url": server.url, "port": port, "kubeconfig": str(server.kubeconfig())})
    print(facts, flush=True)
    if ports_file is not None:
        ports_file.write_text(facts)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT."""
    options, ports_file = _parse(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    uvloop.run(_serve(options, ports_file))
    return 0


if __name__ == "__main__":
    sys.exit(main())
