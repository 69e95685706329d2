"""Bugs that other projects' nodes had in public: who gets which card, and what an error of one card costs."""

import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deviceplugin.backend import Refused
from deviceplugin.nodeconfig import NodeSettings
from gpuslice.cluster.resources import NODES
from gpuslice.devices import annotations, pods
from simulator.kubelet.kubelet import Behaviour
from simulator.kubelet.podview import PodObject
from simulator.kubelet.rig import FAST, Ask, Rig, at, gpu, machine, node_rig, pod
from tests.deviceplugin.daemon_rig import GPU, Daemons, daemons

pytestmark = pytest.mark.anyio


def by_hand(card: int) -> dict[str, str]:
    """What a user may copy from a pod that was placed."""
    given = f"{gpu(card)},NVIDIA,20000,100:;"
    return {
        "hami.io/bind-phase": "allocating",
        "hami.io/bind-time": str(int(time.time())),
        "hami.io/vgpu-node": "n1",
        "hami.io/vgpu-devices-to-allocate": given,
        "hami.io/vgpu-devices-allocated": given,
    }


def together(rig: Rig, bodies: Sequence[dict[str, Any]], order: Sequence[int]) -> list[str]:
    """Create pods that the plugin knows all of before the kubelet admits the first, in an order of its own."""
    see = rig.api._see
    assert see is not None
    held: list[PodObject] = []
    rig.api._see = held.append
    uids = [rig.api.create(body) for body in bodies]
    rig.api._see = see
    for number in order:
        see(held[number])
    return uids


def started(rig: Rig, uid: str) -> bool:
    return any(item.pod.uid == uid for item in rig.kubelet.runtime.history)


async def tried_again(rig: Rig, *uids: str) -> None:
    """Wait until each of the pods has started, failed, or was held back at its start several times."""

    def decided(uid: str) -> bool:
        return started(rig, uid) or rig.api.phase(uid) == "Failed"

    def refusals() -> float:
        return rig.plugin.count("refusals_total", resource=GPU, call="prestart")

    before = refusals()
    await rig.api.until(
        lambda: refusals() - before >= 4 * sum(not decided(uid) for uid in uids) or all(map(decided, uids))
    )


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 1, 0), (0, 1, 2)], ids=["q first", "forger first", "as created"])
@pytest.mark.parametrize("strategy", ["cdi-cri", "envvar"])
@pytest.mark.parametrize("asked", [True, False], ids=["podresources", "no podresources"])
async def test_of_two_waiting_pods_alike_each_gets_its_own_and_a_forger_gets_nothing(
    short_path: Path, strategy: str, asked: bool, order: tuple[int, ...]
) -> None:
    """HAMi#3076, #382, #781, #2188, gpushare-device-plugin#16, #4, HAMi#3041: Allocate has no identity.

    Where nothing tells who is admitted, a container may be held back, but never start with another pod's share.
    """
    settings = NodeSettings(device_list_strategy=strategy)  # type: ignore[arg-type]  # rows are text
    behaviour = Behaviour(pace=FAST, pod_resources=asked)
    async with node_rig(short_path, settings=settings, behaviour=behaviour) as rig:
        forger = pod("forger", Ask("c", (at(1, 0),)), reserved=False)
        forger["metadata"]["annotations"] = by_hand(1)
        bodies = [pod("p", Ask("c", (at(0, 0),), 2000)), pod("q", Ask("c", (at(1, 0),), 8000)), forger]
        p, q, third = together(rig, bodies, order)
        own = {p: ([gpu(0)], "2000m"), q: ([gpu(1)], "8000m")}
        if asked:
            await rig.running(p, q)
            await rig.api.until(lambda: rig.api.phase(third) == "Failed")
        else:
            known = strategy == "cdi-cri"
            await rig.api.until(lambda: all(rig.api.phase(u) != "Pending" or not known for u in own))
            await tried_again(rig, p, q, third)
        for uid, (cards, limit) in own.items():
            if started(rig, uid):
                assert (rig.cards(uid, "c"), rig.env(uid, "c")["CUDA_DEVICE_MEMORY_LIMIT_0"]) == (cards, limit)
        assert not started(rig, third)


async def test_a_reservation_that_was_copied_to_another_pod_never_shares_its_slice(short_path: Path) -> None:
    """HAMi#3041 past the webhook: even our own record, copied by hand, brings no second owner to a slice."""
    async with node_rig(short_path, guard_seconds=0.3) as rig:
        owner = rig.api.create(pod("owner", Ask("c", (at(1, 0),), 8000)))
        await rig.running(owner)
        copy = rig.api.create(pod("copy", Ask("c", (at(1, 0),), 8000)))
        await tried_again(rig, copy)
        assert not started(rig, copy)
        assert rig.api.phase(owner) == "Running"


@pytest.mark.parametrize(
    "asks",
    [
        pytest.param([("c0", 0, 1024), ("c1", 1, 2048)], id="1 and 2 GiB"),
        pytest.param([("c0", 0, 3072), ("c1", 1, 3072)], id="3 GiB each"),
        pytest.param([("c0", 0, 3072), ("c1", 0, 3072)], id="3 GiB each, of one card"),
        pytest.param([("c1", 1, 2048), ("c0", 0, 1024)], id="the larger first"),
        pytest.param([("c0", 0, 1024), ("c1", 1, 2048), ("c2", 2, 1024), ("c3", 3, 2048)], id="four"),
    ],
)
async def test_each_container_of_a_pod_is_allocated_by_itself(
    short_path: Path, asks: list[tuple[str, int, int]]
) -> None:
    """gpushare-device-plugin#12, volcano devices#25: a container's Allocate was compared with the pod's total."""
    async with node_rig(short_path) as rig:
        wanted = [Ask(name, (at(card, number),), mib) for number, (name, card, mib) in enumerate(asks)]
        uid = rig.api.create(pod("p", *wanted))
        await rig.running(uid)
        seen = [(name, rig.cards(uid, name), rig.env(uid, name)["CUDA_DEVICE_MEMORY_LIMIT_0"]) for name, _, _ in asks]
        assert seen == [(name, [gpu(card)], f"{mib}m") for name, card, mib in asks]
        assert rig.plugin.backend.book.waiting() == ()
        assert len(rig.kubelet.manager.timing.allocate) == len(asks)


async def test_an_init_container_without_cards_takes_nothing_from_the_one_that_has_some(short_path: Path) -> None:
    """HAMi#3079, #1667, #1650: the allocation moved to the init container's place."""
    async with node_rig(short_path) as rig:
        dummy = Ask("dummy", init=True, command=("true",))
        uid = rig.api.create(pod("p", dummy, Ask("main", (at(2, 0),), 4000)))
        await rig.running(uid)
        assert (rig.cards(uid, "main"), rig.env(uid, "main")["CUDA_DEVICE_MEMORY_LIMIT_0"]) == ([gpu(2)], "4000m")
        (first,) = [item for item in rig.kubelet.runtime.history if item.spec.name == "dummy"]
        assert "GPUSLICE_GRANT" not in first.creation.env
        (record,) = (rig.plugin.state / "records").glob("*.json")
        kept = msgspec.json.decode(record.read_bytes())
        assert (kept["container"], kept["uid"]) == ("main", uid)


@pytest.mark.parametrize("honest", [True, False], ids=["preferences honoured", "kubelet picks at random"])
async def test_all_eight_chosen_cards_arrive_whatever_the_kubelet_picked(short_path: Path, honest: bool) -> None:
    """HAMi#1741: the scheduler chose 8 cards, the kubelet's IDs were on 5 of them."""
    chosen = tuple(at(card, 9 - card) for card in (3, 1, 4, 0, 5, 2, 6, 7))
    behaviour = Behaviour(seed=3, honour_preferences=honest, pace=FAST)
    async with node_rig(short_path, behaviour=behaviour, cards=machine(8)) as rig:
        uid = rig.api.create(pod("p", Ask("c", chosen, 1000)))
        await rig.running(uid)
        assert rig.cards(uid, "c") == [gpu(card) for card in (3, 1, 4, 0, 5, 2, 6, 7)]
        (held,) = (assignment.ids for assignment in rig.kubelet.manager.assignments.values())
        if honest:
            assert held == set(chosen), "what podresources tells others has to agree"
        else:
            assert len({name.partition("::")[0] for name in held}) < 8, "the kubelet must have picked badly here"


async def test_an_allocate_that_names_one_card_four_times_still_means_the_chosen_eight(short_path: Path) -> None:
    """HAMi#1741, with the very IDs."""
    chosen = tuple(at(card, 0) for card in range(8))
    async with node_rig(short_path, cards=machine(8)) as rig:
        backend = rig.plugin.backend
        see, rig.api._see = rig.api._see, lambda _pod: None
        rig.api.create(pod("p", Ask("c", chosen, 1000)))
        rig.api._see = see
        given = [at(0, n) for n in range(1, 5)] + [at(card, 1) for card in (1, 2, 3, 4)]
        backend.book.prefer(backend.book.admission(None), [*given, *chosen], [], 8)
        edits = backend.allocate(given)
        (grant,) = backend.book.grants.values()
        assert [share.card for share in grant.shares] == [gpu(card) for card in range(8)]
        assert edits.env["GPUSLICE_GRANT"] == grant.id
        with pytest.raises(Refused, match="twice"):
            backend.allocate([at(0, 1)] * 8)


# -- health, with the real daemon and real pynvml --------------------------------------------------------------------


@pytest.fixture
async def node(short_path: Path) -> AsyncIterator[Daemons]:
    async with daemons(short_path, "cards:\n- {model: A100-SXM4-80GB, count: 2}") as made:
        yield made


def sick_cards(node: Daemons) -> dict[str, int]:
    """How many slices of each card the kubelet counts as unhealthy."""
    found: dict[str, int] = {}
    for name in node.kubelet.manager.endpoints[GPU].unhealthy:
        card = name.partition("::")[0]
        found[card] = found.get(card, 0) + 1
    return found


async def published(node: Daemons) -> tuple[list[bool], list[bool]]:
    """Health of the cards in both formats of the node's annotations."""
    notes = (await node.client.get(NODES, "n1", pods.Node)).metadata.annotations
    ours = [card.healthy for card in annotations.decode_cards("n1", notes[annotations.CARDS]).cards]
    hami = [card.get("health", False) for card in msgspec.json.decode(notes[annotations.HAMI_NODE_REGISTER])]
    return ours, hami


@pytest.mark.xdist_group("daemon")
async def test_an_error_of_a_card_takes_all_its_slices_and_no_others_and_every_record_agrees(node: Daemons) -> None:
    """NVIDIA k8s-device-plugin#1929: only one of a card's virtual devices became unhealthy."""
    node.start("--quiet-seconds", "600")
    await node.until(lambda: node.healthy() == 20)
    cards = await node.cards()
    node.control("xid 0 79")
    await node.until(lambda: node.healthy() == 10)
    assert sick_cards(node) == {cards.cards[0].uuid: 10}
    await node.cards(want=lambda found: not found.cards[0].healthy)
    assert await published(node) == ([False, True], [False, True])


@pytest.mark.xdist_group("daemon")
async def test_a_card_recovers_after_quiet_and_flapping_costs_it_more_each_time(node: Daemons) -> None:
    """HAMi#2200, k8s-device-plugin#1014, #1211: unhealthy was for ever, until the plugin was restarted."""
    node.start("--quiet-seconds", "1")
    await node.until(lambda: node.healthy() == 20)
    outages = []
    for fault, cure in (("xid 0 79", ""), ("xid 0 48", ""), ("lose 0", "restore 0")):
        began = time.monotonic()
        node.control(fault)
        await node.until(lambda: node.healthy() == 10)
        if cure:
            node.control(cure)
        await node.until(lambda: node.healthy() == 20)
        outages.append(time.monotonic() - began)
    assert [outage >= least for outage, least in zip(outages, (1, 2, 4), strict=True)] == [True] * 3
    await node.cards(want=lambda found: all(card.healthy for card in found.cards))
