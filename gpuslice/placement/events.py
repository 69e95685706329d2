"""What the ledger is told, and what it asks its owner to do.

Events carry facts; the ledger never calls anybody. Times are seconds on any monotonic clock of the owner's choice.
"""

from gpuslice.devices.allocation import PodAllocation
from gpuslice.devices.inventory import NodeCards
from gpuslice.devices.requests import PodRequest, Role
from gpuslice.devices.traits import PLAIN, PodTraits
from gpuslice.devices.value import Value

Roles = tuple[tuple[str, Role], ...]
"""Name and role of each init container, in pod order. Containers that are not named are app containers."""


class PodKey(Value, frozen=True):
    """Who a pod is."""

    uid: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class NodeSeen(Value, frozen=True):
    """A node exists, with these cards. ``cards`` without any card is a node whose plugin has registered nothing."""

    cards: NodeCards
    ready: bool = True
    """The node takes new pods and its device plugin is registered."""
    cpu_milli: int = -1
    """Allocatable CPU in thousandths of a core; -1 when unknown. Only fragmentation policies read it."""
    domain: str = ""
    """Zone, rack or NVLink domain; pods with node policy ``affine`` prefer the domain of their group."""


class NodeGone(Value, frozen=True):
    """A node was deleted. Its pods stay on record until the API server drops them."""

    name: str


class PodSeen(Value, frozen=True):
    """A pod as the API server has it."""

    key: PodKey
    node: str = ""
    """Node the pod is bound to; empty while pending."""
    allocation: PodAllocation | None = None
    """What its annotation says it was given."""
    roles: Roles = ()
    """Init containers, in pod order."""
    terminal: bool = False
    """Succeeded or Failed: no container of it runs again."""
    init_done: bool = False
    """All regular init containers have ended."""
    terminating: bool = False
    priority: int = 0
    cpu_milli: int = 0
    group: str = ""
    """UID of the owning Job (or the like), for ``affine``."""
    models: tuple[str, ...] = ()
    """Card models the pod insists on; part of the mix that fragmentation policies learn."""
    traits: PodTraits = PLAIN
    """What quota scopes look at."""
    unreadable: str = ""
    """Why its record of devices cannot be read. Without an ``allocation`` from elsewhere nobody knows what it holds."""
    created_at: str = ""
    """creationTimestamp; orders waiting pods, and victims among equals (youngest first)."""


class PodGone(Value, frozen=True):
    """The API server no longer has the pod."""

    uid: str


class Assume(Value, frozen=True):
    """We decided and are about to bind: hold the share for ``assume_seconds``."""

    key: PodKey
    allocation: PodAllocation
    now: float
    roles: Roles = ()
    priority: int = 0
    cpu_milli: int = 0
    group: str = ""
    models: tuple[str, ...] = ()
    traits: PodTraits = PLAIN
    created_at: str = ""


class Confirm(Value, frozen=True):
    """The binding was written."""

    uid: str


class Forget(Value, frozen=True):
    """The binding failed for certain: give an assumed share back. A bound one is not touched."""

    uid: str


class Refused(Value, frozen=True):
    """A pod was filtered and fits nowhere: watch out for a release that helps it."""

    key: PodKey
    request: PodRequest
    priority: int = 0
    created_at: str = ""
    cpu_milli: int = 0


class Reserve(Value, frozen=True):
    """Keep a share on a node for one pod while its victims end. Nobody else may take it."""

    key: PodKey
    allocation: PodAllocation
    victims: frozenset[str]
    """UIDs whose end the reservation waits for."""
    now: float
    roles: Roles = ()
    priority: int = 0


class Unreserve(Value, frozen=True):
    """Drop a pod's reservation."""

    uid: str


class Tick(Value, frozen=True):
    """Time has passed."""

    now: float


class Relist(Value, frozen=True):
    """The whole truth of the API server at one moment: what is not in it does not exist."""

    nodes: tuple[NodeSeen, ...]
    pods: tuple[PodSeen, ...]
    now: float = 0.0


Event = (
    NodeSeen | NodeGone | PodSeen | PodGone | Assume | Confirm | Forget | Refused | Reserve | Unreserve | Tick | Relist
)


class Wake(Value, frozen=True):
    """These waiting pods may fit now: patch them so that kube-scheduler looks again. Most urgent first."""

    pods: tuple[PodKey, ...]


class Expired(Value, frozen=True):
    """An assumed share ran out of time without being bound, and was given back. Read the pod to be sure."""

    key: PodKey
    node: str


class Conflict(Value, frozen=True):
    """The API server records more on a card than the card has. Nothing was taken away; a person must look."""

    node: str
    card: str
    problem: str
    pods: tuple[str, ...] = ()


class ReservationReady(Value, frozen=True):
    """The last victim of this pod's reservation has ended: wake the pod."""

    key: PodKey
    node: str


class ReservationLost(Value, frozen=True):
    """The reservation cannot be kept (node or card gone, or time is up)."""

    key: PodKey
    node: str
    reason: str


Command = Wake | Expired | Conflict | ReservationReady | ReservationLost
