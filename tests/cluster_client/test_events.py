from datetime import UTC, datetime, timedelta

import pytest

from gpuslice.cluster.client import KubeClient
from gpuslice.cluster.events import EventRecorder, Subject
from simulator.apiserver.server import ApiServer

pytestmark = pytest.mark.anyio
POD = Subject("v1", "Pod", "default", "a", "uid-1")


class Clock:
    def __init__(self) -> None:
        self.at = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.at


async def test_the_same_thing_said_twice_is_one_event_counted(client: KubeClient, server: ApiServer) -> None:
    clock = Clock()
    recorder = EventRecorder(client, "test", "here", now=clock.now, repeat_seconds=600)
    recorder.record(POD, "Warning", "Refused", "no memory")
    recorder.record(POD, "Warning", "Refused", "no memory")
    await recorder.drain()
    clock.at += timedelta(seconds=601)
    recorder.record(POD, "Warning", "Refused", "no memory")
    await recorder.drain()
    found = server.list("v1", "Event", "default")
    assert [(event["message"], event["count"]) for event in found] == [("no memory", 3)]


async def test_another_message_is_another_event(client: KubeClient, server: ApiServer) -> None:
    recorder = EventRecorder(client, "test", "here")
    recorder.record(POD, "Warning", "Refused", "no memory")
    recorder.record(POD, "Warning", "Refused", "no cores")
    await recorder.drain()
    assert sorted(e["message"] for e in server.list("v1", "Event", "default")) == ["no cores", "no memory"]


async def test_events_on_a_node_live_in_the_default_namespace(client: KubeClient, server: ApiServer) -> None:
    recorder = EventRecorder(client, "test", "here")
    recorder.record(Subject.node("n1"), "Normal", "Registered", "8 cards")
    await recorder.drain()
    (event,) = server.list("v1", "Event", "default")
    assert (event["involvedObject"]["kind"], event["involvedObject"]["name"]) == ("Node", "n1")


async def test_a_full_queue_drops_the_oldest_and_counts_it(client: KubeClient, server: ApiServer) -> None:
    recorder = EventRecorder(client, "test", "here", capacity=2)
    for text in ("one", "two", "three"):
        recorder.record(POD, "Normal", "Said", text)
    await recorder.drain()
    assert (recorder.dropped, sorted(e["message"] for e in server.list("v1", "Event", "default"))) == (
        1,
        ["three", "two"],
    )


async def test_a_very_long_message_is_cut_to_what_the_server_accepts(client: KubeClient, server: ApiServer) -> None:
    recorder = EventRecorder(client, "test", "here")
    recorder.record(POD, "Normal", "Said", "x" * 5000)
    await recorder.drain()
    (event,) = server.list("v1", "Event", "default")
    assert len(event["message"]) == 1024
