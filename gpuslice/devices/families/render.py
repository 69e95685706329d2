"""The pod annotations by which an allocation reaches a vendor's plugin, HAMi's plugins and HAMi's tools.

HAMi's grammar is positional: every container of the pod has its place, init containers first, an empty one is a bare
``;``. A device is ``UUID,TYPE,MiB,CORES:``. Each kind has keys of its own and sees only its own devices.
"""

from collections.abc import Mapping, Sequence

import msgspec

from gpuslice.devices.allocation import PodAllocation, SliceShare
from gpuslice.devices.errors import DeviceGone
from gpuslice.devices.families.family import ExtraAnnotation, Family, JsonValue, ListValue, Size
from gpuslice.devices.families.loader import Families
from gpuslice.devices.inventory import Card, NodeCards, number_of_slice
from gpuslice.devices.pods import Container, Pod
from gpuslice.devices.value import Value

ALLOCATING = "allocating"
SUCCESS = "success"
_NO_SIZE = Size(mib=0)


class _Device(Value, frozen=True):
    """One share with everything that a format may ask for."""

    share: SliceShare
    card: Card
    family: Family

    @property
    def cores(self) -> int:
        """The CORES field of HAMi's string, in the vendor's units."""
        rule, percent = self.family.cores, self.share.core_percent
        if rule.written_as == "mask":
            return sum(1 << unit for unit in self.units)
        if rule.written_as == "card-units":
            return max(1, self.card.core_units * percent // 100) if percent else 0
        return -(-percent * rule.units_per_card // 100)

    @property
    def units(self) -> tuple[int, ...]:
        """Compute units of the card that belong to the share: all, or the one with the number of the slice."""
        units = self.family.cores.alone_units_per_card
        if self.share.core_percent in (0, 100):
            return tuple(range(units))
        return (number_of_slice(self.share.slice) % units,)

    @property
    def type(self) -> str:
        """The TYPE field."""
        return self.card.model or self.family.word if self.family.pod_type == "model" else self.family.word

    @property
    def size(self) -> Size:
        """The size on sale that the share is, or a nameless one."""
        return next((size for size in self.family.memory.sizes if size.mib == self.share.memory_mib), _NO_SIZE)

    def text(self) -> str:
        """The device in HAMi's grammar."""
        return f"{self.card.uuid},{self.type},{self.share.memory_mib},{self.cores}:"


_Placed = Sequence[tuple[Container, Sequence[_Device]]]


def pod_annotations(
    pod: Pod,
    allocation: PodAllocation,
    cards: NodeCards,
    families: Families,
    *,
    now_nanoseconds: int,
    phase: str = SUCCESS,
) -> dict[str, str]:
    """Return HAMi's and the vendors' annotations for a decision.

    Args:
        pod: The pod; the order of its containers is the grammar's order.
        allocation: The decision.
        cards: The cards of the chosen node.
        families: All kinds.
        now_nanoseconds: Unix time of the decision.
        phase: ``allocating`` where HAMi's plugin will complete the allocation, else ``success``.

    Raises:
        DeviceGone: The allocation names a card that the node does not have.
    """
    seconds = str(now_nanoseconds // 1_000_000_000)
    result = {
        "hami.io/vgpu-node": allocation.node,
        "hami.io/vgpu-time": seconds,
        "hami.io/bind-phase": phase,
        "hami.io/bind-time": seconds,
    }
    by_uuid = {card.uuid: card for card in cards.cards}
    names = dict.fromkeys(share.family for _, share in allocation.shares())
    for family in (families.by_name[name] for name in names):
        placed = _place(pod, allocation, by_uuid, family)
        value = device_string([devices for _, devices in placed])
        if family.pod.to_allocate is not None:
            result[family.pod.to_allocate] = value
        result[family.pod.allocated] = value
        for extra in family.pod.extra:
            if _applies(extra, placed, family):
                result[extra.key] = _extra(extra, placed, pod, allocation.node, now_nanoseconds)
    return result


def device_string(containers: Sequence[Sequence[_Device]]) -> str:
    """Write devices by container in HAMi's grammar."""
    return "".join(["".join([device.text() for device in devices]) + ";" for devices in containers])


def _place(pod: Pod, allocation: PodAllocation, cards: Mapping[str, Card], family: Family) -> _Placed:
    placed = []
    for container in (*(pod.spec.init_containers or ()), *(pod.spec.containers or ())):
        devices = []
        for share in allocation.containers.get(container.name, ()):
            if share.family == family.name:
                card = cards.get(share.card)
                if card is None:
                    raise DeviceGone(allocation.node, share.card)
                devices.append(_Device(share, card, family))
        placed.append((container, devices))
    return placed


def _applies(extra: ExtraAnnotation, placed: _Placed, family: Family) -> bool:
    if extra.when == "always":
        return True
    if extra.when == "several":
        return any(len(devices) > 1 for _, devices in placed)
    alone = family.resources.cores_alone
    by_cores = any(
        devices and container.resources is not None and container.resources.get(str(alone)) is not None
        for container, devices in placed
    )
    return by_cores == (extra.when == "by-cores")


def _extra(extra: ExtraAnnotation, placed: _Placed, pod: Pod, node: str, now_nanoseconds: int) -> str:
    devices = [device for _, held in placed for device in held]
    if extra.list is not None:
        return _list(extra.list, placed)
    if extra.json is not None:
        key, _, value = devices[0].family.memory.exact_when.partition("=")
        exact = extra.json_exact is not None and bool(key) and pod.metadata.annotations.get(key) == value
        return _json(extra.json_exact if exact and extra.json_exact is not None else extra.json, placed)
    first = devices[0]
    return (extra.text or "").format(
        node=node,
        seconds=now_nanoseconds // 1_000_000_000,
        nanoseconds=now_nanoseconds,
        count=len(devices),
        first_index=first.card.index,
        first_cores=first.cores,
        first_units=first.share.memory_mib // first.family.memory.unit_mib,
        first_slices=_slices(first),
    )


def _slices(device: _Device) -> int:
    sizes = device.family.memory.sizes
    return device.size.slices or (sizes[-1].slices if sizes else 0)


def _list(form: ListValue, placed: _Placed) -> str:
    if form.last_container_only:
        held = [devices for _, devices in placed if devices]
        return _items(form, held[-1] if held else ())
    if form.between == form.separator:
        return _items(form, [device for _, devices in placed for device in devices])
    return form.between.join(_items(form, devices) for _, devices in placed)


def _items(form: ListValue, devices: Sequence[_Device]) -> str:
    items: list[str] = []
    for device in devices:
        if "{unit}" in form.item:
            base = device.card.index * device.family.cores.alone_units_per_card
            items.extend(form.item.format(index=device.card.index, unit=base + unit) for unit in device.units)
        else:
            items.append(form.item.format(index=device.card.index))
    return form.separator.join(items)


def _json(form: JsonValue, placed: _Placed) -> str:
    value: object
    if form.shape == "devices":
        value = [_fields(form, device) for _, devices in placed for device in devices]
    elif form.shape == "containers":
        value = [[_fields(form, device) for device in devices] for _, devices in placed]
    else:
        named = {container.name: devices[0] for container, devices in placed if devices}
        value = {name: _fields(form, named[name]) for name in sorted(named)}
    return msgspec.json.encode(value).decode()


def _fields(form: JsonValue, device: _Device) -> dict[str, object]:
    values: dict[str, object] = {
        "uuid": device.card.uuid,
        "memory": device.share.memory_mib,
        "cores": device.cores,
        "index": device.card.index,
        "size": device.size.name,
        "size-id": device.size.id,
        "slices": _slices(device),
    }
    fields: dict[str, object] = {}
    for key, source in form.fields.items():
        if source == "false":
            fields[key] = False
        elif values[source] not in ("", 0) or source == "index":
            fields[key] = values[source]
    return fields
