"""Any device as a plugin: one YAML file with a name, a count or path globs, env, mounts and a health rule.

    resource: example.com/foo
    count: 4                        # or: paths: ["/dev/foo*"]
    env:
      FOO_DEVICES: "{ids}"          # {ids}, {indexes}, {paths}: of the container's devices, comma-separated
    mounts:
      - {hostPath: /opt/foo, containerPath: /opt/foo}
    devices:                        # device nodes for each device; {path}, {index}, {id}
      - {hostPath: "{path}", containerPath: "{path}", permissions: rw}
    health:
      file: /run/foo/{index}.broken # {index}, {id}, {path}
      whenPresent: unhealthy        # or: healthy
      everySeconds: 2

The kubelet's choice of devices is as good as any other, so there is no scheduler behind this: GetPreferredAllocation
spreads over NUMA nodes as little as it can, and PreStartContainer checks that the devices are still well.
"""

import asyncio
import glob
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import structlog

from deviceplugin.backend import DeviceNode, Edits, Mount, Refused
from deviceplugin.devicelist import Device, DeviceList
from gpuslice.devices.errors import BadConfiguration

log = structlog.get_logger(__name__)


class _MountWire(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    host_path: str
    container_path: str
    read_only: bool = True


class _NodeWire(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    host_path: str
    container_path: str
    permissions: str = "rw"


class _HealthWire(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    file: str
    when_present: Literal["healthy", "unhealthy"] = "unhealthy"
    every_seconds: float = 2.0


class Description(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The file, as written."""

    resource: str
    count: int = 0
    paths: tuple[str, ...] = ()
    env: dict[str, str] = {}
    mounts: tuple[_MountWire, ...] = ()
    devices: tuple[_NodeWire, ...] = ()
    cdi_devices: tuple[str, ...] = ()
    annotations: dict[str, str] = {}
    health: _HealthWire | None = None
    numa: dict[str, int] = {}
    """NUMA node by device index."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One device."""

    id: str
    index: int
    path: str = ""

    def fill(self, text: str) -> str:
        """Put this device's values into a template."""
        return text.replace("{id}", self.id).replace("{index}", str(self.index)).replace("{path}", self.path)


def load(path: Path) -> Description:
    """Read and check a file.

    Raises:
        BadConfiguration: It is not valid; names the field and what it may be.
    """
    import yaml  # noqa: PLC0415  only nodes with generic devices need it

    try:
        description = msgspec.convert(yaml.safe_load(path.read_bytes()), Description)
    except OSError as error:
        raise BadConfiguration(str(path), "file", str(error), "give a readable file") from error
    except yaml.YAMLError as error:
        raise BadConfiguration(str(path), "file", " ".join(str(error).split()), "write valid YAML") from error
    except msgspec.ValidationError as error:
        raise BadConfiguration(str(path), "file", str(error), "see examples/foo-device/foo.yaml") from error
    _check(str(path), description)
    return description


def _check(source: str, description: Description) -> None:
    domain, slash, name = description.resource.partition("/")
    if not (domain and slash and name) or "/" in name or domain.endswith("kubernetes.io"):
        raise BadConfiguration(
            source, "resource", f"{description.resource!r} is not vendor.tld/name", "write for example example.com/foo"
        )
    if bool(description.count) == bool(description.paths):
        raise BadConfiguration(source, "count", "give either count or paths", "write count: 4, or paths: [/dev/foo*]")
    if not 0 <= description.count <= 10_000:
        raise BadConfiguration(source, "count", f"{description.count} is out of range", "give 1 to 10000")
    for node in description.devices:
        if not node.permissions or set(node.permissions) - set("rwm"):
            raise BadConfiguration(source, "permissions", f"{node.permissions!r} is not of r, w, m", "write rw")


class GenericBackend:
    """Serves one described resource. Run `run` as a task for its health."""

    def __init__(self, description: Description) -> None:
        self.description = description
        self.resource = description.resource
        self.devices = DeviceList(description.resource)
        self.units: dict[str, Unit] = {}

    async def refresh(self) -> None:
        """Look for devices and their health, and publish the list if it changed."""
        found = {unit.id: unit for unit in self._find()}
        # A device that vanishes stays listed as unhealthy: a container may still hold it.
        gone = {name: unit for name, unit in self.units.items() if name not in found}
        self.units = found | gone
        listed = [
            Device(
                unit.id,
                healthy=unit.id in found and self._is_well(unit),
                numa=self.description.numa.get(str(unit.index)),
            )
            for unit in self.units.values()
        ]
        if await self.devices.publish(listed):
            sick = sorted(device.id for device in listed if not device.healthy)
            log.info("devices_listed", resource=self.resource, count=len(listed), unhealthy=sick)

    def _find(self) -> list[Unit]:
        name = self.resource.partition("/")[2]
        if self.description.count:
            return [Unit(f"{name}-{index}", index) for index in range(self.description.count)]
        paths = dict.fromkeys(path for pattern in self.description.paths for path in sorted(glob.glob(pattern)))
        return [Unit(path.strip("/").replace("/", "-"), index, path) for index, path in enumerate(paths)]

    def _is_well(self, unit: Unit) -> bool:
        rule = self.description.health
        if rule is None:
            return True
        return Path(unit.fill(rule.file)).exists() == (rule.when_present == "healthy")

    async def run(self) -> None:
        """Keep the list up to date until cancelled."""
        rule = self.description.health
        every_seconds = rule.every_seconds if rule is not None else 10.0
        while True:
            await self.refresh()
            await asyncio.sleep(every_seconds)

    async def prefer(self, available: Sequence[str], must_include: Sequence[str], size: int) -> Sequence[str]:
        """Stay on one NUMA node where possible, lowest index first."""
        chosen = list(dict.fromkeys(must_include))[:size]
        rest = [name for name in available if name not in chosen and name in self.units]
        per_node = Counter(self._numa(name) for name in rest)
        missing = size - len(chosen)

        def rank(name: str) -> tuple[bool, int, int]:
            node = self._numa(name)
            return (per_node[node] < missing, per_node[node], self.units[name].index)

        return chosen + sorted(rest, key=rank)[:missing]

    def _numa(self, name: str) -> int:
        return self.description.numa.get(str(self.units[name].index), -1)

    def allocate(self, ids: Sequence[str]) -> Edits:
        """Answer with what the file says.

        Raises:
            Refused: A device is unknown, or asked for twice.
        """
        units = self._units(ids)
        described = self.description
        values = {
            "ids": ",".join(unit.id for unit in units),
            "indexes": ",".join(str(unit.index) for unit in units),
            "paths": ",".join(unit.path for unit in units),
        }
        return Edits(
            env={name: _fill_all(text, values) for name, text in described.env.items()},
            mounts=tuple(Mount(m.host_path, m.container_path, m.read_only) for m in described.mounts),
            devices=tuple(
                DeviceNode(unit.fill(node.host_path), unit.fill(node.container_path), node.permissions)
                for unit in units
                for node in described.devices
            ),
            cdi_devices=tuple(dict.fromkeys(unit.fill(name) for unit in units for name in described.cdi_devices)),
            annotations={name: _fill_all(text, values) for name, text in described.annotations.items()},
        )

    def _units(self, ids: Sequence[str]) -> list[Unit]:
        if not ids or len(set(ids)) != len(ids):
            raise Refused(f"{self.resource}: the kubelet asked for no device, or for one twice: {sorted(ids)}")
        if unknown := sorted(set(ids) - set(self.units)):
            raise Refused(f"{self.resource}: unknown devices {', '.join(unknown)}; the kubelet's list is outdated")
        return sorted((self.units[name] for name in ids), key=lambda unit: unit.index)

    async def pre_start(self, ids: Sequence[str]) -> None:
        """Refuse to start on a device that is not well; the kubelet asks again.

        Raises:
            Refused: A device is not healthy now.
        """
        for unit in self._units(ids):
            if not self._is_well(unit):
                rule = self.description.health
                seen = unit.fill(rule.file) if rule is not None else ""
                raise Refused(f"{self.resource}: device {unit.id} is not healthy ({seen}); the start is tried again")


def _fill_all(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text
