"""The kubelet's checkpoint file, written as the device manager writes it (format v2)."""

import base64
import json
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FILE_NAME = "kubelet_internal_checkpoint"


@dataclass(frozen=True, slots=True)
class Assignment:
    """One container's devices of one resource, and the plugin's answer."""

    ids: frozenset[str]
    response: bytes


Assignments = Mapping[tuple[str, str, str], Assignment]
"""(pod UID, container, resource) to assignment."""


class CorruptCheckpoint(Exception):
    """The file is there and is not a checkpoint: the real kubelet logs it and starts without."""


def write(
    directory: Path, assignments: Assignments, registered: Mapping[str, list[str]], numa: Mapping[str, int]
) -> None:
    """Write the file in one step."""
    entries = []
    for (uid, container, resource), assignment in assignments.items():
        by_node: dict[str, list[str]] = defaultdict(list)
        for device in sorted(assignment.ids):
            by_node[str(numa.get(device, -1))].append(device)
        entries.append(
            {
                "PodUID": uid,
                "ContainerName": container,
                "ResourceName": resource,
                "DeviceIDs": by_node,
                "AllocResp": base64.b64encode(assignment.response).decode(),
            }
        )
    data = {"PodDeviceEntries": entries, "RegisteredDevices": dict(registered)}
    content = json.dumps({"Data": data, "Checksum": _checksum(json.dumps(data))})
    partial = directory / f".{FILE_NAME}.partial"
    partial.write_text(content)
    os.replace(partial, directory / FILE_NAME)


def read(directory: Path) -> tuple[dict[tuple[str, str, str], Assignment], list[str]] | None:
    """Return assignments and the registered resources; None when there is no file.

    Raises:
        CorruptCheckpoint: It cannot be read, or its checksum is wrong.
    """
    try:
        document = json.loads((directory / FILE_NAME).read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CorruptCheckpoint(str(error)) from error
    try:
        data = document["Data"]
        if document["Checksum"] != _checksum(json.dumps(data)):
            raise CorruptCheckpoint("checksum does not match")
        assignments = {
            (entry["PodUID"], entry["ContainerName"], entry["ResourceName"]): Assignment(
                frozenset(device for devices in entry["DeviceIDs"].values() for device in devices),
                base64.b64decode(entry["AllocResp"]),
            )
            for entry in data["PodDeviceEntries"]
        }
        return assignments, list(data["RegisteredDevices"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CorruptCheckpoint(repr(error)) from error


def _checksum(text: str) -> int:
    """FNV-1a, 32 bits; the real one hashes Go's in-memory structures, which nobody outside can reproduce."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value
