"""What we know of one kind of accelerator: a frozen value read from YAML.

One file describes a vendor and holds one or more *kinds* (Huawei sells several chips, MetaX sells whole and shared
cards). Each kind has resource names of its own, so a container's resources tell which kind it wants.
Keys are camelCase in YAML. Sizes are MiB, compute is percent of one card unless ``units_per_card`` says otherwise.
"""

from typing import Literal

import msgspec


class _Data(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", gc=False):
    """Base: immutable, and an unknown key is an error (a typo must not silently become a default)."""


class Resources(_Data, frozen=True, kw_only=True):
    """Extended resource names, as written in a container's limits."""

    count: str
    memory: str | None = None
    memory_percentage: str | None = None
    cores: str | None = None
    priority: str | None = None
    cores_alone: str | None = None
    """A resource that counts compute units by itself, without a card count (AWS NeuronCores)."""
    aliases: dict[str, str] = msgspec.field(default_factory=dict)
    """Other spelling to the name above that it stands for (names that older plugins advertise)."""

    def names(self) -> tuple[str, ...]:
        """Return every resource name of the kind, the count first."""
        optional = (self.memory, self.memory_percentage, self.cores, self.priority, self.cores_alone)
        return (self.count, *(name for name in optional if name is not None), *self.aliases)


class Size(_Data, frozen=True, kw_only=True):
    """A size that the vendor cuts cards into."""

    mib: int
    name: str = ""
    """Template name the vendor's plugin expects, for example ``vir05_1c_16g``."""
    core_percent: int | None = None
    """Compute that comes with the size, percent of the card."""
    id: str = ""
    """Number of the template, where the vendor's plugin wants it."""
    slices: int = 0
    """Slices that the vendor counts for the size (kinds whose count is in slices)."""


class MemoryRule(_Data, frozen=True, kw_only=True):
    """How a memory request becomes MiB of one card."""

    unit_mib: int = 1
    """MiB per unit of a bare number; a number with a binary suffix always counts bytes."""
    bare_is_bytes: bool = False
    """A bare number counts bytes too."""
    sizes: tuple[Size, ...] = ()
    """Sizes on sale, ascending; empty means any."""
    rounding: Literal["exact", "up"] = "exact"
    """``exact``: a size not on sale is refused. ``up``: the next larger size is given."""
    card_mib: int | None = None
    """Memory of a card, where every card of the kind has the same."""
    capacity_mib: int | None = None
    """Largest request that still means a whole card (nominal size), where it differs from ``card_mib``."""
    scope: Literal["card", "container"] = "card"
    """``container``: the number is the total of all cards of the container."""
    default_mib: int = 0
    """Given when the container asks for none; 0 means the whole card's memory."""
    exact_when: str = ""
    """``annotation=value`` on the pod that switches the rounding off."""
    exact_with_cores: bool = False
    """A request for compute switches the rounding off."""


class CoreRule(_Data, frozen=True, kw_only=True):
    """How a compute request becomes percent of one card."""

    units_per_card: int = 100
    default_percent: int = 0
    """Given when the container asks for none; 0 means no cap."""
    scope: Literal["card", "container"] = "card"
    follows_memory: bool = False
    """Compute is the same fraction of the card as memory."""
    whole_memory_takes_all: bool = False
    """Who gets all memory of a card gets all its compute."""
    several_take_all: bool = False
    """Several cards in one container come with all their compute."""
    alone_units_per_card: int = 1
    """Units of ``resources.cores_alone`` on one card."""
    written_as: Literal["units", "card-units", "mask"] = "units"
    """The CORES field of HAMi's string: ``units_per_card`` for a whole card; units that each card reports
    (compute units); or a bit for each unit."""


class CountRule(_Data, frozen=True, kw_only=True):
    """How many cards one container may ask for."""

    allowed: tuple[int, ...] = ()
    """Empty means any number up to ``maximum``."""
    maximum: int = 1024
    default: int = 1
    """Cards of a container that asks for memory or compute only; 0 means that such a container is refused."""
    unit: Literal["cards", "slices"] = "cards"
    """``slices``: the number is the size of a share of one card, in the vendor's slices."""
    round_up_to: int = 1
    """A count of 1 becomes this many; other counts must be a multiple of it (modules of two chips)."""
    several_are_whole: bool = False
    """A container with more than one card gets whole cards; asking for a part of each is refused."""


class Selection(_Data, frozen=True, kw_only=True):
    """Pod annotations by which people pick cards; several keys mean the same thing (older spellings)."""

    use_uuid: tuple[str, ...] = ()
    nouse_uuid: tuple[str, ...] = ()
    use_type: tuple[str, ...] = ()
    nouse_type: tuple[str, ...] = ()
    numa_bind: tuple[str, ...] = ()
    mode: tuple[str, ...] = ()

    def keys(self) -> frozenset[str]:
        """Return every annotation key."""
        return frozenset(self.use_uuid + self.nouse_uuid + self.use_type + self.nouse_type + self.numa_bind + self.mode)


class ChoiceAnnotation(_Data, frozen=True, kw_only=True):
    """A pod annotation of the vendor with a fixed set of values."""

    key: str
    values: tuple[str, ...]
    default: str | None = None
    """Written by the webhook when the pod does not say."""
    unless: str = ""
    """``annotation=value`` with which the default is not written."""


class NodeFormat(_Data, frozen=True, kw_only=True):
    """Where and how a node tells its cards."""

    grammar: Literal["json", "text", "capacity", "metax", "drs"]
    register: str = ""
    """Node annotation with the cards (all grammars but ``capacity``)."""
    compute: Literal["percent", "units"] = "percent"
    """What the node counts as compute of a card: percent, or the vendor's units (compute units, AI cores)."""
    slots_per_card: int = 100
    """Containers that may share one card (``capacity`` only)."""
    card_name: str = ""
    """Name of a card, with ``{node}`` and ``{index}`` (``capacity`` only)."""
    count_resource: str = ""
    """Which resource in the node's capacity counts cards, where it is not the one that pods ask for."""
    group_size: int = 0
    """Cards with neighbouring numbers that belong together (``topology: group``); 0: each card tells its group."""
    group_key: str = ""
    """Key of the group in a card's ``custominfo`` (``json`` only)."""
    twins: bool = False
    """Cards at the same place of different groups have a link of their own."""
    cards_from: Literal["count", "cores"] = "count"
    """Which resource in the node's capacity counts the cards (``capacity`` only)."""


class JsonValue(_Data, frozen=True, kw_only=True):
    """A JSON value made of the devices of the pod."""

    shape: Literal["devices", "containers", "by-container"]
    """One flat list, a list per container, or an object keyed by container name (first device of each)."""
    fields: dict[str, str]
    """JSON key to what stands there: uuid, memory, cores, index, size, size-id, slices, false. Empty text and 0 are
    left out, as Go's omitempty does."""


class ListValue(_Data, frozen=True, kw_only=True):
    """A text made of the devices of the pod: items of a container, then containers."""

    item: str = "{index}"
    """With {index} and {unit}; ``{unit}`` repeats the item for each compute unit of the share."""
    separator: str = ","
    between: str = ","
    """Between containers; anything but the separator keeps empty containers visible."""
    last_container_only: bool = False


class ExtraAnnotation(_Data, frozen=True, kw_only=True):
    """A pod annotation besides HAMi's two device strings that the vendor's plugin reads. One of the forms is set."""

    key: str
    text: str | None = None
    """With {node}, {seconds}, {nanoseconds}, {count}, {first_index}, {first_cores}, {first_units}, {first_slices}."""
    json: JsonValue | None = None
    json_exact: JsonValue | None = None
    """Instead of ``json`` when rounding is switched off (``memory.exactWhen``)."""
    list: ListValue | None = None
    when: Literal["always", "several", "by-count", "by-cores"] = "always"
    """``several``: more than one card; ``by-cores``: the pod asked by ``resources.coresAlone``."""


class PodFormat(_Data, frozen=True, kw_only=True):
    """Pod annotations by which the allocation reaches the vendor's (or HAMi's) plugin."""

    allocated: str
    to_allocate: str | None = None
    """Absent where the vendor's plugin reads only its own keys."""
    extra: tuple[ExtraAnnotation, ...] = ()

    def annotation_keys(self) -> tuple[str, ...]:
        """Return every key we may write."""
        own = (self.allocated,) if self.to_allocate is None else (self.to_allocate, self.allocated)
        return own + tuple(extra.key for extra in self.extra)


class ContainerEnv(_Data, frozen=True, kw_only=True):
    """An environment variable the vendor's runtime needs; ``value`` may hold {container}."""

    name: str
    value: str


class Family(_Data, frozen=True, kw_only=True):
    """One kind of accelerator."""

    name: str
    vendor: str
    word: str
    """HAMi's word for the kind: the TYPE field of its device strings."""
    resources: Resources
    shared: bool = True
    """False: cards are handed out whole."""
    memory: MemoryRule = MemoryRule()
    cores: CoreRule = CoreRule()
    counts: CountRule = CountRule()
    selection: Selection = Selection()
    choices: tuple[ChoiceAnnotation, ...] = ()
    node: NodeFormat
    pod: PodFormat
    topology: Literal["none", "links", "ring", "group"] = "none"
    """What makes several cards a good set: links that the node measures, neighbours in a ring, groups."""
    equal_shares: bool = False
    """All shares of one card have the same size."""
    pod_type: Literal["word", "model"] = "word"
    """What stands in the TYPE field of the pod's device string."""
    visible_devices_env: str = ""
    """Environment variable by which a container picks cards itself; users may not set it in pods of this kind."""
    container_env: tuple[ContainerEnv, ...] = ()


class FamilyFile(_Data, frozen=True, kw_only=True):
    """One YAML file."""

    version: Literal[1]
    vendor: str
    title: str
    kinds: tuple[Family, ...]
