"""The node daemon's hints and the library that acts on them, together: an idle neighbour's time is borrowed."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from deviceplugin.book import Grant, Identity
from deviceplugin.cgroups import PodProcesses
from deviceplugin.delivery import Delivery
from deviceplugin.findings import Reporter
from deviceplugin.guard import Guard
from deviceplugin.hints import HintWriter
from deviceplugin.metrics import PluginMetrics
from deviceplugin.node import Node, NodeTools
from deviceplugin.nodeconfig import NodeSettings
from deviceplugin.podresources import PodResources
from gpuslice.devices.allocation import SliceShare
from tests.native.shim_rig import LIBRARY, Client, Container
from tests.native.virtual_rig import CLOCK, UUID, kernel_ns, virtual_node

KERNEL = "k_500us"


def daemon_node(folder: Path) -> Node:
    """The node daemon's state, whose containers have soft limits."""
    metrics = PluginMetrics(CollectorRegistry())
    delivery = Delivery(folder / "state", folder / "cdi", LIBRARY)
    delivery.open()
    tools = NodeTools(
        plugin_directory=folder,
        pod_resources=PodResources(None),
        delivery=delivery,
        guard=Guard(PodProcesses(None)),
        reporter=Reporter(metrics),
        metrics=metrics,
    )
    node = Node("n1", tools)
    node.settings = NodeSettings(core_policy="soft")
    return node


class Tenant(Container):
    """A container as the daemon delivers it, on a card with a virtual clock."""

    def __init__(self, card: "Card", name: str, percent: int) -> None:
        self._card = card
        share = SliceShare(f"{UUID}::{name}", 20_000, percent)
        grant = Grant(name, "nvidia.com/gpu", frozenset({share.slice}), name, "main", Identity.KNOWN, shares=(share,))
        card.daemon.put_in_place(grant)
        self.node = card.node
        self.directory = card.daemon.delivery.paths(name).directory
        self.environment = {
            **card.node.environment, "LD_PRELOAD": f"{LIBRARY}:{CLOCK}", "GPUSLICE_DIR": str(self.directory),
        }  # fmt: skip

    def start(self, **environment: str) -> Client:
        client = super().start(**environment)
        for command in ("device 0", f"kernel {KERNEL}"):
            assert client.code(command) == 0
        return client

    def percent(self, client: Client, milliseconds: int, settle_ms: int = 100) -> float:
        """Launch without a pause; return the share of the card's time that it got after the time to settle."""
        client.ask(f"run {settle_ms}")
        code, launches, took, began = client.ask(f"run {milliseconds}")
        assert code == "0"
        self._card.now_ns = int(began) + int(took)
        return 100 * int(launches) * kernel_ns(KERNEL) / int(took)


class Card:
    """A card, its tenants, and the daemon that looks at them when told to."""

    def __init__(self, folder: Path) -> None:
        self.node = virtual_node(folder, 1)
        self.daemon = daemon_node(folder)
        self.now_ns = 0
        self.writer = HintWriter(self.daemon, lambda: self.now_ns)


def test_idle_time_is_borrowed_through_the_daemon_and_given_back_when_the_other_launches(
    built: None, tmp_path: Path
) -> None:
    card = Card(tmp_path)
    borrower, owner = Tenant(card, "borrower", 30), Tenant(card, "owner", 70)
    card.writer.arrange()
    with borrower.start() as borrowing, owner.start() as owning:
        assert borrower.percent(borrowing, 300) == pytest.approx(30, abs=3), "no hint yet: soft is hard"
        card.writer.look()
        assert borrower.percent(borrowing, 1000) >= 95
        owner.percent(owning, 50)
        card.writer.look()
        assert borrower.percent(borrowing, 1000) == pytest.approx(30, abs=3)
        card.writer.look()
        assert borrower.percent(borrowing, 1000) >= 95, "the other has rested for a second"
