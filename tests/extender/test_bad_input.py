"""Whatever is posted, the answer is JSON, never a 500, and the extender goes on."""

import asyncio
import io
import json
import threading
from collections.abc import Iterator
from typing import Any

import aiohttp
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from extender.binding import Outcome
from extender.engine import Engine, Surroundings, Terms
from extender.facts import cpu_milli_of
from extender.gate import Gate
from extender.metrics import Metrics
from extender.promises import Promises
from extender.routes import build_app
from extender.verbs import Verbs
from extender.wire import ExtenderBindingArgs, ExtenderPreemptionArgs
from gpuslice.devices.families import load_builtin
from gpuslice.devices.pods import Pod
from gpuslice.placement import events
from gpuslice.service.listener import open_socket, serve_http
from tests.extender.objects import cards_of, container, pod


class Everything:
    """Engine and promises as the verbs see them, without an API server."""

    def __init__(self) -> None:
        surroundings = Surroundings(
            clock=lambda: 0.0, wall_clock=lambda: 0.0, act=lambda _: None, notice=lambda _: None
        )
        self.engine = Engine(load_builtin(), Terms(), surroundings)
        self.promises = Promises(self.engine, Gate(), ours=lambda _: True)
        self.engine.apply(events.NodeSeen(cards_of("n1", 2)))
        self.filter = self.engine.filter
        self.prioritize = self.engine.prioritize
        self.explain = self.engine.explain

    def preempt(self, args: ExtenderPreemptionArgs) -> bytes:
        return self.promises.preempt(args, None)

    async def bind(self, args: ExtenderBindingArgs) -> Outcome:
        plan = self.promises.plan(args.pod_uid, args.node)
        return Outcome(plan if isinstance(plan, str) else "")


def verbs() -> Verbs:
    everything = Everything()
    return Verbs(everything, everything, Metrics(CollectorRegistry()), not_ready=lambda: None)


QUANTITY = st.one_of(st.integers(-5, 2**70), st.floats(allow_nan=False), st.text(max_size=8), st.just("3000"))
CONTAINER = st.fixed_dictionaries(
    {},
    optional={
        "name": st.text(max_size=5),
        "restartPolicy": st.sampled_from(["Always", "", "x"]) | st.none(),
        "resources": st.none()
        | st.fixed_dictionaries(
            {},
            optional={
                "limits": st.none()
                | st.dictionaries(st.sampled_from(sorted(load_builtin().resource_names)), QUANTITY, max_size=3)
            },
        ),
    },
)
POD = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries(
            {},
            optional={
                "name": st.text(max_size=5),
                "uid": st.text(max_size=5),
                "annotations": st.none() | st.dictionaries(st.text(max_size=30), st.text(max_size=30), max_size=3),
            },
        ),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "containers": st.none() | st.lists(CONTAINER, max_size=3),
                "initContainers": st.none() | st.lists(CONTAINER, max_size=2),
                "priority": st.none() | st.integers(-(2**31), 2**31),
            },
        ),
    },
)
NAMES = st.none() | st.lists(st.sampled_from(["n1", "stranger", "", "x" * 300]), max_size=4)
BODY = st.one_of(
    st.binary(max_size=100),
    st.fixed_dictionaries(
        {"Pod": st.none() | POD},
        optional={
            "NodeNames": NAMES,
            "Nodes": st.none()
            | st.fixed_dictionaries(
                {"items": st.none() | st.lists(st.fixed_dictionaries({"metadata": st.just({"name": "t"})}), max_size=2)}
            ),
            "NodeNameToMetaVictims": st.none()
            | st.dictionaries(st.sampled_from(["n1", "x"]), st.just({"Pods": [{"UID": "u"}]})),
            "PodName": st.text(max_size=5),
            "PodNamespace": st.text(max_size=5),
            "PodUID": st.text(max_size=5),
            "Node": st.sampled_from(["n1", "x"]),
        },
    ).map(lambda value: json.dumps(value).encode()),
)
fuzzed = verbs()


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(path=st.sampled_from(["/filter", "/prioritize", "/bind", "/preempt"]), body=BODY)
def test_no_body_breaks_a_verb(path: str, body: bytes) -> None:
    reply = asyncio.run(fuzzed.call(path, body))
    assert reply.status in (200, 400, 422), reply.body
    json.loads(reply.body)


def test_a_bug_is_a_500_with_an_id_and_the_next_call_works(monkeypatch: pytest.MonkeyPatch) -> None:
    under_test = verbs()
    body = json.dumps({"Pod": pod("a", container(memory_mib=1)), "NodeNames": ["n1"]}).encode()

    def broken(_: object) -> bytes:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(under_test.judge, "filter", broken)
        reply = asyncio.run(under_test.call("/filter", body))
    assert (reply.status, "request id" in json.loads(reply.body)["Error"]) == (500, True)
    assert asyncio.run(under_test.call("/filter", body)).status == 200


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        pytest.param(
            {"gpus": 4}, "node has fewer cards of the requested kind than requested", id="more cards than any"
        ),
        pytest.param({"memory_mib": 99_999}, "not enough free GPU memory on any card", id="more memory than any card"),
    ],
)
def test_a_pod_that_can_never_fit_gets_a_reason_and_a_normal_one_is_still_scheduled(
    wanted: dict[str, int], reason: str
) -> None:
    under_test = verbs()
    impossible = {"Pod": pod("big", container(**wanted)), "NodeNames": ["n1"]}  # type: ignore[arg-type]
    normal = {"Pod": pod("small", container(memory_mib=100)), "NodeNames": ["n1"]}
    answers = [
        json.loads(asyncio.run(under_test.call("/filter", json.dumps(body).encode())).body)
        for body in (impossible, normal)
    ]
    assert answers[0]["FailedAndUnresolvableNodes"] == {"n1": reason}
    assert answers[1]["NodeNames"] == ["n1"]


@pytest.mark.anyio
async def test_bodies_up_to_64_mib_are_read_and_larger_ones_are_refused() -> None:
    stopping, listening, under_test = asyncio.Event(), open_socket("127.0.0.1:0"), verbs()
    app, started = build_app(under_test), asyncio.Event()
    serving = asyncio.create_task(
        serve_http(app, listening, stopping, direct=under_test.direct, on_started=started.set)
    )
    await started.wait()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/filter"
    padding = "x" * (40 * 1024 * 1024)
    large = json.dumps({"Pod": pod("a"), "NodeNames": ["n1"], "Padding": padding}).encode()
    async with aiohttp.ClientSession() as session, session.post(url, data=io.BytesIO(large)) as answer:
        accepted = answer.status
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1].split("/", maxsplit=1)[0]))
    writer.write(
        b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n{" % (under_test.direct.max_body_bytes + 1)
    )
    refused = await reader.readline()
    writer.close()
    stopping.set()
    await serving
    assert (accepted, refused.split()[1]) == (200, b"413")


schema: Any = schemathesis.openapi.from_asgi("/openapi.json", build_app(fuzzed))


@schema.parametrize()  # type: ignore[untyped-decorator]
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_published_routes_hold_under_schemathesis(case: Any) -> None:
    answer = case.call()
    assert answer.status_code < 500
    assert answer.headers["content-length"] == [str(len(answer.content))]


@pytest.fixture(scope="module")
def over_the_wire() -> Iterator[str]:
    """Serve the routes as kube-scheduler reaches them: parsed straight from the socket, not through ASGI."""
    listening, stopping, under_test = open_socket("127.0.0.1:0"), threading.Event(), verbs()

    async def serve() -> None:
        ended = asyncio.Event()
        serving = asyncio.create_task(serve_http(build_app(under_test), listening, ended, direct=under_test.direct))
        await asyncio.to_thread(stopping.wait)
        ended.set()
        await serving

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    stopping.set()
    thread.join()


written: Any = schemathesis.openapi.from_dict(build_app(fuzzed).openapi())


@pytest.mark.slow
@pytest.mark.timeout(600)
@written.parametrize()  # type: ignore[untyped-decorator]
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_published_routes_hold_under_schemathesis_over_the_wire(case: Any, over_the_wire: str) -> None:
    answer = case.call(base_url=over_the_wire)
    assert answer.status_code < 500
    assert answer.headers["content-length"] == [str(len(answer.content))]


def test_quantities_no_machine_has_are_held_to_what_sums_can_carry() -> None:
    """The API server keeps up to 2^63 - 1 cores as they were written."""
    hungry = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": str(2**63 - 1)}}}]}}
    assert 0 < cpu_milli_of(msgspec.convert(hungry, Pod)) * 20_000 < 2**63
