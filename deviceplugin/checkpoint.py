"""The kubelet's own record of device assignments, read only: the one place on the node that has pod UIDs.

`kubelet_internal_checkpoint` is rewritten on every allocation and every device list change. Its checksum is a hash over
Go's in-memory structures and cannot be verified here, so a reader tolerates absence, a half-known shape and a read in
the middle of a rewrite. Format: kubernetes pkg/kubelet/cm/devicemanager/checkpoint (v2 since 1.20; v1 has a flat list).
"""

import asyncio
import base64
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
from google.protobuf.message import DecodeError

from gpuslice.devices.decoding import UNREADABLE
from gpuslice.proto.deviceplugin.v1beta1 import api_pb2 as pb

FILE_NAME = "kubelet_internal_checkpoint"
_ATTEMPTS = 4
_RETRY_SECONDS = 0.02
_MORE_BYTES = 65536
# Two writes within one tick of the kernel's clock may leave the same time, size and, by reuse, inode.
_SETTLED_NS = 1_000_000_000


class _EntryWire(msgspec.Struct, rename="pascal"):
    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids: dict[str, list[str]] | list[str] | None = msgspec.field(name="DeviceIDs", default=None)
    alloc_resp: str | None = None


class _DataWire(msgspec.Struct, rename="pascal"):
    pod_device_entries: list[_EntryWire] | None = None


class _FileWire(msgspec.Struct, rename="pascal"):
    data: _DataWire


class _RawDataWire(msgspec.Struct, rename="pascal"):
    pod_device_entries: list[msgspec.Raw] | None = None


class _RawFileWire(msgspec.Struct, rename="pascal"):
    data: _RawDataWire


_decoder = msgspec.json.Decoder(_FileWire)
_raw_decoder = msgspec.json.Decoder(_RawFileWire)
_entry_decoder = msgspec.json.Decoder(_EntryWire)
# An ID of other characters may be written in more than one way.
_plain = re.compile(r"[A-Za-z0-9:._/-]+").fullmatch
# No string holds these: a quotation mark in a string is escaped.
_ENTRY = '{"PodUID":'
_ENTRIES = '"PodDeviceEntries":'
_AFTER_ENTRIES = '"RegisteredDevices":'
_TAIL_BYTES = 40
_whole = re.compile(rb'.*"Checksum": ?\d+}\s*', re.DOTALL).fullmatch
_one_value = json.JSONDecoder().raw_decode


@dataclass(frozen=True)
class Entry:
    """One container's devices of one resource. The answer is decoded once, when it is first asked for."""

    uid: str
    container: str
    resource: str
    ids: frozenset[str]
    response: str
    """The ContainerAllocateResponse that the plugin once gave, serialized and in base64."""

    def env(self) -> Mapping[str, str]:
        """Return the environment of the recorded answer; empty when it cannot be read."""
        return self._answer.envs

    def names_cdi_device(self) -> bool:
        """Tell whether the recorded answer left it to a CDI specification what the container sees."""
        answer = self._answer
        return bool(answer.cdi_devices) or any(key.startswith("cdi.k8s.io/") for key in answer.annotations)

    @cached_property
    def _answer(self) -> pb.ContainerAllocateResponse:
        try:
            return pb.ContainerAllocateResponse.FromString(base64.b64decode(self.response, validate=True))
        except (DecodeError, ValueError):
            return pb.ContainerAllocateResponse()


def parse(content: bytes, among: frozenset[str] | None = None) -> tuple[Entry, ...] | None:
    """Return the entries, or None when the content is not a checkpoint that we can read.

    Args:
        content: The file.
        among: Leave out the entries that hold none of these IDs; None: all entries.
    """
    try:
        if among is None or not all(map(_plain, among)):
            wires = _decoder.decode(content).data.pod_device_entries
        else:
            wires = _decode_among(content, among)
    except UNREADABLE:
        return None
    with_ids = ((item, _ids(item)) for item in wires or ())
    return tuple(
        Entry(item.pod_uid, item.container_name, item.resource_name, frozenset(ids), item.alloc_resp or "")
        for item, ids in with_ids
        if among is None or not among.isdisjoint(ids)
    )


def _decode_among(content: bytes, among: frozenset[str]) -> list[_EntryWire]:
    """Decode only entries in which one of these IDs is written somewhere: of hundreds, a container start needs one."""
    names = [f'"{device}"' for device in among]
    found = _entries_around(content, names)
    if found is None:
        written = map(bytes, _raw_decoder.decode(content).data.pod_device_entries or ())
        found = [_entry_decoder.decode(entry) for entry in written if any(name.encode() in entry for name in names)]
    return found


def _entries_around(content: bytes, names: Iterable[str]) -> list[_EntryWire] | None:
    """Decode the entries around the places where one of these names is written; what is between them is not read.

    Returns:
        The entries in the order of the file, or None where the file is not whole, or not written as the kubelet does:
        each entry begins with its pod, the registered devices come after all entries, and the checksum ends the file.
    """
    if _whole(content[-_TAIL_BYTES:]) is None:
        return None
    found: dict[int, _EntryWire] = {}
    try:
        text = content.decode()
        last = text.rindex(_AFTER_ENTRIES)
        if text.find(_ENTRIES, last) >= 0:
            return None
        for name in names:
            at = text.find(name, 0, last)
            while at >= 0:
                begin = text.rindex(_ENTRY, 0, at)
                entry, end = _one_value(text, begin)
                if end <= at:
                    return None
                found[begin] = msgspec.convert(entry, _EntryWire)
                at = text.find(name, end, last)
    except (ValueError, *UNREADABLE):
        return None
    return [found[begin] for begin in sorted(found)]


def _ids(wire: _EntryWire) -> list[str]:
    match wire.device_ids:
        case dict(by_numa):
            return [device for devices in by_numa.values() for device in devices]
        case None:
            return []
        case flat:
            return flat


async def read(directory: Path, *, among: frozenset[str] | None = None) -> tuple[Entry, ...] | None:
    """Read the checkpoint, see :func:`parse`; None when there is none, or none is readable after a few attempts."""
    path = os.path.join(directory, FILE_NAME)
    for attempt in range(_ATTEMPTS):
        if attempt:
            await asyncio.sleep(_RETRY_SECONDS)
        try:
            entries = parse(_content(path), among)
        except OSError:
            entries = None
        if entries is not None:
            return entries
    return None


def _content(path: str) -> bytes:
    """Read a file; Python's file objects take three system calls more, and each container start reads this one."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        content = os.read(descriptor, size + 1)
        while len(content) > size:
            # It has grown meanwhile.
            size = len(content)
            content += os.read(descriptor, _MORE_BYTES)
        return content
    finally:
        os.close(descriptor)


class Kept:
    """The entries as last read, for a reader that comes again and again: a file that has not changed is not read."""

    def __init__(self, directory: Path, *, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._directory = directory
        self._clock_ns = clock_ns
        self._stamp: tuple[int, int, int] | None = None
        self._entries: tuple[Entry, ...] = ()

    async def read(self) -> tuple[Entry, ...] | None:
        """Return what :func:`read` would return."""
        stamp = self._settled()
        if stamp is not None and stamp == self._stamp:
            return self._entries
        entries = await read(self._directory)
        self._stamp, self._entries = (stamp, entries) if entries is not None else (None, ())
        return entries

    def _settled(self) -> tuple[int, int, int] | None:
        """Identify the file's content; None when there is no file, or it is too young to tell it from the next."""
        try:
            status = (self._directory / FILE_NAME).stat()
        except OSError:
            return None
        if self._clock_ns() - status.st_mtime_ns < _SETTLED_NS:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size
