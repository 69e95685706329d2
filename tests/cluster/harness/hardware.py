"""Fake cards of a test node: an inventory, and the folder in which the fake driver keeps the node's state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[3]
DRIVERS = ROOT / "simulator" / "drivers" / "build"
SHIM = ROOT / "hami_core" / "build" / "libvgpu.so"
IN_CONTAINER = "/run/fake-gpu"
"""Where every container of a node finds inventory and state: the fake counterpart of /dev/nvidia*."""
MODEL = "A100-SXM4-40GB"


def card_uuid(node: int, card: int) -> str:
    """Return the UUID of a card, the same in every run."""
    return f"GPU-{node:08x}-{card:04x}-4000-8000-{node * 256 + card:012x}"


def environment(folder: str | Path) -> dict[str, str]:
    """Return the variables that lead the fake libraries to a node's folder."""
    return {"GPUSLICE_FAKE_INVENTORY": f"{folder}/inventory.yaml", "GPUSLICE_FAKE_STATE": f"{folder}/state"}


@dataclass(frozen=True, slots=True)
class FakeCards:
    """The cards of one node.

    Attributes:
        folder: Folder on the host with `inventory.yaml` and `state/`.
        uuids: Its cards, in index order.
    """

    folder: Path
    uuids: Sequence[str]

    @classmethod
    def create(cls, folder: Path, *, node: int, count: int, model: str = MODEL) -> "FakeCards":
        """Write the inventory of a node with equal cards."""
        (folder / "state").mkdir(parents=True)
        uuids = [card_uuid(node, card) for card in range(count)]
        cards = [{"model": model, "uuid": uuid} for uuid in uuids]
        inventory = {"driver": "580.65.06", "cuda": "13.0", "cards": cards}
        (folder / "inventory.yaml").write_text(yaml.safe_dump(inventory, sort_keys=False))
        return cls(folder, uuids)

    @property
    def host_environment(self) -> Mapping[str, str]:
        """Variables for host processes (the device plugin) that shall see these cards."""
        return {**environment(self.folder), "LD_LIBRARY_PATH": str(DRIVERS)}
