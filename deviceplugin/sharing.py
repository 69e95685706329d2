"""What a container is given under each mode and each way of telling the runtime.

Pure: grant and offers in, `Edits` out. Modes differ in whether the shim enforces limits and in the variables around it;
strategies differ in how the cards are named to the runtime.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from deviceplugin import cdi
from deviceplugin.backend import DeviceNode, Edits, Mount
from deviceplugin.book import Grant
from deviceplugin.nodeconfig import ListStrategy, NodeSettings
from deviceplugin.offers import Offer, Offers
from gpuslice.devices.allocation import SliceShare
from gpuslice.devices.value import Value

CONTAINER_DIRECTORY = "/var/run/gpuslice"
CONTAINER_LIBRARY = "/usr/local/gpuslice/libvgpu.so"
GRANT_VARIABLE = "GPUSLICE_GRANT"
_VOLUME_MOUNTS_ROOT = "/var/run/nvidia-container-devices"
_SHARED_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")


class HostPaths(Value, frozen=True):
    """Where the grant's files are on the host."""

    directory: Path
    """The grant's own directory: limits, state."""
    library: Path
    """libvgpu.so."""
    preload: Path
    """A file that names the library's path in the container."""


SharingMode = Callable[[Sequence[SliceShare], HostPaths], Edits]
"""What the shares of one mode add. A CDI specification, where that is the way, holds neither annotations nor names."""


def _hami_core(shares: Sequence[SliceShare], paths: HostPaths) -> Edits:
    """Slices with limits that the preloaded shim enforces. The variables are HAMi's; the limits file rules."""
    env = {f"CUDA_DEVICE_MEMORY_LIMIT_{at}": f"{share.memory_mib}m" for at, share in enumerate(shares)}
    capped = [share.core_percent for share in shares if share.core_percent]
    if capped:
        env["CUDA_DEVICE_SM_LIMIT"] = str(min(capped))
    env["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = f"{CONTAINER_DIRECTORY}/state"
    directory = str(paths.directory)
    mounts = (
        Mount(directory, CONTAINER_DIRECTORY),
        Mount(f"{directory}/state", f"{CONTAINER_DIRECTORY}/state", read_only=False),
        Mount(str(paths.library), CONTAINER_LIBRARY),
        Mount(str(paths.preload), "/etc/ld.so.preload"),
    )
    return Edits(env=env, mounts=mounts)


def _plain(_shares: Sequence[SliceShare], _paths: HostPaths) -> Edits:
    """The card as it is: exclusive use, time-slicing replicas, MIG instances."""
    return Edits()


def _mps(shares: Sequence[SliceShare], paths: HostPaths) -> Edits:
    """Clients of the card's MPS control daemon, each with its percentage and memory limit.

    A client talks to one daemon; the first card's pipe is mounted (deviceplugin.mps runs one daemon per card).
    """
    if not shares:
        return Edits()
    env = {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps"}  # noqa: S108  the path inside the container, NVIDIA's default
    if percent := shares[0].core_percent:
        env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(percent)
    env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(f"{at}={s.memory_mib}M" for at, s in enumerate(shares))
    mps = paths.directory.parent.parent / "mps" / shares[0].card
    return Edits(
        env=env,
        mounts=(
            Mount(str(mps / "pipe"), env["CUDA_MPS_PIPE_DIRECTORY"], read_only=False),
            Mount(str(mps / "shm"), "/dev/shm", read_only=False),  # noqa: S108
        ),
    )


MODES: Mapping[str, SharingMode] = {
    "hami-core": _hami_core,
    "exclusive": _plain,
    "time-slicing": _plain,
    "mig-static": _plain,
    "mps": _mps,
}


def enforced_by_shim(offers: Offers, grant: Grant) -> bool:
    """Tell whether the container's shares need a limits file."""
    return "hami-core" in [mode_of(offers, grant, share.card) for share in grant.shares]


def mode_of(offers: Offers, grant: Grant, card: str) -> str:
    """Return the mode in which a share of a card is used: the grant's own, else the card's."""
    offer = offers.by_uuid.get(card)
    return grant.modes.get(card) or (offer.card.mode if offer is not None else "hami-core")


def describe(grant: Grant, offers: Offers, settings: NodeSettings, paths: HostPaths) -> Edits:
    """Return everything the container gets, before it is known how the runtime is told."""
    edits = Edits(
        dict(settings.container_env), tuple([Mount(host, inside) for host, inside in settings.container_mounts])
    )
    cards = [share.card for share in grant.shares]
    by_mode: dict[str, list[SliceShare]] = {}
    for card, share in zip(cards, grant.shares, strict=True):
        by_mode.setdefault(mode_of(offers, grant, card), []).append(share)
    for mode, shares in by_mode.items():
        edits = edits.merged(MODES[mode](shares, paths))
    env = {GRANT_VARIABLE: grant.id, "NVIDIA_VISIBLE_DEVICES": ",".join(cards) or "void"}
    if "hami-core" in by_mode:
        env["CUDA_TASK_PRIORITY"] = str(grant.priority)
    nodes: tuple[DeviceNode, ...] = ()
    if settings.pass_device_specs:
        nodes = device_nodes([offer for card in cards if (offer := offers.by_uuid.get(card))])
    return edits.merged(Edits(env, devices=nodes))


def device_nodes(offers: Sequence[Offer], exists: Callable[[str], bool] = os.path.exists) -> tuple[DeviceNode, ...]:
    """Return the device nodes of the cards; those that the host does not have are left out."""
    own = dict.fromkeys(f"/dev/nvidia{offer.physical.minor}" for offer in offers)
    present = [path for path in own if exists(path)]
    if present:
        present += [path for path in _SHARED_NODES if exists(path)]
    return tuple(DeviceNode(path, path) for path in present)


def late_answer(grant: Grant, strategy: ListStrategy) -> Edits:
    """Return what Allocate tells the kubelet where the cards are named late: only the name of a CDI device.

    What it means is written before each start, when the pod is known for certain.
    """
    if strategy == "cdi-cri":
        return Edits(env={GRANT_VARIABLE: grant.id}, cdi_devices=(cdi.device_name(grant.id),))
    key = f"cdi.k8s.io/gpuslice_{grant.id}"
    return Edits(env={GRANT_VARIABLE: grant.id}, annotations={key: cdi.device_name(grant.id)})


def early_answer(grant: Grant, edits: Edits, strategy: ListStrategy) -> Edits:
    """Return what Allocate tells the kubelet where it must name the cards at once, for the pod's life."""
    if strategy != "volume-mounts":
        return edits
    cards = dict.fromkeys(share.card for share in grant.shares)
    mounts = tuple(Mount("/dev/null", f"{_VOLUME_MOUNTS_ROOT}/{uuid}") for uuid in cards)
    return edits.merged(Edits(env={"NVIDIA_VISIBLE_DEVICES": _VOLUME_MOUNTS_ROOT}, mounts=mounts))


def names_cards_late(strategy: ListStrategy) -> bool:
    """Tell whether the cards are named only when the container starts."""
    return strategy in ("cdi-cri", "cdi-annotations")
