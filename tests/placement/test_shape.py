"""Init containers, native sidecars and app containers: what a pod takes, and which slices the kubelet will pass on."""

import pytest
from hypothesis import given as forall
from hypothesis import strategies as st

from gpuslice.devices.allocation import PodAllocation, SliceShare
from gpuslice.devices.requests import ContainerDemand, ContainerRequest, PodRequest, Role
from gpuslice.placement.holding import uses_of
from gpuslice.placement.ledger import Ledger
from gpuslice.placement.shape import shape_of
from tests.placement.build import ask, card, node, request, roles_of, run

INIT, SIDE, APP = Role.INIT, Role.SIDECAR, Role.APP


@st.composite
def pods(draw: st.DrawFn, most_cards: int = 1) -> PodRequest:
    roles = [*draw(st.lists(st.sampled_from((INIT, SIDE)), max_size=4)), *[APP] * draw(st.integers(0, 3))]
    demands = [
        ContainerDemand(
            f"c{at}",
            role,
            ContainerRequest(
                cards=draw(st.integers(1, most_cards)),
                memory_mib=draw(st.integers(0, 50)),
                core_percent=draw(st.integers(0, 5)),
            ),
        )
        for at, role in enumerate(roles)
    ]
    return PodRequest(tuple(demands))


def rule_of_the_scheduler(asked: PodRequest, amount: str) -> int:
    """Return the effective request by the words of the Kubernetes documentation."""
    sidecars = highest = 0
    for demand in asked.containers:
        value: int = getattr(demand.request, amount)
        if demand.role is SIDE:
            sidecars += value
        elif demand.role is INIT:
            highest = max(highest, sidecars + value)
    apps: int = sum(getattr(demand.request, amount) for demand in asked.containers if demand.role is APP)
    return max(highest, sidecars + apps)


@forall(pods())
def test_a_pod_takes_what_the_scheduler_counts(asked: PodRequest) -> None:
    """On one card, so that nothing hides in a choice of cards."""
    ledger = Ledger()
    ledger.apply(node("n1", card("GPU-a", memory_mib=10_000, slots=20)))
    placed = run(ledger, "p", asked)
    assert placed is not None
    uses = uses_of(placed, roles_of(asked), init_done=False)
    assert sum(use.memory_mib for use in uses) == rule_of_the_scheduler(asked, "memory_mib")
    assert sum(use.core_percent for use in uses) == rule_of_the_scheduler(asked, "core_percent")
    later = uses_of(placed, roles_of(asked), init_done=True)
    lasting = [demand.request for demand in asked.containers if demand.role is not INIT]
    assert sum(use.memory_mib for use in later) == sum(one.memory_mib for one in lasting)


@forall(pods(most_cards=4))
def test_the_kubelet_passes_on_the_slices_that_the_plan_expects(asked: PodRequest) -> None:
    """A container is given slices of finished init containers before any new one (kubelet device manager)."""
    ledger = Ledger()
    ledger.apply(node("n1", *(card(f"GPU-{n}", memory_mib=10_000, slots=30) for n in range(4))))
    placed = run(ledger, "p", asked)
    assert placed is not None
    reusable: set[str] = set()
    for demand in asked.containers:
        slices = {share.slice for share in placed.containers[demand.name]}
        assert len({share.card for share in placed.containers[demand.name]}) == demand.request.cards
        assert len(slices & reusable) == min(len(slices), len(reusable))
        reusable = reusable | slices if demand.role is INIT else reusable - slices


@pytest.mark.parametrize(
    ("containers", "blocks", "steps"),
    [
        pytest.param([ask(2)], [(2, ("main",))], 1, id="one container"),
        pytest.param([ask(1, name="i", role=INIT), ask(2)], [(1, ("i", "main")), (1, ("main",))], 2, id="reuse"),
        pytest.param([ask(name="a"), ask(name="b")], [(1, ("a",)), (1, ("b",))], 1, id="two apps share nothing"),
        pytest.param(
            [ask(name="i", role=INIT), ask(name="s", role=SIDE), ask(name="j", role=INIT), ask(name="a")],
            [(1, ("i", "s")), (1, ("j", "a"))],
            3,
            id="a sidecar keeps what it reuses",
        ),
    ],
)
def test_shapes(containers: list[ContainerDemand], blocks: list[tuple[int, tuple[str, ...]]], steps: int) -> None:
    shape = shape_of(request(*containers))
    assert sorted((block.cards, block.users) for block in shape.blocks) == sorted(blocks)
    assert shape.steps == steps


def test_an_exclusive_init_container_frees_the_card_for_others_when_it_is_done() -> None:
    whole = SliceShare("GPU-a::0", 16384, 100, exclusive=True)
    part = SliceShare("GPU-a::0", 1000, 10)
    allocation = PodAllocation("n1", {"init": (whole,), "main": (part,)})
    roles = (("init", INIT),)
    (before,), (after,) = (uses_of(allocation, roles, init_done=done) for done in (False, True))
    assert (before.exclusive, before.memory_mib) == (True, 16384)
    assert (after.exclusive, after.memory_mib) == (False, 1000)
