"""Container Device Interface: one specification file per grant, read by the runtime when it creates the container.

The kubelet keeps only the *name* for the pod's life; what it means is written (and rewritten) before each start.
Format: CDI 0.5.0, https://github.com/cncf-tags/container-device-interface.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from deviceplugin.backend import Edits
from gpuslice.devices.wholefile import write_whole

KIND = "gpuslice.io/grant"
_VERSION = "0.5.0"
_PREFIX = "gpuslice.io-grant-"
_encoder = msgspec.json.Encoder(order="deterministic")


def device_name(grant_id: str) -> str:
    """Return the fully qualified name of a grant's CDI device."""
    return f"{KIND}={grant_id}"


def path_of(directory: Path, grant_id: str) -> str:
    """Return the file that describes a grant."""
    return os.path.join(directory, f"{_PREFIX}{grant_id}.json")


def write(directory: Path, grant_id: str, edits: Edits) -> Path:
    """Write a grant's specification in one step, so that no runtime reads half of it."""
    path = Path(path_of(directory, grant_id))
    content = _encoder.encode(specification(grant_id, edits))
    try:
        write_whole(path, content)
    except FileNotFoundError:
        directory.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    return path


def written(directory: Path) -> Iterable[str]:
    """Yield the grants that have a specification."""
    for path in directory.glob(f"{_PREFIX}*.json"):
        yield path.name.removeprefix(_PREFIX).removesuffix(".json")


def specification(grant_id: str, edits: Edits) -> dict[str, object]:
    """Return the specification of one grant as JSON-able data."""
    container_edits: dict[str, object] = {"env": [f"{name}={value}" for name, value in sorted(edits.env.items())]}
    if edits.mounts:
        container_edits["mounts"] = [
            {
                "hostPath": mount.host_path,
                "containerPath": mount.container_path,
                "options": ["ro" if mount.read_only else "rw", "nosuid", "nodev", "bind"],
            }
            for mount in edits.mounts
        ]
    if edits.devices:
        container_edits["deviceNodes"] = [
            {"path": node.container_path, "hostPath": node.host_path, "permissions": node.permissions}
            for node in edits.devices
        ]
    return {
        "cdiVersion": _VERSION,
        "kind": KIND,
        "devices": [{"name": grant_id, "containerEdits": container_edits}],
    }
