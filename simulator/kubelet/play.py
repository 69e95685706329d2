"""A device plugin and a kubelet in one terminal: `python -m simulator.kubelet.play --device-file FILE`.

Plays the story of examples/foo-device: register, run a pod, break a device, restart the kubelet, and shows each call of
the kubelet as it happens. Needs no root and no cluster. Exit code 0 means that every step went as told.
"""

import argparse
import asyncio
import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry

from deviceplugin.backend import Edits
from deviceplugin.devicelist import DeviceList
from deviceplugin.generic import GenericBackend, load
from deviceplugin.metrics import PluginMetrics
from deviceplugin.registration import Registrar
from gpuslice.devices.errors import BadConfiguration
from simulator.kubelet.kubelet import Behaviour, StubKubelet
from simulator.kubelet.local import LocalApi
from simulator.kubelet.podworker import Pace


def say(text: str) -> None:
    """Print one line of the story."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Told:
    """A backend that tells what it is asked."""

    def __init__(self, inner: GenericBackend) -> None:
        self._inner = inner
        self.resource = inner.resource

    @property
    def devices(self) -> DeviceList:
        """What ListAndWatch sends."""
        return self._inner.devices

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Tell a GetPreferredAllocation."""
        chosen = await self._inner.prefer(available, must_include, size)
        say(f"  GetPreferredAllocation: {size} of {', '.join(sorted(available))} -> {', '.join(chosen)}")
        return chosen

    def allocate(self, ids: Sequence[str]) -> Edits:
        """Tell an Allocate."""
        edits = self._inner.allocate(ids)
        say(f"  Allocate: {', '.join(sorted(ids))} -> {edits.env}")
        return edits

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Tell a PreStartContainer."""
        say(f"  PreStartContainer: {', '.join(sorted(ids))}")
        await self._inner.pre_start(ids)


async def play(device_file: Path, root: Path) -> None:
    """Play the story.

    Raises:
        TimeoutError: A step did not happen.
    """
    backend = GenericBackend(load(device_file))
    api = LocalApi()
    kubelet = StubKubelet("here", root / "k", api, behaviour=Behaviour(pace=Pace(start_retry=0.5, node_status=0.5)))
    await kubelet.start()
    registrar = Registrar(Told(backend), kubelet.layout.plugins, PluginMetrics(CollectorRegistry()))
    await backend.refresh()
    tasks = [asyncio.create_task(backend.run()), asyncio.create_task(registrar.run())]
    try:
        await _story(backend, api, kubelet, registrar)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await kubelet.shut_down()


async def _story(backend: GenericBackend, api: LocalApi, kubelet: StubKubelet, registrar: Registrar) -> None:
    resource, total = backend.resource, len(backend.units)
    say(f"1. the plugin registers {resource} and sends its list")
    await api.until(lambda: api.devices.get(resource) == (total, total))
    say(f"  node: capacity {total}, allocatable {total}")
    wanted = min(2, total)
    say(f"2. a pod asks for {wanted}")
    names = " ".join(f"{name}=${name}" for name in backend.description.env)
    container = {
        "name": "main",
        "command": ["sh", "-c", f"echo I see {names}; exec sleep 1000"],
        "resources": {"limits": {resource: wanted}},
    }
    uid = api.create({"metadata": {"name": "user"}, "spec": {"nodeName": "here", "containers": [container]}})
    await api.until(lambda: api.phase(uid) == "Running" and kubelet.container(uid, "main").log_file.stat().st_size > 0)
    say(f"  container says: {kubelet.container(uid, 'main').log_file.read_text().strip()}")
    await _break_one(backend, api)
    say("4. the kubelet restarts: it wipes the sockets, the plugin comes back by itself")
    before = registrar.registrations
    await kubelet.restart()
    await api.until(lambda: registrar.registrations > before and api.devices.get(resource) == (total, total))
    say(f"  registered again; the pod is still {api.phase(uid)}")


async def _break_one(backend: GenericBackend, api: LocalApi) -> None:
    rule, resource, total = backend.description.health, backend.resource, len(backend.units)
    if rule is None or rule.when_present != "unhealthy":
        say("3. (the file has no rule by which a device can be broken)")
        return
    unit = list(backend.units.values())[-1]
    flag = Path(unit.fill(rule.file))
    say(f"3. {unit.id} breaks: {flag} appears, and goes again")
    _put(flag)
    try:
        await api.until(lambda: api.devices.get(resource) == (total, total - 1))
        say(f"  node: capacity {total}, allocatable {total - 1}")
    finally:
        _take_away(flag)
    await api.until(lambda: api.devices.get(resource) == (total, total))
    say(f"  node: capacity {total}, allocatable {total}")


def _put(flag: Path) -> None:
    flag.parent.mkdir(parents=True, exist_ok=True)
    flag.touch()


def _take_away(flag: Path) -> None:
    flag.unlink()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the story; 0 when every step happened."""
    parser = argparse.ArgumentParser(prog="python -m simulator.kubelet.play", description=__doc__)
    parser.add_argument("--device-file", type=Path, required=True, help="YAML file that describes a device")
    options = parser.parse_args(argv)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        with tempfile.TemporaryDirectory(prefix="gs") as name:
            asyncio.run(play(options.device_file, Path(name)))
    except BadConfiguration as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except TimeoutError:
        sys.stderr.write("error: this step did not happen within 20 s\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
