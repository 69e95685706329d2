"""What a pod holds, added up by card."""

import time

from hypothesis import given as forall
from hypothesis import strategies as st

from gpuslice.devices.allocation import PodAllocation
from gpuslice.devices.requests import Role
from gpuslice.placement.events import Roles
from gpuslice.placement.holding import CardUse, add_up, uses_of
from tests.placement.build import given, share


def test_steps_count_by_their_maximum_and_slices_stay() -> None:
    allocation = PodAllocation(
        "n1",
        {
            "init": (share("GPU-a::0", 9000, 90),),
            "side": (share("GPU-a::1", 1000, 10),),
            "main": (share("GPU-a::0", 500, 20), share("GPU-b::4", 700, exclusive=True)),
        },
    )
    roles = (("side", Role.SIDECAR), ("init", Role.INIT))
    assert uses_of(allocation, roles, init_done=False) == (
        CardUse("GPU-a", 0b11, 10_000, 100, exclusive=False, share_mib=-1),
        CardUse("GPU-b", 0b10000, 700, 0, exclusive=True, share_mib=700),
    )
    assert uses_of(allocation, roles, init_done=True)[0][2:4] == (1500, 30)


ROLES = st.sampled_from(((), (("main", Role.INIT),), (("main", Role.SIDECAR),), (("other", Role.INIT),)))


@forall(
    slices=st.lists(st.sampled_from(("GPU-a::0", "GPU-a::9", "GPU-b::5000")), max_size=2, unique=True),
    amounts=st.tuples(st.sampled_from((-1, 0, 700, 2**40)), st.sampled_from((0, 30, 2**40))),
    exclusive=st.booleans(),
    roles=ROLES,
    init_done=st.booleans(),
)
def test_a_pod_of_one_share_is_added_up_like_any_other(
    slices: list[str], amounts: tuple[int, int], *, exclusive: bool, roles: Roles, init_done: bool
) -> None:
    allocation = given("n1", *(share(name, *amounts, exclusive=exclusive) for name in slices))
    assert uses_of(allocation, roles, init_done=init_done) == add_up(allocation, roles, init_done=init_done)


def test_the_work_grows_with_the_number_of_shares_and_not_with_its_square() -> None:
    """Four times the shares, on as many cards, took sixteen times as long; 20,000 took 35 seconds."""

    def spent(count: int) -> float:
        allocation = given("n1", *(share(f"GPU-{n}::{n % 7}", 10) for n in range(count)))
        best = 9e9
        for _ in range(3):
            started = time.process_time()
            uses_of(allocation, (), init_done=False)
            best = min(best, time.process_time() - started)
        return best

    assert spent(16_000) < 10 * spent(4_000)
