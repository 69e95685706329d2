"""The two files that the preloaded library and the node share: `limits` and `state`.

`limits` is written by the node daemon alone and mounted read-only in the container; `state` is read-write for the
container's processes. Layout: hami_core/layout.spec, from which limits_layout.py and the library's C header come.

Writers of `limits` are single (one daemon per node). Readers may look at any moment: the header's sequence is odd
while a rewrite is under way, and a checksum tells a torn or foreign file from a good one.
"""

import errno
import mmap
import os
import stat
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

from gpuslice.devices import limits_layout as layout
from gpuslice.devices.errors import GpusliceError
from gpuslice.devices.wholefile import write_whole

MIB = 1 << 20
_LAUNCH_BYTES = layout.STATE_DEVICE_LAST_LAUNCH_NS.offset + struct.calcsize(layout.STATE_DEVICE_LAST_LAUNCH_NS.format)
_KEPT = 64
"""Contents that are remembered, 3 KiB each."""
_KIND_NAMES = ("data", "pool", "graph", "vmm", "array", "managed", "module", "context")


class BadLimitsFile(GpusliceError):
    """A limits or state file cannot be read or written as asked."""

    def __init__(self, path: Path, problem: str, remedy: str) -> None:
        super().__init__(f"{path}: {problem}; {remedy}")
        self.path = path
        self.problem = problem
        self.remedy = remedy


class CorePolicy(IntEnum):
    """What a core limit means: HARD always, SOFT only while others want the card, OFF never."""

    HARD = layout.POLICY_HARD
    SOFT = layout.POLICY_SOFT
    OFF = layout.POLICY_OFF


@dataclass(frozen=True, slots=True)
class DeviceLimit:
    """What one container may use of one device.

    Attributes:
        uuid: "GPU-…" or "MIG-…" with 32 hexadecimal digits.
        memory_mib: Device memory in MiB, 1 or more; None: not limited.
        core_percent: Share of GPU time, 0..100; 0 and 100: not limited.
        core_policy: When the share is enforced.
        priority: 0 goes before 1 where priorities compete on a card.
        spill_mib: Part of memory_mib that may live on the host as managed memory.
    """

    uuid: str
    memory_mib: int | None
    core_percent: int = 0
    core_policy: CorePolicy = CorePolicy.HARD
    priority: int = 1
    spill_mib: int = 0


@dataclass(frozen=True, slots=True)
class DeviceHint:
    """What the daemon observed about the neighbours of one device.

    Attributes:
        uuid: The device.
        stamp_ns: CLOCK_MONOTONIC of the observation; the library ignores hints older than two seconds.
        others_active_percent: Sum of the core limits of the other containers that used the device lately; 0: none did.
        higher_priority_active: Whether one of them goes before this container.
        measured_busy_ns: GPU time that the node measured for this container since `measured_at_ns` of the hint
            before; None: not measured.
        measured_at_ns: CLOCK_MONOTONIC of that measurement.
    """

    uuid: str
    stamp_ns: int
    others_active_percent: int = 0
    higher_priority_active: bool = False
    measured_busy_ns: int | None = None
    measured_at_ns: int = 0


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """One device row of the state file. Bytes and nanoseconds.

    Attributes:
        doubtful: The file was overwritten and a living process has not put its figures right yet: used_bytes is too
            small, and the library grants nothing.
    """

    uuid_bytes: bytes
    used_bytes: int
    peak_bytes: int
    denied_count: int
    context_bytes: int
    busy_ns: int
    launches: int
    throttled_ns: int
    last_launch_ns: int
    doubtful: bool


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """What one process holds: kind of memory -> bytes, for each device row it uses. pid as seen in the container."""

    pid: int
    start_ticks: int
    pid_namespace: int
    held_bytes: tuple[dict[str, int], ...]

    def total_bytes(self, row: int) -> int:
        """All kinds of one device row."""
        return sum(self.held_bytes[row].values())


@dataclass(frozen=True, slots=True)
class State:
    """A snapshot of the state file; fields of one row are read one after another, not atomically.

    The container's processes can write anything into the file: figures may be absurd, never unreadable. `repairs`
    counts how often the library found that its figures had been overwritten.
    """

    devices: tuple[DeviceUse, ...]
    processes: tuple[ProcessUse, ...]
    reaped_slots: int
    recovered_locks: int
    repairs: int = 0


def uuid_to_bytes(uuid: str) -> bytes:
    """16 bytes of "GPU-…"/"MIG-…"; raises ValueError naming the text otherwise."""
    prefix, _, digits = uuid.partition("-")
    compact = digits.replace("-", "")
    if prefix not in {"GPU", "MIG"} or len(compact) != 32:
        raise ValueError(f"device UUID {uuid!r}: expected GPU-… or MIG-… with 32 hexadecimal digits")
    try:
        return bytes.fromhex(compact)
    except ValueError as error:
        raise ValueError(f"device UUID {uuid!r}: expected hexadecimal digits") from error


def write_limits(path: Path, devices: Sequence[DeviceLimit]) -> None:
    """Create the file atomically, or change it in place when it is there (a live change for mounted containers).

    Raises:
        BadLimitsFile: A limit is out of its range, a device is named twice, or an existing file is not a limits file.
    """
    wanted = tuple(devices)
    try:
        if os.path.exists(path):
            _rewrite(path, _encode_records(wanted), len(wanted))
        else:
            write_whole(path, _first_content(wanted), 0o644)
    except _NotEncodable as error:
        raise BadLimitsFile(path, error.problem, error.remedy) from error


def read_limits(path: Path) -> tuple[DeviceLimit, ...]:
    """Read what write_limits wrote; raises BadLimitsFile when the file is torn, foreign or of another version."""
    data = path.read_bytes()
    problem = _problem(data)
    if problem is not None:
        raise BadLimitsFile(path, problem, "let the device plugin write it again")
    count: int = _get(data, 0, layout.LIMITS_HEADER_DEVICE_COUNT)
    return tuple(_decode_record(data, layout.LIMITS_RECORDS_AT + i * layout.LIMITS_RECORD_SIZE) for i in range(count))


def write_hints(path: Path, hints: Sequence[DeviceHint]) -> None:
    """Publish observations for devices of an existing limits file; devices that it does not list are left out.

    Contract with the library in the container:

    - Caller: the daemon that writes the limits; no second writer, and never while `write_limits` runs on the file.
    - A hint replaces the one before it as a whole, under a sequence of its own: readers see the old one, the new one,
      or for a moment none. It counts for two seconds from `stamp_ns`; renew it every second or sooner.
    - `others_active_percent` 0 lets a SOFT container use the whole card; otherwise it gets own / (own + others) of it,
      never less than its own limit. HARD and OFF containers learn from it only whether there are neighbours.
    - `higher_priority_active` holds any container but an OFF one to 5 percent (or its own limit, if that is less).
    - Without a fresh hint SOFT means HARD and nobody is held back: a daemon that stops fails towards the limits.
    - `measured_busy_ns` covers the time since `measured_at_ns` of the hint before; with an unchanged `measured_at_ns`
      a hint carries no new measurement.
    - A container without a core limit pays for launches like a limited one once a hint was published for it, and then
      tells `last_launch_ns` in its state file. Before, it tells nothing: publish one hint for each container of a card
      where activity matters, also while nobody is active.

    Raises:
        BadLimitsFile: There is no good limits file.
    """
    rows = {uuid_to_bytes(limit.uuid): row for row, limit in enumerate(read_limits(path))}
    with path.open("r+b") as file, mmap.mmap(file.fileno(), layout.LIMITS_FILE_SIZE) as view:
        first = False
        for hint in hints:
            row = rows.get(uuid_to_bytes(hint.uuid))
            if row is not None:
                base = layout.LIMITS_HINTS_AT + row * layout.LIMITS_HINT_SIZE
                first = first or _get(view, base, layout.LIMITS_HINT_SEQUENCE) == 0
                _write_hint(view, base, hint)
        if first:
            # Libraries look at hints of an unlimited container only when the limits' sequence has changed.
            sequence = _get(view, 0, layout.LIMITS_HEADER_SEQUENCE)
            _put(view, 0, layout.LIMITS_HEADER_SEQUENCE, (sequence + 2) & 0xFFFFFFFF)


def create_state(path: Path) -> None:
    """Make an empty state file that any user of the container may write; the first process initialises it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        os.ftruncate(descriptor, layout.STATE_FILE_SIZE)
        os.fchmod(descriptor, 0o666)
    finally:
        os.close(descriptor)


def read_state(path: Path) -> State:
    """Snapshot the state file. An untouched one (nobody used a GPU yet) is empty, not an error.

    Never waits and follows no link, whatever the container put in the file's place.

    Raises:
        BadLimitsFile: It is no file, or too short, or of another version.
    """
    with _open_regular(path) as descriptor:
        data = os.pread(descriptor, layout.STATE_FILE_SIZE, 0)
    if not data or _get(data.ljust(8, b"\0"), 0, layout.STATE_HEADER_MAGIC) == 0:
        return State((), (), 0, 0)
    if len(data) < layout.STATE_FILE_SIZE or (
        _get(data, 0, layout.STATE_HEADER_MAGIC) != layout.STATE_MAGIC
        or _get(data, 0, layout.STATE_HEADER_VERSION) != layout.STATE_VERSION
    ):
        raise BadLimitsFile(path, "not a state file of this version", "restart the pod that owns it")
    rows = [layout.STATE_DEVICES_AT + row * layout.STATE_DEVICE_SIZE for row in range(layout.MAX_DEVICES)]
    count = max((row + 1 for row, at in enumerate(rows) if _get(data, at, layout.STATE_DEVICE_IN_USE)), default=0)
    high = min(_get(data, 0, layout.STATE_HEADER_SLOTS_HIGH), layout.MAX_SLOTS)
    slots = (layout.STATE_SLOTS_AT + i * layout.SLOT_SIZE for i in range(high))
    return State(
        devices=tuple(_device_use(data, at) for at in rows[:count]),
        processes=tuple(_process_use(data, at, count) for at in slots if _get(data, at, layout.SLOT_OWNER) != 0),
        reaped_slots=_get(data, 0, layout.STATE_HEADER_REAPED_SLOTS),
        recovered_locks=_get(data, 0, layout.STATE_HEADER_RECOVERED_LOCKS),
        repairs=_get(data, 0, layout.STATE_HEADER_REPAIRS),
    )


def last_launch_ns(path: Path, uuid: str, rows: int) -> int:
    """Return CLOCK_MONOTONIC of the last launch on a device that a state file tells; 0: it tells of none.

    As safe as :func:`read_state`, and cheap: of the whole file only what is asked for is read.

    Args:
        path: The state file.
        uuid: The device.
        rows: How many device rows to look through: one for each device of the limits file.

    Raises:
        BadLimitsFile: It is no file.
        OSError: It cannot be opened.
    """
    wanted = uuid_to_bytes(uuid)
    with _open_regular(path) as descriptor:
        for row in range(rows):
            data = os.pread(descriptor, _LAUNCH_BYTES, layout.STATE_DEVICES_AT + row * layout.STATE_DEVICE_SIZE)
            if len(data) == _LAUNCH_BYTES and _device_uuid(data, 0) == wanted:
                return _get(data, 0, layout.STATE_DEVICE_LAST_LAUNCH_NS)
    return 0


@contextmanager
def _open_regular(path: Path) -> Iterator[int]:
    """Open what a container may have replaced or cut short: no link is followed, nothing waited for, nothing mapped."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _not_regular(path) from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _not_regular(path)
        yield descriptor
    finally:
        os.close(descriptor)


def _not_regular(path: Path) -> BadLimitsFile:
    return BadLimitsFile(path, "is not a regular file", "restart the pod that owns it")


def _get(data: bytes | mmap.mmap, base: int, member: layout.Field) -> int:
    value: int = struct.unpack_from(member.format, data, base + member.offset)[0]
    return value


def _put(view: bytearray | mmap.mmap, base: int, member: layout.Field, value: int | bytes) -> None:
    struct.pack_into(member.format, view, base + member.offset, value)


class _NotEncodable(ValueError):
    def __init__(self, problem: str, remedy: str = "correct the allocation of this container") -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy


def _check(devices: Sequence[DeviceLimit]) -> None:
    if len(devices) > layout.MAX_DEVICES:
        raise _NotEncodable(f"{len(devices)} devices, at most {layout.MAX_DEVICES} fit")
    if len({device.uuid for device in devices}) != len(devices):
        raise _NotEncodable("a device is named twice")
    for device in devices:
        if device.memory_mib is not None and not 1 <= device.memory_mib <= 1 << 40:
            raise _NotEncodable(f"{device.uuid}: memory_mib {device.memory_mib} is not 1 or more")
        if not 0 <= device.core_percent <= 100:
            raise _NotEncodable(f"{device.uuid}: core_percent {device.core_percent} is not 0..100")
        if not 0 <= device.spill_mib <= (device.memory_mib or 0):
            raise _NotEncodable(f"{device.uuid}: spill_mib {device.spill_mib} exceeds memory_mib")


@lru_cache(maxsize=_KEPT)
def _first_content(devices: tuple[DeviceLimit, ...]) -> bytes:
    """Return a new file; containers come in few sizes, and there are as many cards as there are."""
    records = _encode_records(devices)
    header = _header(records, len(devices), sequence=2, epoch=1)
    return header + records + bytes(layout.LIMITS_FILE_SIZE - layout.LIMITS_HINTS_AT)


def _encode_records(devices: tuple[DeviceLimit, ...]) -> bytes:
    _check(devices)
    out = bytearray(layout.LIMITS_HINTS_AT - layout.LIMITS_RECORDS_AT)
    for row, device in enumerate(devices):
        base = row * layout.LIMITS_RECORD_SIZE
        try:
            _put(out, base, layout.LIMITS_RECORD_UUID, uuid_to_bytes(device.uuid))
        except ValueError as error:
            raise _NotEncodable(str(error), "use the UUID that NVML reports") from error
        memory = layout.NO_MEMORY_LIMIT if device.memory_mib is None else device.memory_mib * MIB
        _put(out, base, layout.LIMITS_RECORD_MEMORY_BYTES, memory)
        _put(out, base, layout.LIMITS_RECORD_SPILL_BYTES, device.spill_mib * MIB)
        share = Fraction(device.core_percent * layout.FULL_CORES_Q16, 100)
        _put(out, base, layout.LIMITS_RECORD_CORE_Q16, round(share))
        _put(out, base, layout.LIMITS_RECORD_CORE_POLICY, int(device.core_policy))
        _put(out, base, layout.LIMITS_RECORD_PRIORITY, device.priority)
        _put(out, base, layout.LIMITS_RECORD_IS_MIG, int(device.uuid.startswith("MIG-")))
    return bytes(out)


def _decode_record(data: bytes, base: int) -> DeviceLimit:
    digits = struct.unpack_from(layout.LIMITS_RECORD_UUID.format, data, base)[0].hex()
    prefix = "MIG" if _get(data, base, layout.LIMITS_RECORD_IS_MIG) else "GPU"
    memory = _get(data, base, layout.LIMITS_RECORD_MEMORY_BYTES)
    share = _get(data, base, layout.LIMITS_RECORD_CORE_Q16)
    return DeviceLimit(
        uuid=f"{prefix}-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}",
        memory_mib=None if memory == layout.NO_MEMORY_LIMIT else memory // MIB,
        core_percent=round(Fraction(share * 100, layout.FULL_CORES_Q16)),
        core_policy=CorePolicy(_get(data, base, layout.LIMITS_RECORD_CORE_POLICY)),
        priority=_get(data, base, layout.LIMITS_RECORD_PRIORITY),
        spill_mib=_get(data, base, layout.LIMITS_RECORD_SPILL_BYTES) // MIB,
    )


def _checksum(header: bytes, records: bytes) -> int:
    return zlib.crc32(records, zlib.crc32(header[layout.LIMITS_HEADER_DEVICE_COUNT.offset :]))


def _header(records: bytes, count: int, *, sequence: int, epoch: int) -> bytes:
    header = bytearray(layout.LIMITS_HEADER_SIZE)
    _put(header, 0, layout.LIMITS_HEADER_MAGIC, layout.LIMITS_MAGIC)
    _put(header, 0, layout.LIMITS_HEADER_VERSION, layout.LIMITS_VERSION)
    _put(header, 0, layout.LIMITS_HEADER_SIZE_BYTES, layout.LIMITS_FILE_SIZE)
    _put(header, 0, layout.LIMITS_HEADER_DEVICE_COUNT, count)
    _put(header, 0, layout.LIMITS_HEADER_EPOCH, epoch)
    _put(header, 0, layout.LIMITS_HEADER_SEQUENCE, sequence)
    _put(header, 0, layout.LIMITS_HEADER_CHECKSUM, _checksum(bytes(header), records))
    return bytes(header)


def _problem(data: bytes) -> str | None:
    if len(data) < layout.LIMITS_FILE_SIZE:
        return f"{len(data)} bytes instead of {layout.LIMITS_FILE_SIZE}"
    if _get(data, 0, layout.LIMITS_HEADER_MAGIC) != layout.LIMITS_MAGIC:
        return "not a limits file"
    version = _get(data, 0, layout.LIMITS_HEADER_VERSION)
    if version != layout.LIMITS_VERSION:
        return f"version {version} instead of {layout.LIMITS_VERSION}"
    if _get(data, 0, layout.LIMITS_HEADER_SIZE_BYTES) != layout.LIMITS_FILE_SIZE:
        return "its own size is wrong"
    records = data[layout.LIMITS_RECORDS_AT : layout.LIMITS_HINTS_AT]
    if _get(data, 0, layout.LIMITS_HEADER_CHECKSUM) != _checksum(data[: layout.LIMITS_HEADER_SIZE], records):
        return "checksum does not fit"
    return None


def _rewrite(path: Path, records: bytes, count: int) -> None:
    # Unbuffered: each write is a system call of its own, so readers on other processors see them in this order.
    with path.open("r+b", buffering=0) as file:
        old = file.read(layout.LIMITS_FILE_SIZE) or b""
        if len(old) < layout.LIMITS_FILE_SIZE or _get(old, 0, layout.LIMITS_HEADER_MAGIC) != layout.LIMITS_MAGIC:
            raise BadLimitsFile(path, "exists and is not a limits file", "remove it")
        sequence = _get(old, 0, layout.LIMITS_HEADER_SEQUENCE) // 2 * 2
        header = _header(records, count, sequence=sequence + 1, epoch=_get(old, 0, layout.LIMITS_HEADER_EPOCH) + 1)
        at = layout.LIMITS_HEADER_SEQUENCE.offset
        for offset, data in (
            (at, struct.pack("<I", (sequence + 1) & 0xFFFFFFFF)),
            (0, header),
            (layout.LIMITS_RECORDS_AT, records),
            (at, struct.pack("<I", (sequence + 2) & 0xFFFFFFFF)),
        ):
            file.seek(offset)
            file.write(data)


def _write_hint(view: mmap.mmap, base: int, hint: DeviceHint) -> None:
    sequence = struct.unpack_from("<I", view, base)[0] // 2 * 2
    _put(view, base, layout.LIMITS_HINT_SEQUENCE, (sequence + 1) & 0xFFFFFFFF)
    others = round(Fraction(hint.others_active_percent * layout.FULL_CORES_Q16, 100))
    _put(view, base, layout.LIMITS_HINT_OTHERS_ACTIVE_Q16, others)
    _put(view, base, layout.LIMITS_HINT_HIGHER_PRIORITY_ACTIVE, int(hint.higher_priority_active))
    _put(view, base, layout.LIMITS_HINT_MEASURED_VALID, int(hint.measured_busy_ns is not None))
    _put(view, base, layout.LIMITS_HINT_STAMP_NS, hint.stamp_ns)
    _put(view, base, layout.LIMITS_HINT_MEASURED_BUSY_NS, hint.measured_busy_ns or 0)
    _put(view, base, layout.LIMITS_HINT_MEASURED_AT_NS, hint.measured_at_ns)
    _put(view, base, layout.LIMITS_HINT_SEQUENCE, (sequence + 2) & 0xFFFFFFFF or 2)


def _device_uuid(data: bytes, base: int) -> bytes:
    uuid: bytes = struct.unpack_from(layout.STATE_DEVICE_UUID.format, data, base + layout.STATE_DEVICE_UUID.offset)[0]
    return uuid


def _device_use(data: bytes, base: int) -> DeviceUse:
    return DeviceUse(
        uuid_bytes=_device_uuid(data, base),
        used_bytes=_get(data, base, layout.STATE_DEVICE_USED_BYTES),
        peak_bytes=_get(data, base, layout.STATE_DEVICE_PEAK_BYTES),
        denied_count=_get(data, base, layout.STATE_DEVICE_DENIED_COUNT),
        context_bytes=_get(data, base, layout.STATE_DEVICE_CONTEXT_BYTES),
        busy_ns=_get(data, base, layout.STATE_DEVICE_BUSY_NS),
        launches=_get(data, base, layout.STATE_DEVICE_LAUNCHES),
        throttled_ns=_get(data, base, layout.STATE_DEVICE_THROTTLED_NS),
        last_launch_ns=_get(data, base, layout.STATE_DEVICE_LAST_LAUNCH_NS),
        doubtful=_get(data, base, layout.STATE_DEVICE_DOUBTFUL) != 0,
    )


def _process_use(data: bytes, base: int, rows: int) -> ProcessUse:
    owner = _get(data, base, layout.SLOT_OWNER)
    held = []
    for row in range(rows):
        at = base + layout.SLOT_DEVICES.offset + row * layout.SLOT_DEVICE_SIZE
        values = struct.unpack_from(layout.SLOT_DEVICE_HELD_BYTES.format, data, at)
        held.append({kind: value for kind, value in zip(_KIND_NAMES, values, strict=True) if value})
    return ProcessUse(
        pid=owner & 0x3FFFFF,
        start_ticks=owner >> 22,
        pid_namespace=_get(data, base, layout.SLOT_PID_NAMESPACE),
        held_bytes=tuple(held),
    )
