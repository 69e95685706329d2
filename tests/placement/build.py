"""Builders with defaults for placement tests."""

from typing import Any

from gpuslice.devices.allocation import PodAllocation, SliceShare
from gpuslice.devices.inventory import Card, NodeCards
from gpuslice.devices.requests import CardSelection, ContainerDemand, ContainerRequest, PodRequest, Role
from gpuslice.placement import decide
from gpuslice.placement.events import Assume, Confirm, NodeSeen, PodKey, PodSeen
from gpuslice.placement.ledger import Ledger
from gpuslice.placement.policies.registry import PolicyDefaults

BINPACK = PolicyDefaults(node="binpack", card="binpack")
SPREAD = PolicyDefaults(node="spread", card="spread")


def card(uuid: str, **changes: Any) -> Card:
    """Return a card of 16384 MiB and 10 slots."""
    defaults: dict[str, Any] = {"memory_mib": 16384, "slots": 10, "model": "NVIDIA A100-SXM4-40GB"}
    return Card(uuid=uuid, **(defaults | changes))


def node(name: str, *cards: Card, links: tuple[tuple[int, ...], ...] = (), **changes: Any) -> NodeSeen:
    """Return a node event."""
    return NodeSeen(NodeCards(name, cards, links), **changes)


def ask(
    cards: int = 1,
    memory_mib: int = 1000,
    core_percent: int = 0,
    *,
    name: str = "main",
    role: Role = Role.APP,
    **more: Any,
) -> ContainerDemand:
    """Return one container's demand."""
    return ContainerDemand(
        name, role, ContainerRequest(cards=cards, memory_mib=memory_mib, core_percent=core_percent, **more)
    )


def request(*containers: ContainerDemand, selection: CardSelection = CardSelection(), **changes: Any) -> PodRequest:  # noqa: B008
    """Return a pod's request; one container of 1000 MiB by default."""
    return PodRequest(containers=containers or (ask(),), selection=selection, **changes)


def key(uid: str) -> PodKey:
    """Return a pod key in namespace ``default``."""
    return PodKey(uid, "default", uid)


def roles_of(asked: PodRequest) -> tuple[tuple[str, Role], ...]:
    """Return the init containers of a request."""
    return tuple((demand.name, demand.role) for demand in asked.containers if demand.role is not Role.APP)


def share(slice_: str, memory_mib: int = 1000, core_percent: int = 0, *, exclusive: bool = False) -> SliceShare:
    """Return one share."""
    return SliceShare(slice_, memory_mib, core_percent, exclusive=exclusive)


def given(node_name: str, *shares: SliceShare, container: str = "main") -> PodAllocation:
    """Return an allocation of one container."""
    return PodAllocation(node_name, {container: shares})


def run(
    ledger: Ledger, uid: str, asked: PodRequest, node_name: str = "", defaults: PolicyDefaults = BINPACK, **more: Any
) -> PodAllocation | None:
    """Schedule one pod as the extender does: filter, place, assume, confirm. None when it fits nowhere."""
    names = [node_name] if node_name else sorted(ledger.fleet.row_of)
    decision = decide.filter_nodes(ledger, asked, names, defaults, decide.Asker(uid))
    if not decision.fits_anywhere:
        return None
    placed = decide.place(ledger, asked, decision.best()[0], defaults, decide.Asker(uid))
    assert isinstance(placed, PodAllocation)
    ledger.apply(Assume(key(uid), placed, now=0.0, roles=roles_of(asked), **more))
    ledger.apply(Confirm(uid))
    ledger.check_invariants()
    return placed


def seen(uid: str, allocation: PodAllocation | None, node_name: str | None = None, **changes: Any) -> PodSeen:
    """Return a pod event; bound to the allocation's node by default."""
    where = node_name if node_name is not None else (allocation.node if allocation is not None else "")
    return PodSeen(key(uid), node=where, allocation=allocation, **changes)
