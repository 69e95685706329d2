"""Per-node configuration: one YAML file for the whole cluster, rules matched in order, later rules win.

    defaults:
      slotsPerCard: 10
    rules:
      - match: {node: "gpu-t4-*"}            # glob on the node's name
        set: {slotsPerCard: 4}
      - match: {labels: {pool: inference}}   # all labels must be equal
        set: {mode: time-slicing}
      - match: {model: "*H200*"}             # glob on the card's model: applies to those cards only
        set: {mode: exclusive}

Unlike a merge that cannot tell "false" from "absent", a key that is written always counts. The file is read again when
it changes; a file that cannot be read leaves the last good configuration in force.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import msgspec

from gpuslice.devices.errors import BadConfiguration

Mode = Literal["hami-core", "exclusive", "time-slicing", "mps", "mig-static"]
MigStrategy = Literal["none", "single", "mixed"]
ListStrategy = Literal["envvar", "volume-mounts", "cdi-cri", "cdi-annotations"]
Unmanaged = Literal["deny", "allow"]
CorePolicy = Literal["hard", "soft", "off"]


@dataclass(frozen=True, slots=True)
class CardSettings:
    """How one card is shared."""

    mode: Mode = "hami-core"
    slots_per_card: int = 10
    """1 to 1000; device IDs per card."""
    memory_scaling: float = 1.0
    """Memory that may be promised, as a multiple of what the card has."""
    core_scaling: float = 1.0


class _Filter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    uuids: tuple[str, ...] = ()
    indexes: tuple[int, ...] = ()


class _Set(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Keys of `defaults` and `set`; None means not written."""

    mode: Mode | None = None
    slots_per_card: int | None = None
    memory_scaling: float | None = None
    core_scaling: float | None = None
    mig_strategy: MigStrategy | None = None
    device_list_strategy: ListStrategy | None = None
    unmanaged: Unmanaged | None = None
    core_policy: CorePolicy | None = None
    pass_device_specs: bool | None = None
    numa: bool | None = None
    filter_devices: _Filter | None = None
    container_env: dict[str, str] | None = None
    container_mounts: dict[str, str] | None = None


class _Match(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    node: str = "*"
    labels: dict[str, str] = {}
    model: str | None = None


class _Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    match: _Match
    set: _Set


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    defaults: _Set = _Set()
    rules: tuple[_Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The configuration of one node. `card_rules` are model globs with what they set, in order."""

    cards: CardSettings = CardSettings()
    card_rules: tuple[tuple[str, Mapping[str, object]], ...] = ()
    mig_strategy: MigStrategy = "none"
    device_list_strategy: ListStrategy = "cdi-cri"
    unmanaged: Unmanaged = "deny"
    core_policy: CorePolicy = "hard"
    pass_device_specs: bool = True
    """Name device nodes explicitly; without it containers lose their cards when systemd reloads cgroups."""
    numa: bool = True
    """Report NUMA nodes to the kubelet's topology manager."""
    filtered_uuids: frozenset[str] = frozenset()
    filtered_indexes: frozenset[int] = frozenset()
    container_env: tuple[tuple[str, str], ...] = ()
    """Variables for every container with a card, for example of the driver installation."""
    container_mounts: tuple[tuple[str, str], ...] = ()
    """(host path, container path), read-only, for every container with a card: the driver's libraries."""

    def filters_out(self, uuid: str, index: int) -> bool:
        """Tell whether a card is not ours to offer."""
        return uuid in self.filtered_uuids or index in self.filtered_indexes

    def for_card(self, uuid: str, model: str) -> CardSettings:
        """Return the settings of one card; `uuid` may be matched by a model glob too (``GPU-…``)."""
        values = _as_dict(self.cards)
        for glob, changes in self.card_rules:
            if fnmatchcase(model, glob) or fnmatchcase(uuid, glob):
                values.update(changes)
        return CardSettings(**values)  # type: ignore[arg-type]  # built from its own field names


_CARD_FIELDS = ("mode", "slots_per_card", "memory_scaling", "core_scaling")
_NODE_FIELDS = (
    "mig_strategy", "device_list_strategy", "unmanaged", "core_policy", "pass_device_specs", "numa",
)  # fmt: skip


def _as_dict(settings: CardSettings) -> dict[str, object]:
    return {name: getattr(settings, name) for name in _CARD_FIELDS}


def parse(source: str, content: bytes, *, node: str, labels: Mapping[str, str]) -> NodeSettings:
    """Read the configuration of one node.

    Raises:
        BadConfiguration: The file is not valid; names the field and what it may be.
    """
    import yaml  # noqa: PLC0415  only nodes with a file need it

    try:
        document = yaml.safe_load(content)
        file = msgspec.convert(document if document is not None else {}, _File)
    except yaml.YAMLError as error:
        raise BadConfiguration(source, "file", " ".join(str(error).split()), "write valid YAML") from error
    except msgspec.ValidationError as error:
        text = str(error)
        field = text.rpartition("`")[0].rpartition("`")[2] if "`" in text else "file"
        raise BadConfiguration(source, field, text, "see docs/reference for the keys and their values") from error
    node_rules = [
        rule for rule in file.rules
        if fnmatchcase(node, rule.match.node)
        and all(labels.get(key) == value for key, value in rule.match.labels.items())
    ]  # fmt: skip
    whole = [rule.set for rule in node_rules if rule.match.model is None]
    per_card = [(rule.match.model, rule.set) for rule in node_rules if rule.match.model is not None]
    return _resolve(source, [file.defaults, *whole], per_card)


def _resolve(source: str, layers: list[_Set], per_card: list[tuple[str, _Set]]) -> NodeSettings:
    card_values: dict[str, object] = _as_dict(CardSettings())
    node_values: dict[str, object] = {}
    for layer in layers:
        card_values.update(_written(source, layer, _CARD_FIELDS))
        node_values.update(_written(source, layer, _NODE_FIELDS))
        if layer.filter_devices is not None:
            node_values["filtered_uuids"] = frozenset(layer.filter_devices.uuids)
            node_values["filtered_indexes"] = frozenset(layer.filter_devices.indexes)
        if layer.container_env is not None:
            node_values["container_env"] = tuple(sorted(layer.container_env.items()))
        if layer.container_mounts is not None:
            node_values["container_mounts"] = tuple(sorted(layer.container_mounts.items()))
    rules = []
    for glob, layer in per_card:
        if unfit := [name for name in _NODE_FIELDS if getattr(layer, name) is not None]:
            raise BadConfiguration(source, unfit[0], "applies to a node, not to one model", "move it to a rule by node")
        rules.append((glob, _written(source, layer, _CARD_FIELDS)))
    return NodeSettings(
        cards=CardSettings(**card_values),  # type: ignore[arg-type]  # field names of its own
        card_rules=tuple(rules),
        **node_values,  # type: ignore[arg-type]
    )


def _written(source: str, layer: _Set, names: tuple[str, ...]) -> dict[str, object]:
    found = {name: value for name in names if (value := getattr(layer, name)) is not None}
    _check(source, found, "slots_per_card", 1, 1000)
    _check(source, found, "memory_scaling", 0.01, 100)
    _check(source, found, "core_scaling", 0.01, 100)
    return found


def _check(source: str, found: Mapping[str, object], name: str, low: float, high: float) -> None:
    value = found.get(name)
    if isinstance(value, (int, float)) and not low <= value <= high:
        first, *rest = name.split("_")
        key = first + "".join(part.capitalize() for part in rest)
        raise BadConfiguration(source, key, f"{value} is out of range", f"give a number from {low} to {high}")


def load(path: Path | None, *, node: str, labels: Mapping[str, str]) -> NodeSettings:
    """Read the file; no file means all defaults.

    Raises:
        BadConfiguration: It cannot be read or is not valid.
    """
    if path is None:
        return NodeSettings()
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadConfiguration(str(path), "file", str(error), "give a readable file") from error
    return parse(str(path), content, node=node, labels=labels)
