"""The five classic ways to a card in two hands, on either kubelet.

Each is prevented, or found within ten seconds: an Event on each pod, a metric and a log line, with both pods named.
"""

from collections.abc import AsyncIterator

import pytest

from tests.cluster.harness.lifetimes import Lifetimes
from tests.contract.kubelet.machines import Json
from tests.contract.kubelet.node_daemon import GPU, SLICES, Ask, NodeDaemon
from tests.contract.kubelet.rig import Rig, container, is_running, pod

pytestmark = pytest.mark.anyio

STUBBORN = "trap '' TERM; while :; do sleep 1; done"
"""Does not end before it is killed."""


async def followed(rig: Rig, lives: Lifetimes, *made: Json) -> list[Json]:
    """Wait until pods run and follow the first process of each."""
    running = await rig.running(*made)
    for one in running:
        lives.follow(one, rig.first_process(one))
    return running


# -- 1: the kubelet has lost its record --------------------------------------------------------------------------------


async def test_1_after_a_lost_checkpoint_no_running_pods_slice_goes_to_another(rig: Rig, daemon: NodeDaemon) -> None:
    with Lifetimes() as lives:
        made = [await daemon.create(f"old{n}", Ask("main", (daemon.at(n % 2, n),))) for n in range(4)]
        old = await followed(rig, lives, *made)
        await rig.machine.stop_kubelet()
        content = rig.places.checkpoint.read_bytes()
        rig.places.checkpoint.write_bytes(content[: len(content) // 2])
        await rig.start_kubelet()
        await rig.until_offered(GPU, SLICES)
        made = [await daemon.create(f"new{n}", Ask("main", (daemon.at(n % 2, 9 - n),))) for n in range(4)]
        new = await followed(rig, lives, *made)
        assert lives.overlaps() == []
        assert [life.pod for life in lives.lives if life.ended is not None] == []
    assert [daemon.share(one) for one in (*old, *new)] == [{daemon.card(n % 2): 1000} for n in (*range(4), *range(4))]
    held = rig.recorded(GPU)
    assert [held[one["metadata"]["uid"], "main"] for one in new] == [{daemon.at(n % 2, 9 - n)} for n in range(4)]
    for n in range(4):
        text = await daemon.reports("forgotten", on=[f"old{n}"], naming=[f"old{n}"])
        assert "its checkpoint was lost" in text


# -- 2: a deleted pod whose process lives ------------------------------------------------------------------------------


async def test_2_the_slice_of_a_pod_deleted_by_force_is_free_when_its_process_has_ended(
    rig: Rig, daemon: NodeDaemon
) -> None:
    with Lifetimes() as lives:
        first = await daemon.create("first", Ask("main", (daemon.at(0, 0),), 2000, STUBBORN), grace_seconds=4)
        await followed(rig, lives, first)
        await rig.start_deletion(first, 0)
        second = await daemon.create("second", Ask("main", (daemon.at(0, 0),), 3000))
        (second,) = await followed(rig, lives, second)
        assert (lives.overlaps(), lives.reused()) == ([], 1)
    assert daemon.share(second) == {daemon.card(0): 3000}
    assert await daemon.metric("guarded_total", f'outcome="waited",resource="{GPU}"') == 1


# -- 3: the plugin comes back with other IDs ---------------------------------------------------------------------------


async def test_3_a_plugin_that_comes_back_with_other_ids_keeps_those_in_use(rig: Rig, daemon: NodeDaemon) -> None:
    old = [await daemon.run(f"old{n}", Ask("main", (daemon.at(0, 9 - n),))) for n in range(2)]
    pids = [rig.first_process(made) for made in old]
    config = rig.machine.folder / "fewer.yaml"
    config.write_text("defaults: {slotsPerCard: 4}\n")
    await daemon.kill()
    await daemon.start(f"--node-config={config}")
    await rig.until_offered(GPU, 8)
    new = [await daemon.run(f"new{n}", Ask("main", (daemon.at(0, n),))) for n in range(2)]
    await rig.restart_kubelet()
    await rig.until_offered(GPU, 8)
    assert [is_running(await rig.read(made)) for made in (*old, *new)] == [True] * 4
    assert [rig.first_process(made) for made in old] == pids
    held = [rig.recorded(GPU)[made["metadata"]["uid"], "main"] for made in (*old, *new)]
    assert held == [{daemon.at(0, n)} for n in (9, 8, 0, 1)]
    assert daemon.said("double_allocation") == []


# -- 4: a bug gives one thing to two -----------------------------------------------------------------------------------


@pytest.fixture
async def wrong_daemon(rig: Rig) -> AsyncIterator[NodeDaemon]:
    """A node daemon that answers the first card to everybody."""
    config = rig.machine.folder / "envvar.yaml"
    config.write_text("defaults: {deviceListStrategy: envvar}\n")
    async with NodeDaemon(rig) as made:
        await made.start(f"--node-config={config}", module="tests.contract.kubelet.wrong_daemon")
        yield made


async def test_4_a_plugin_that_answers_one_card_to_everybody_is_found(rig: Rig, wrong_daemon: NodeDaemon) -> None:
    daemon = wrong_daemon
    await daemon.run("owner", Ask("main", (daemon.at(0, 1),)))
    victim = await daemon.run("victim", Ask("main", (daemon.at(1, 0),)))
    assert rig.environment(victim)["NVIDIA_VISIBLE_DEVICES"] == daemon.card(0)
    text = await daemon.reports("wrong-answer", on=["victim", "owner"], naming=["victim", "owner"])
    assert daemon.card(0) in text


async def test_4_a_scheduler_that_gives_one_slice_twice_is_found_and_the_second_does_not_start(
    rig: Rig, daemon: NodeDaemon
) -> None:
    await daemon.run("first", Ask("main", (daemon.at(0, 0),)))
    second = await daemon.create("second", Ask("main", (daemon.at(0, 0),)))
    await daemon.reports("same-slice", on=["first", "second"], naming=["first", "second"])
    await rig.waits(second, "CreateContainerConfigError", "default/first")
    assert rig.machine.processes(second, "main") == []


# -- 5: sharing without isolation --------------------------------------------------------------------------------------


async def test_5_a_process_on_a_card_of_which_its_pod_holds_nothing_is_found(rig: Rig, daemon: NodeDaemon) -> None:
    await daemon.run("owner", Ask("main", (daemon.at(0, 0),)))
    intruder = await daemon.run("intruder", Ask("main", (daemon.at(1, 0),)))
    daemon.control(f"process 0 {rig.first_process(intruder)} 100 10")
    text = await daemon.reports("foreign-process", on=["owner", "intruder"], naming=["owner", "intruder"])
    assert daemon.card(0) in text


async def test_5_shares_that_do_not_fit_together_are_found_and_the_second_does_not_start(
    rig: Rig, daemon: NodeDaemon
) -> None:
    await daemon.run("first", Ask("main", (daemon.at(0, 0),), 30_000))
    second = await daemon.create("second", Ask("main", (daemon.at(0, 1),), 30_000))
    await daemon.reports("overload", on=["first", "second"], naming=["first", "second"])
    await rig.waits(second, "CreateContainerConfigError", "promised beyond what it has")
    assert rig.machine.processes(second, "main") == []


async def test_5_of_those_on_a_card_only_a_pod_that_holds_no_share_is_found(rig: Rig, daemon: NodeDaemon) -> None:
    made = [await daemon.create(f"p{n}", Ask("main", (daemon.at(0, n),), 10_000 + n)) for n in range(3)]
    sharers = await rig.running(*made)
    assert [daemon.share(one) for one in sharers] == [{daemon.card(0): 10_000 + n} for n in range(3)]
    (stranger,) = await rig.running(await rig.create(pod("stranger", container("main"))))
    for one in (*sharers, stranger):
        daemon.control(f"process 0 {rig.first_process(one)} 100 10")
    everybody = ["p0", "p1", "p2", "stranger"]
    await daemon.reports("foreign-process", on=everybody, naming=everybody)
    kinds = [line["kind"] for line in daemon.said("double_allocation")]
    assert kinds == ["foreign-process"], "deliberate sharing is no finding"
