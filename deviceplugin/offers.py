"""What this node offers to share: physical cards seen through the node's configuration.

Pure. One physical card becomes one offered card (or one per MIG instance); an offered card becomes `slots` device IDs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from deviceplugin.devicelist import Device
from deviceplugin.nodeconfig import CardSettings, NodeSettings
from gpuslice.devices.inventory import Card, NodeCards, card_of_slice, slice_id
from gpuslice.nvml.inventory import Machine, MigInstance, PhysicalCard

GPU_RESOURCE = "nvidia.com/gpu"
MIG_RESOURCE_PREFIX = "nvidia.com/mig-"


@dataclass(frozen=True, slots=True)
class Offer:
    """One shareable device: a card or a MIG instance, with the resource it is asked for by."""

    card: Card
    resource: str
    physical: PhysicalCard
    mig: MigInstance | None = None

    def slices(self) -> tuple[str, ...]:
        """Return the device IDs."""
        return tuple(slice_id(self.card.uuid, number) for number in range(self.card.slots))


@dataclass(frozen=True, slots=True)
class Offers:
    """Everything a node offers, by offered UUID."""

    by_uuid: Mapping[str, Offer]
    links: tuple[tuple[int, ...], ...] = ()
    problems: tuple[str, ...] = ()
    """What an administrator must know: cards left out, and why."""

    def resources(self) -> tuple[str, ...]:
        """Return the resource names, sorted; at least the plain GPU resource, so that a node can gain cards later."""
        return tuple(sorted({GPU_RESOURCE} | {offer.resource for offer in self.by_uuid.values()}))

    def node_cards(self, node: str, *, identity_known: bool) -> NodeCards:
        """Return the inventory that the scheduler reads."""
        return NodeCards(node, tuple(offer.card for offer in self.by_uuid.values()), self.links, identity_known)

    def device_of(self, slice_name: str) -> Offer | None:
        """Return the offer that a device ID belongs to."""
        return self.by_uuid.get(card_of_slice(slice_name))


def make_offers(
    machine: Machine, settings: NodeSettings, *, unhealthy: Iterable[str] = (), cordoned: Iterable[str] = ()
) -> Offers:
    """Look at a machine through the node's configuration.

    Args:
        machine: NVML's reading.
        settings: This node's configuration.
        unhealthy: UUIDs of *physical* cards that are out of order; their instances share the verdict.
        cordoned: UUIDs or indexes (as text) taken out of service by an administrator.
    """
    sick, closed = frozenset(unhealthy), frozenset(cordoned)
    offers: list[Offer] = []
    problems: list[str] = [f"card at index {card.index} cannot be read: {card.problem}" for card in machine.unreadable]
    for physical in machine.cards:
        if settings.filters_out(physical.uuid, physical.index):
            continue
        card_settings = settings.for_card(physical.uuid, physical.model)
        made, found = _offers_of(physical, settings, card_settings)
        problems.extend(found)
        for offer in made:
            names = {offer.card.uuid, physical.uuid, str(physical.index)}
            card = replace(offer.card, healthy=physical.uuid not in sick, cordoned=bool(names & closed))
            offers.append(replace(offer, card=card))
    return Offers({offer.card.uuid: offer for offer in offers}, _links(machine, offers), tuple(problems))


def _offers_of(physical: PhysicalCard, settings: NodeSettings, card: CardSettings) -> tuple[list[Offer], list[str]]:
    if not physical.mig_enabled:
        return [Offer(_whole(physical, card), GPU_RESOURCE, physical)], []
    if settings.mig_strategy == "none":
        # A process sees one instance of such a card and never the card: a share of the card would be a lie.
        return [], [f"card {physical.uuid} has MIG enabled: set migStrategy to single or mixed, or disable MIG"]
    if not physical.mig_instances:
        return [], [f"card {physical.uuid} has MIG enabled but no instance; create instances or disable MIG"]
    if settings.mig_strategy == "single" and len({m.profile for m in physical.mig_instances}) > 1:
        profiles = ", ".join(sorted({m.profile for m in physical.mig_instances}))
        return [], [f"card {physical.uuid} has instances of different profiles ({profiles}); use migStrategy: mixed"]
    return [_instance(physical, instance, settings.mig_strategy) for instance in physical.mig_instances], []


def _whole(physical: PhysicalCard, settings: CardSettings) -> Card:
    exclusive = settings.mode == "exclusive"
    return Card(
        uuid=physical.uuid,
        memory_mib=physical.memory_mib if exclusive else int(physical.memory_mib * settings.memory_scaling),
        slots=1 if exclusive else settings.slots_per_card,
        cores=100 if exclusive else int(100 * settings.core_scaling),
        model=physical.model,
        index=physical.index,
        numa=physical.numa,
        mode=settings.mode,
    )


def _instance(physical: PhysicalCard, instance: MigInstance, strategy: str) -> Offer:
    """A MIG instance is isolated by the card itself: one holder, no shim limits, never scaled."""
    card = Card(
        uuid=instance.uuid,
        memory_mib=instance.memory_mib,
        slots=1,
        cores=100,
        model=f"{physical.model} MIG {instance.profile}",
        index=physical.index,
        numa=physical.numa,
        mode="mig-static",
    )
    resource = GPU_RESOURCE if strategy == "single" else MIG_RESOURCE_PREFIX + instance.profile.replace("+", ".")
    return Offer(card, resource, physical, instance)


def _links(machine: Machine, offers: list[Offer]) -> tuple[tuple[int, ...], ...]:
    if not machine.links:
        return ()
    position = {card.uuid: at for at, card in enumerate(machine.cards)}
    rows = [position[offer.physical.uuid] for offer in offers]
    return tuple(tuple(0 if i == j else machine.links[a][b] for j, b in enumerate(rows)) for i, a in enumerate(rows))


def device_list(offers: Offers, resource: str, held: Iterable[str], *, numa: bool = True) -> list[Device]:
    """Return the list for the kubelet: every slice on offer, and every slice that a living pod still holds.

    A held slice that is no longer on offer (fewer slots, a filtered card) stays in the list as unhealthy: it is not
    given to anybody else, and a kubelet restart finds it.
    """
    devices = {
        name: Device(name, offer.card.healthy and not offer.card.cordoned, offer.card.numa if numa else None)
        for offer in offers.by_uuid.values()
        if offer.resource == resource
        for name in offer.slices()
    }
    for name in held:
        offer = offers.device_of(name)
        if name not in devices and (offer is None or offer.resource == resource):
            devices[name] = Device(name, healthy=False)
        elif name in devices and offer is not None and offer.card.cordoned and offer.card.healthy:
            # A cordon is about new pods: the holder's own ID keeps its health.
            devices[name] = replace(devices[name], healthy=True)
    return list(devices.values())
