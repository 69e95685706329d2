"""Scheduling bugs that other projects had in public, staged on the real wires: filter, score, bind, registration."""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuslice.cluster.resources import NODES, PODS
from gpuslice.devices.annotations import ALLOCATION, CARDS, decode_allocation, encode_cards
from gpuslice.devices.inventory import Card, NodeCards
from simulator.apiserver.faults import matching
from simulator.apiserver.server import ApiServer, running
from tests.extender.objects import MEMORY_MIB, container, node, pod
from tests.extender.processes import extender_process
from tests.extender.scheduler import findings
from tests.extender.stand import Stand, standing

pytestmark = pytest.mark.anyio
Json = dict[str, Any]


def cards_of_pod(server: ApiServer, name: str) -> list[str]:
    """Which cards the API server's own record gives to a pod."""
    found = server.get("v1", "Pod", name)
    allocation = decode_allocation(name, found["metadata"]["annotations"][ALLOCATION])
    return [share.card for _, share in allocation.shares()]


async def create(server: ApiServer, name: str, *containers: Json, **spec: Any) -> Json:
    return await server.create(pod(name, *containers, **spec))


async def settle(stand: Stand) -> None:
    """Wait until everything that was bound has come back by the watch."""
    await stand.until(lambda: all(holding.seen for holding in stand.ledger.holdings.values()))


# -- filter --------------------------------------------------------------------------------------------------------


async def test_the_process_survives_filters_without_nodes_and_pods_that_never_fit(tmp_path: Path) -> None:
    """HAMi#2688: neither Nodes nor NodeNames. HAMi#1780, #1327: one unsatisfiable pod ended all scheduling."""
    async with running() as server:
        for name in ("n1", "n2"):
            await server.create(node(name, 2))
        usual = await create(server, "usual")
        four = await create(server, "four", container(gpus=4, memory_mib=1000))
        huge = await create(server, "huge", container(memory_mib=MEMORY_MIB + 1))
        async with extender_process(server, tmp_path, "a", "--no-leader-elect") as extender:
            await extender.until_ready()
            bodies: list[Json] = [{}, {"NodeNames": []}, {"Nodes": {"items": []}}, {"Nodes": {}}, {"Nodes": None}]
            for part in bodies:
                status, answer = await extender.post("filter", {"Pod": usual, **part})
                assert (status, answer["NodeNames"] or []) == (200, []), part
                assert part or answer["Error"]
            for never in (four, huge):
                status, answer = await extender.filter(never, "n1", "n2")
                assert (status, answer["NodeNames"], answer["Error"]) == (200, [], "")
                assert set(answer["FailedAndUnresolvableNodes"]) == {"n1", "n2"}
                assert all(answer["FailedAndUnresolvableNodes"].values())
            status, answer = await extender.filter(usual, "n1", "n2")
            assert (status, answer["NodeNames"]) == (200, ["n1", "n2"])
            assert await extender.bind(usual, "n1") == (200, "")
            assert extender.process.returncode is None


async def test_init_containers_count_by_their_largest_until_they_are_done() -> None:
    """HAMi#1942, #1773, #2064: three init containers of 10240 and an app of 8000 were 38720, or 18000."""
    inits = [container(f"i{number}", memory_mib=10_240) for number in range(3)]
    async with running() as server:
        await server.create(node("n1", 1))
        first = await create(server, "first", container(memory_mib=8000), initContainers=inits)
        second = await create(server, "second", container(memory_mib=8000))
        third = await create(server, "third", container(memory_mib=385))
        small = await create(server, "small", container(memory_mib=MEMORY_MIB - 10_240))
        async with standing(server) as stand:
            assert (await stand.filter(first, "n1"))["NodeNames"] == ["n1"]
            assert await stand.bind(first, "n1") == ""
            await settle(stand)
            assert (await stand.filter(second, "n1"))["NodeNames"] == [], "10240 are taken while an init container runs"
            assert (await stand.filter(small, "n1"))["NodeNames"] == ["n1"], "and not one more"
            stand.extender.promises.release(small["metadata"]["uid"])
            status = {"status": {"conditions": [{"type": "Initialized", "status": "True"}]}}
            await stand.client.patch(PODS, "first", status, namespace="default", subresource="status")
            await stand.until(lambda: all(holding.init_done for holding in stand.ledger.holdings.values()))
            assert await stand.bind(second, "n1") == ""
            assert await stand.bind(third, "n1") != "", "16000 are taken now, 384 are left"
        assert findings(server) == []


@pytest.mark.parametrize("how", ["the stream broke and history is gone", "a relist tells", "the extender restarts"])
async def test_the_booking_of_a_pod_goes_though_its_deletion_was_never_told(how: str) -> None:
    """HAMi#2923, #594: the lost DELETE of a pod kept all 8 cards booked for ever."""
    async with running() as server:
        await server.create(node("n1", 8))
        whole = container(gpus=8)
        first, heir = await create(server, "first", whole), await create(server, "heir", whole)
        async with standing(server) as stand:
            assert await stand.bind(first, "n1") == ""
            await settle(stand)
            server.faults.partition(matching(method="GET", path="/api/v1/pods"))
            server.drop_watches("pods")
            await stand.client.delete(PODS, "first", namespace="default", grace_seconds=0)
            assert (await stand.filter(heir, "n1"))["NodeNames"] == [], "the deletion must really be unknown"
            if how != "the extender restarts":
                if how == "the stream broke and history is gone":
                    server.compact()
                server.faults.clear()
                await stand.until(lambda: first["metadata"]["uid"] not in stand.ledger.holdings)
                assert await stand.bind(heir, "n1") == ""
        server.faults.clear()
        if how == "the extender restarts":
            async with standing(server) as stand:
                assert (await stand.filter(heir, "n1"))["NodeNames"] == ["n1"]
                assert await stand.bind(heir, "n1") == ""
        assert (len(cards_of_pod(server, "heir")), findings(server)) == (8, [])


@pytest.mark.parametrize("how", ["filter and bind in turn", "all filters, then all binds", "all at once"])
async def test_of_three_pods_back_to_back_two_get_the_last_card(how: str) -> None:
    """volcano#3616: three pods of 12 GiB on one card of 24 GiB, as booking waited for the informer."""
    async with running() as server:
        await server.create(node("n1", 8, memory_mib=24_576))
        busy = [await create(server, f"busy{number}", container(memory_mib=24_576)) for number in range(7)]
        pods = [await create(server, f"p{number}", container(memory_mib=12_288)) for number in range(3)]
        async with standing(server) as stand:
            for filler in busy:
                assert await stand.bind(filler, "n1") == ""
            await settle(stand)
            server.faults.partition(matching(method="GET", path="/api/v1/pods"))
            server.drop_watches("pods")

            async def whole(wanted: Json) -> str:
                names = (await stand.filter(wanted, "n1"))["NodeNames"]
                return await stand.bind(wanted, "n1") if names else "no node"

            match how:
                case "filter and bind in turn":
                    answers = [await whole(wanted) for wanted in pods]
                case "all at once":
                    answers = list(await asyncio.gather(*map(whole, pods)))
                case _:
                    for wanted in pods:
                        await stand.filter(wanted, "n1")
                    answers = [await stand.bind(wanted, "n1") for wanted in pods]
            server.faults.clear()
        assert answers.count("") == 2
        bound = [p["metadata"]["name"] for p in server.list("v1", "Pod") if p["spec"].get("nodeName")]
        assert (len(bound), findings(server)) == (9, [])


# -- score ---------------------------------------------------------------------------------------------------------


def numa_node() -> Json:
    made = node("n1", 4)
    cards = tuple(
        Card(uuid=f"GPU-{number}", memory_mib=10_000, index=number, model="Tesla T4", numa=number // 2)
        for number in range(4)
    )
    made["metadata"]["annotations"][CARDS] = encode_cards(NodeCards("n1", cards))
    return made


@pytest.mark.parametrize(
    ("policy", "wanted", "chosen"),
    [
        pytest.param("spread", 1, {"GPU-3"}, id="spread takes the idlest card, whatever its NUMA node"),
        pytest.param("binpack", 1, {"GPU-0"}, id="binpack takes the fullest that fits"),
        pytest.param("spread", 2, {"GPU-2", "GPU-3"}, id="spread takes the two idlest"),
        pytest.param("binpack", 2, {"GPU-0", "GPU-1"}, id="binpack takes the two fullest"),
    ],
)
async def test_load_decides_before_numa(policy: str, wanted: int, chosen: set[str]) -> None:
    """HAMi#1806, #1006: cards were sorted by NUMA node first, so that spread picked the busiest."""
    async with running() as server:
        await server.create(numa_node())
        async with standing(server) as stand:
            for number, load in enumerate((9000, 7000, 3000, 1000)):
                pinned = {"nvidia.com/use-gpuuuid": f"GPU-{number}"}
                made = await create(server, f"load{number}", container(memory_mib=load), annotations=pinned)
                assert await stand.bind(made, "n1") == ""
            await settle(stand)
            annotations = {"hami.io/gpu-scheduler-policy": policy}
            made = await create(server, "p", container(gpus=wanted, memory_mib=500), annotations=annotations)
            assert await stand.bind(made, "n1") == ""
        assert set(cards_of_pod(server, "p")) == chosen


@pytest.mark.parametrize(("policy", "best"), [("binpack", "n8"), ("spread", "n0")])
async def test_scores_follow_the_load_of_nodes_and_stay_within_ten(policy: str, best: str) -> None:
    """HAMi#1146: binpack sent a pod of one card to the empty node."""
    async with running() as server:
        names = [f"n{taken}" for taken in range(9)]
        async with standing(server) as stand:
            for name in names:
                await server.create(node(name, 9))
            await stand.until(lambda: all(stand.ledger.book(name) is not None for name in names))
            for taken, name in enumerate(names):
                if taken:
                    made = await create(server, f"fill{taken}", container(gpus=taken))
                    assert await stand.bind(made, name) == ""
            await settle(stand)
            annotations = {"hami.io/node-scheduler-policy": policy}
            made = await create(server, "p", container(gpus=1), annotations=annotations)
            assert sorted((await stand.filter(made, *names))["NodeNames"]) == names
            scores = await stand.prioritize(made, *names)
    row = [scores[name] for name in names]
    assert all(0 <= score <= 10 for score in row)
    assert row == sorted(row, reverse=policy == "spread"), "more load is never a step back"
    assert max(scores, key=lambda name: scores[name]) == best
    assert row.count(10) == 1


# -- bind ----------------------------------------------------------------------------------------------------------


def two_kinds() -> list[Json]:
    """A pod that asks for cards of two vendors, each in a container of its own."""
    limits = {"hygon.com/dcunum": "1"}
    other = {"name": "dcu", "image": "x", "resources": {"limits": limits, "requests": dict(limits)}}
    return [container("gpu", memory_mib=1000), other]


def mixed_node(name: str) -> Json:
    made = node(name, 1)
    cards = (
        Card(uuid=f"GPU-{name}", memory_mib=MEMORY_MIB, index=0, model="Tesla T4"),
        Card(uuid=f"DCU-{name}", memory_mib=MEMORY_MIB, index=1, model="DCU-Z100", family="hygon", slots=1),
    )
    inventory = NodeCards(name, cards, identity_known=False)
    made["metadata"]["annotations"][CARDS] = encode_cards(inventory)
    for part in ("capacity", "allocatable"):
        made["status"][part] = {"cpu": "64", "nvidia.com/gpu": "10", "hygon.com/dcunum": "1"}
    return made


async def test_a_pod_of_two_kinds_of_device_does_not_stand_in_its_own_way() -> None:
    """HAMi#2243, HAMi-core#246: the node's lock was taken once for each kind, so the second waited for the first."""
    async with running() as server:
        await server.create(mixed_node("n1"))
        first = await create(server, "first", *two_kinds())
        rival = await create(server, "rival", *two_kinds())
        async with standing(server) as stand:
            async with asyncio.timeout(2):
                assert await stand.bind(first, "n1") == ""
                assert await stand.bind(first, "n1") == "", "the same pod again is no second pod"
            refusal = await stand.bind(rival, "n1")
            assert "n1" in refusal
            await stand.client.delete(PODS, "rival", namespace="default", grace_seconds=0)
            await settle(stand)
            again = await create(server, "again", *two_kinds())
            assert await stand.bind(again, "n1") != "", "the end of another pod frees nothing"
            await stand.client.delete(PODS, "first", namespace="default", grace_seconds=0)
            await stand.until(lambda: not stand.ledger.holdings)
            assert await stand.bind(again, "n1") == ""
        assert sorted(cards_of_pod(server, "again")) == ["DCU-n1", "GPU-n1"]


def exact_quota() -> Json:
    """As much memory as one pod of the test takes."""
    hard = {"limits.nvidia.com/gpumem": str(MEMORY_MIB)}
    meta = {"name": "q", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": {"hard": hard}}


def fails(code: int, method: str, path: str) -> Callable[[ApiServer], None]:
    return lambda server: server.faults.fail(code, matching(method=method, path=path), times=1)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fails(500, "GET", "/pods/p"), id="the pod cannot be read"),
        pytest.param(fails(404, "GET", "/pods/p"), id="the pod is said to be gone"),
        pytest.param(fails(422, "POST", "/binding"), id="the binding is refused"),
        pytest.param(fails(403, "POST", "/binding"), id="the binding is forbidden"),
        pytest.param(fails(409, "POST", "/binding"), id="the binding conflicts"),
        pytest.param(fails(429, "POST", "/binding"), id="the API server is busy"),
    ],
)
@pytest.mark.parametrize("filtered", [True, False], ids=["filtered here", "never filtered here"])
async def test_a_failed_step_of_a_binding_leaves_neither_booking_nor_quota(
    fault: Callable[[ApiServer], None], filtered: bool
) -> None:
    """HAMi#2308: bookings and quota stayed when a step of the binding failed."""
    async with running() as server:
        await server.create(node("n1", 1))
        wanted = await create(server, "p", container(memory_mib=MEMORY_MIB))
        other = await create(server, "other", container(memory_mib=MEMORY_MIB))
        await server.create(exact_quota())
        async with standing(server) as stand:
            if filtered:
                await stand.filter(wanted, "n1")
            fault(server)
            error = await stand.bind(wanted, "n1")
            server.faults.clear()
            if error:
                assert (stand.ledger.holdings, list(stand.ledger.used_in_namespace("default").values())) == ({}, [])
                assert (await stand.filter(other, "n1"))["NodeNames"] == ["n1"], "nothing may be left of the attempt"
                stand.extender.promises.release(other["metadata"]["uid"])
            assert await stand.bind(wanted, "n1") == ""
            assert await stand.bind(other, "n1") != ""
        assert findings(server) == []


@pytest.mark.parametrize("code", [500, 503, 504])
async def test_a_binding_that_may_yet_be_carried_out_keeps_its_share_for_its_own_pod(code: int) -> None:
    """The other half of HAMi#2308: what is not certain is given to nobody else, and the retry works all the same."""
    async with running() as server:
        await server.create(node("n1", 1))
        wanted = await create(server, "p", container(memory_mib=MEMORY_MIB))
        other = await create(server, "other", container(memory_mib=MEMORY_MIB))
        await server.create(exact_quota())
        async with standing(server) as stand:
            fails(code, "POST", "/binding")(server)
            assert await stand.bind(wanted, "n1") != ""
            assert await stand.bind(other, "n1") != ""
            assert (await stand.filter(wanted, "n1"))["NodeNames"] == ["n1"]
            assert await stand.bind(wanted, "n1") == ""
        assert findings(server) == []


async def test_a_pod_bound_elsewhere_than_it_was_filtered_for_gets_cards_of_where_it_goes() -> None:
    """HAMi#1106: the annotation said node A and a card of A, the pod ran on B: unknown device."""
    async with running() as server:
        for name in ("n1", "n2", "n3"):
            await server.create(node(name, 1))
        filler = await create(server, "filler", container(memory_mib=MEMORY_MIB))
        wanted = await create(server, "p", container(memory_mib=MEMORY_MIB))
        async with standing(server) as stand:
            assert await stand.bind(filler, "n3") == ""
            assert (await stand.filter(wanted, "n1"))["NodeNames"] == ["n1"]
            refusal = await stand.bind(wanted, "n3")
            assert "n3" in refusal
            assert wanted["metadata"]["uid"] not in stand.ledger.holdings, (
                "the booking on n1 has to go with the refusal"
            )
            assert (await stand.filter(wanted, "n1"))["NodeNames"] == ["n1"]
            assert await stand.bind(wanted, "n2") == ""
            assert [holding.node for holding in stand.ledger.holdings.values()].count("n1") == 0
        assert cards_of_pod(server, "p") == ["GPU-n2-0"]
        notes = server.get("v1", "Pod", "p")["metadata"]["annotations"]
        assert notes["hami.io/vgpu-node"] == "n2"
        assert [key for key, text in notes.items() if "GPU-n1" in text] == []


# -- registration --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("handshake", ["Deleted_2020.01.01 00:00:00", "Requesting_2020.01.01 00:00:00", "Reported_x"])
@pytest.mark.parametrize("plugin", ["ours", "HAMi's"])
async def test_a_healthy_node_is_used_whatever_its_old_handshake_says(handshake: str, plugin: str) -> None:
    """HAMi#1839: `Deleted_<time>` blocked a healthy node until an administrator took it away."""
    made = node("n1", 2, allocatable=2)
    notes = made["metadata"]["annotations"]
    if plugin == "HAMi's":
        del notes[CARDS]
        card = (
            '{{"id":"GPU-{0}","count":10,"devmem":16384,"devcore":100,"type":"NVIDIA-Tesla T4","numa":0,"health":true}}'
        )
        notes["hami.io/node-nvidia-register"] = f"[{card.format('a')},{card.format('b')}]"
    notes["hami.io/node-handshake"] = handshake
    async with running() as server:
        await server.create(made)
        wanted = await create(server, "p", container(gpus=2, memory_mib=1000))
        async with standing(server) as stand:
            assert (await stand.filter(wanted, "n1"))["NodeNames"] == ["n1"]
            assert await stand.bind(wanted, "n1") == ""


async def test_a_card_that_drops_out_is_not_offered_and_its_pod_stays_visible() -> None:
    """volcano#2215: the scheduler went on offering the ID of a lost card."""
    ids = itertools.count()

    def registered(*uuids: str) -> Json:
        cards = tuple(Card(uuid=u, memory_mib=MEMORY_MIB, index=i, model="Tesla T4") for i, u in enumerate(uuids))
        return {"metadata": {"annotations": {CARDS: encode_cards(NodeCards("n1", cards))}}}

    async with running() as server:
        await server.create(node("n1", 8))
        eight = [f"GPU-{number}" for number in range(8)]
        async with standing(server) as stand:

            async def register(*uuids: str) -> None:
                await stand.client.patch(NODES, "n1", registered(*uuids))

                def known() -> bool:
                    book = stand.ledger.book("n1")
                    return (
                        book is not None and book.cards is not None and [c.uuid for c in book.cards.cards] == [*uuids]
                    )

                await stand.until(known)

            async def fits(gpus: int, uuid: str = "") -> bool:
                notes = {"nvidia.com/use-gpuuuid": uuid} if uuid else {}
                asked = await create(server, f"ask{next(ids)}", container(gpus=gpus, memory_mib=500), annotations=notes)
                found = (await stand.filter(asked, "n1"))["NodeNames"]
                stand.extender.promises.release(asked["metadata"]["uid"])
                return bool(found == ["n1"])

            await register(*eight)
            pinned = {"nvidia.com/use-gpuuuid": "GPU-7"}
            holder = await create(server, "holder", container(memory_mib=1000), annotations=pinned)
            assert await stand.bind(holder, "n1") == ""
            await settle(stand)
            assert (await fits(8), await fits(1, "GPU-7")) == (True, True)
            await register(*eight[:7])
            assert (await fits(8), await fits(1, "GPU-7"), await fits(7)) == (False, False, True)
            assert holder["metadata"]["uid"] in stand.ledger.holdings
            assert "GPU-7" in str(stand.ledger.lost_cards())
            await register(*eight[:7], "GPU-new")
            assert (await fits(8), await fits(1, "GPU-new"), await fits(1, "GPU-7")) == (True, True, False)
