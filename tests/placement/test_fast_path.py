"""The column scan says what plain Python says, on every node, for every policy."""

import dataclasses
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given as forall
from hypothesis import settings
from hypothesis import strategies as st

from gpuslice.devices.inventory import Card
from gpuslice.devices.requests import CardSelection, ContainerDemand, ContainerRequest, PodRequest, Role
from gpuslice.placement import events, fit, score_cache
from gpuslice.placement.decide import Candidates, filter_nodes
from gpuslice.placement.explain import see_cards
from gpuslice.placement.fit import Fit, Known, fit_again, fit_blocks, fit_node, fit_slice
from gpuslice.placement.fleet import Fleet
from gpuslice.placement.ledger import Ledger
from gpuslice.placement.mix import Task
from gpuslice.placement.policies.registry import NAMES, PolicyDefaults, resolve
from gpuslice.placement.shape import PodShape, shape_of
from gpuslice.placement.verdicts import scan_nodes
from gpuslice.placement.view import NodeView, planning_view, view_of
from tests.placement.build import BINPACK, ask, key, node, request, roles_of, run, seen

pytestmark = pytest.mark.timeout(400)  # Hypothesis looks for a smaller example for up to 300 s
MODELS = ("NVIDIA A10", "NVIDIA A100-SXM4-40GB", "NVIDIA H100")
CHAINS = ("binpack,numa", "topology-aware,spread", "numa,topology-aware", "mutex,spread")

requests_ = st.builds(
    ContainerRequest,
    cards=st.integers(1, 4),
    memory_mib=st.sampled_from((0, 1, 300, 500, 1000)),
    core_percent=st.sampled_from((0, 10, 50, 99)),
)
percents = st.builds(ContainerRequest, cards=st.integers(1, 2), memory_percent=st.sampled_from((1, 33, 50, 100)))
wholes = st.builds(
    lambda cards: ContainerRequest(cards=cards, memory_percent=100, core_percent=100, exclusive=True), st.integers(1, 4)
)
any_request = st.one_of(requests_, requests_, percents, wholes)
selections = st.builds(
    CardSelection,
    use_types=st.sampled_from(((), ("A100",), ("A10", "H100"))),
    refuse_uuids=st.sampled_from(((), ("GPU-0-1", "GPU-1-0"))),
    use_uuids=st.sampled_from(((), (), ("GPU-0-0", "GPU-1-1", "GPU-2-0"))),
    same_numa=st.booleans(),
)


@st.composite
def pod_requests(draw: st.DrawFn) -> PodRequest:
    roles = draw(st.lists(st.sampled_from((Role.INIT, Role.SIDECAR)), max_size=2))
    apps = draw(st.integers(1, 2))
    demands = [
        ContainerDemand(f"c{at}", role, draw(any_request)) for at, role in enumerate([*roles, *[Role.APP] * apps])
    ]
    return PodRequest(tuple(demands), draw(selections))


@st.composite
def pods_of_one_slice(draw: st.DrawFn) -> PodRequest:
    wanted = dataclasses.replace(draw(any_request), cards=1)
    return PodRequest((ContainerDemand("c", Role.APP, wanted),), draw(st.one_of(st.just(CardSelection()), selections)))


@st.composite
def clusters(draw: st.DrawFn) -> Ledger:
    """Return a few nodes with odd cards and some pods on them."""
    ledger = Ledger()
    for at in range(draw(st.integers(1, 4))):
        models = draw(st.sampled_from((MODELS[:1], MODELS[1:2], MODELS)))
        cards = [
            Card(
                uuid=f"GPU-{at}-{n}",
                memory_mib=draw(st.sampled_from((500, 1000, 1001))),
                slots=draw(st.integers(0, 4)),
                cores=draw(st.sampled_from((100, 150))),
                model=draw(st.sampled_from(models)),
                family=draw(st.sampled_from(("nvidia", "nvidia", "nvidia", "ascend"))),
                numa=draw(st.sampled_from((None, 0, 1))),
                healthy=draw(st.integers(0, 9)) > 0,
                cordoned=draw(st.integers(0, 9)) == 0,
                equal_shares=draw(st.integers(0, 5)) == 0,
            )
            for n in range(draw(st.integers(0, 6)))
        ]
        links = draw(st.sampled_from((False, True)))
        matrix = tuple(
            tuple(0 if a == b else 10 * (1 + (a * b + a + b) % 6) for b in range(len(cards))) for a in range(len(cards))
        )
        cpu = draw(st.sampled_from((-1, 0, 4000, 64000)))
        ready = draw(st.integers(0, 9)) > 0
        ledger.apply(node(f"n{at}", *cards, links=matrix if links else (), cpu_milli=cpu, ready=ready))
    for at, asked in enumerate(draw(st.lists(pod_requests(), max_size=5))):
        run(ledger, f"old{at}", asked, cpu_milli=draw(st.sampled_from((0, 500, 3000))))
    return ledger


TASKS = st.dictionaries(
    st.builds(
        Task,
        cpu_milli=st.sampled_from((0, 1000, 8000)),
        share_milli=st.sampled_from((100, 333, 500, 1000)),
        cards=st.integers(1, 4),
        models=st.sampled_from(((), ("A100",), ("A10", "H100"))),
    ),
    st.integers(1, 50),
    max_size=6,
)


def plain(ledger: Ledger, shape: PodShape, defaults: PolicyDefaults) -> list[tuple[int, float]]:
    """Judge every node with nothing kept from earlier looks; what is kept stays as it is."""
    policy = resolve(shape.request, defaults, ledger.outlook)
    found: list[tuple[int, float]] = []
    kept, ledger.fleet.views = ledger.fleet.views, {}
    for row in range(ledger.fleet.rows):
        fit = fit_node(ledger.fleet, row, shape, policy)
        found.append((0, fit.score) if isinstance(fit, Fit) else (int(fit), 0.0))
    ledger.fleet.views = kept
    return found


@pytest.mark.parametrize("name", [*NAMES, *CHAINS])
@settings(max_examples=50, deadline=None)
@forall(data=st.data())
def test_columns_agree_with_plain_python(name: str, data: st.DataObject) -> None:
    ledger = data.draw(clusters())
    ledger.observer.fix(data.draw(TASKS))
    shape = shape_of(data.draw(pod_requests()), data.draw(st.sampled_from((0, 2000))))
    defaults = PolicyDefaults(node=name, card=name)
    expected = plain(ledger, shape, defaults)
    policy = resolve(shape.request, defaults, ledger.outlook)
    codes, scores = scan_nodes(ledger.fleet, np.arange(ledger.fleet.rows), shape, policy)
    assert [(int(code), float(score)) for code, score in zip(codes, scores, strict=True)] == expected


@pytest.mark.parametrize("name", [*NAMES, *CHAINS])
@settings(max_examples=50, deadline=None)
@forall(data=st.data())
def test_the_short_way_for_one_slice_agrees_with_the_way_for_all_pods(name: str, data: st.DataObject) -> None:
    """On nodes as they come and go: each is looked at again after a pod has been placed or has ended."""
    ledger = data.draw(clusters())
    ledger.observer.fix(data.draw(TASKS))
    defaults = PolicyDefaults(node=name, card=name)
    for step in range(data.draw(st.integers(1, 3))):
        shapes = [shape_of(data.draw(pods_of_one_slice()), data.draw(st.sampled_from((0, 2000)))) for _ in range(3)]
        for shape, row in product(shapes, range(ledger.fleet.rows)):
            assert shape.is_one_slice
            policy = resolve(shape.request, defaults, ledger.outlook)
            afresh = partial(view_of, ledger.fleet, row, shape)
            found = fit_slice(planning_view(ledger.fleet, row, shape), shape, policy)
            assert found == fit_blocks(afresh(), shape, policy, afresh=afresh)
        placed = run(ledger, f"new{step}", shapes[0].request, defaults=defaults)
        if placed is not None and data.draw(st.booleans()):
            ledger.apply(seen(f"new{step}", placed, terminal=True))


@pytest.mark.parametrize("name", ["binpack", "balanced", "topology-aware"])
@settings(max_examples=40, deadline=None)
@forall(data=st.data())
def test_cached_verdicts_agree_with_fresh_ones(name: str, data: st.DataObject) -> None:
    """Whatever happens between two looks, the cache answers what a scan of everything would."""
    ledger = data.draw(clusters())
    shapes = [shape_of(data.draw(st.one_of(pod_requests(), pods_of_one_slice()))) for _ in range(2)]
    rows = np.arange(ledger.fleet.rows)
    for step in range(data.draw(st.integers(1, 6))):
        shape, chosen = data.draw(st.sampled_from(shapes)), data.draw(st.sampled_from((name, "balanced", "fgd")))
        defaults = PolicyDefaults(node=chosen, card=chosen)
        policy = resolve(shape.request, defaults, ledger.outlook)
        if len(rows) < ledger.fleet.rows:
            rows = np.arange(ledger.fleet.rows)
        codes, scores = ledger.scores.verdicts(ledger.fleet, rows, shape, policy)
        fast = [(int(code), float(score)) for code, score in zip(codes, scores, strict=True)]
        assert fast == plain(ledger, shape, defaults)
        asked = data.draw(pod_requests())
        placed = run(ledger, f"new{step}", asked, defaults=BINPACK)
        if placed is not None and data.draw(st.booleans()):
            ledger.apply(seen(f"new{step}", placed, terminal=True))
        if data.draw(st.booleans()):
            ledger.scores.look_ahead(ledger.fleet)
        if data.draw(st.integers(0, 3)) == 0:
            ledger.apply(node(f"extra{step}", Card(uuid=f"GPU-x{step}", memory_mib=1000)))
        if data.draw(st.integers(0, 3)) == 0:
            book = ledger.books.nodes["n0"]
            assert book.cards is not None
            cpu = data.draw(st.sampled_from((-1, 4000)))
            ledger.apply(events.NodeSeen(book.cards, ready=data.draw(st.booleans()), cpu_milli=cpu))
            see_cards(ledger, shape.request, "n0", defaults)


def test_nodes_in_the_same_state_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, looks = Ledger(), []
    for at in range(6):
        ledger.apply(node(f"n{at}", *(Card(f"GPU-{at}-{n}", 1000) for n in range(2)), ready=at < 5))
    asked, names = request(ask(memory_mib=600)), Candidates(ledger, [f"n{at}" for at in range(6)])

    def counted(view: NodeView, *arguments: Any) -> Any:
        looks.append(view.name)
        return fit_slice(view, *arguments)

    monkeypatch.setattr(fit, "fit_slice", counted)
    assert filter_nodes(ledger, asked, names, PolicyDefaults()).feasible == ["n0", "n1", "n2", "n3", "n4"]
    assert len(looks) == 1
    run(ledger, "other", request(ask(memory_mib=500)))
    looks.clear()
    assert filter_nodes(ledger, asked, names, PolicyDefaults()).feasible == ["n0", "n1", "n2", "n3", "n4"]
    assert looks == ["n0"], "the node of the other pod alone"


@pytest.mark.parametrize(
    ("times", "ahead", "later"),
    [
        pytest.param(2, 1, 0, id="the same nodes as before"),
        pytest.param(1, 0, 1, id="these nodes for the first time"),
    ],
)
def test_what_was_looked_at_ahead_of_time_is_not_looked_at_again(
    times: int, ahead: int, later: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, looks = Ledger(), []
    for name in ("n1", "n2", "n3"):
        ledger.apply(node(name, Card(f"GPU-{name}", memory_mib=1000)))
    asked, names = request(ask(memory_mib=600)), Candidates(ledger, ["n1", "n2", "n3"])
    for _ in range(times):
        filter_nodes(ledger, asked, names, BINPACK)
    run(ledger, "other", request(ask(memory_mib=500)), defaults=BINPACK)

    def counted(known: Known, fleet: Fleet, row: int, *arguments: Any) -> Any:
        looks.append(row)
        return fit_again(known, fleet, row, *arguments)

    monkeypatch.setattr(score_cache, "fit_again", counted)
    ledger.scores.look_ahead(ledger.fleet)
    before = len(looks)
    found = filter_nodes(ledger, asked, names, BINPACK).feasible
    assert (before, len(looks) - before, found) == (ahead, later, ["n2", "n3"])


@pytest.mark.parametrize("names", [("binpack",), ("balanced", "binpack"), ("balanced", *["binpack"] * 20, "fgd")])
def test_what_is_kept_of_a_node_neither_grows_nor_goes_stale(names: tuple[str, ...]) -> None:
    ledger = Ledger()
    ledger.apply(node("n", *(Card(uuid=f"GPU-{n}", memory_mib=1000) for n in range(3))))
    shape = shape_of(PodRequest((ContainerDemand("c", Role.APP, ContainerRequest(cards=2, memory_mib=300)),)))
    for name in names * 10:
        defaults = PolicyDefaults(node=name, card=name)
        found = fit_node(ledger.fleet, 0, shape, resolve(shape.request, defaults, ledger.outlook))
        assert isinstance(found, Fit)
        assert [(0, found.score)] == plain(ledger, shape, defaults)
        assert len(ledger.fleet.views[0][1].moved) <= 5


@settings(max_examples=100, deadline=None)
@forall(data=st.data())
def test_a_placement_never_overcommits_and_keeps_cards_apart(data: st.DataObject) -> None:
    ledger = data.draw(clusters())
    name = data.draw(st.sampled_from([*NAMES, *CHAINS]))
    asked = data.draw(pod_requests())
    placed = run(ledger, "new", asked, defaults=PolicyDefaults(node=name, card=name))
    if placed is None:
        return
    assert not ledger.conflicts
    for demand in asked.containers:
        shares = placed.containers[demand.name]
        assert len({share.card for share in shares}) == demand.request.cards == len(shares)
    again = seen("new", placed, roles=roles_of(asked), init_done=True)
    ledger.apply(again)
    ledger.check_invariants()
    assert not ledger.conflicts
    assert ledger.holdings["new"].key == key("new")


def many_of_each(ledger: Ledger, copies: int) -> Ledger:
    """Return a cluster with so many nodes like each of another, without its pods, all seen in one list."""
    fleet, nodes = ledger.fleet, []
    for (name, row), copy in product(fleet.row_of.items(), range(copies)):
        book = ledger.book(name)
        assert book is not None
        assert book.cards is not None
        cards = tuple(dataclasses.replace(card, uuid=f"{card.uuid}-{copy}") for card in book.cards.cards)
        given = dataclasses.replace(book.cards, node=f"{name}-{copy}", cards=cards)
        nodes.append(events.NodeSeen(given, bool(fleet.ready[row]), int(fleet.cpu_total[row])))
    found = Ledger()
    found.apply(events.Relist(nodes=tuple(nodes), pods=(), now=0.0))
    return found


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15, deadline=None)
@forall(data=st.data())
def test_one_of_many_equal_nodes_speaks_for_all(name: str, data: st.DataObject) -> None:
    ledger = many_of_each(data.draw(clusters()), copies=34)
    ledger.observer.fix(data.draw(TASKS))
    defaults, rows = PolicyDefaults(node=name, card=name), np.arange(ledger.fleet.rows)
    for step in range(4):
        shape = shape_of(data.draw(pods_of_one_slice()), data.draw(st.sampled_from((0, 2000))))
        policy = resolve(shape.request, defaults, ledger.outlook)
        codes, scores = ledger.scores.verdicts(ledger.fleet, rows, shape, policy)
        fast = [(int(code), float(score)) for code, score in zip(codes, scores, strict=True)]
        assert fast == plain(ledger, shape, defaults)
        run(ledger, f"new{step}", shape.request, defaults=defaults)


def test_equal_nodes_are_not_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Ledger()
    first.apply(node("n", *(Card(f"GPU-{n}", 1000, 4) for n in range(8))))
    ledger = many_of_each(first, copies=200)
    for number in range(3):
        run(ledger, f"old{number}", request(ask(memory_mib=300 + number)))
    monkeypatch.setattr(score_cache, "scan_and_tell", None)
    assert run(ledger, "new", request(ask(memory_mib=500))) is not None
