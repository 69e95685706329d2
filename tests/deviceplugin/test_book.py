"""Who is being admitted and what it gets, call by call, without a kubelet."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.book import Book, Identity, Listing
from deviceplugin.offers import GPU_RESOURCE
from deviceplugin.tenants import Need, Tenant
from gpuslice.devices.allocation import SliceShare
from gpuslice.devices.inventory import slice_id
from gpuslice.devices.requests import Role
from simulator.kubelet.rig import at, gpu

ALL = [slice_id(gpu(card), number) for card in range(4) for number in range(10)]


def need(name: str, *slices: str, role: Role = Role.APP) -> Need:
    return Need(name, role, GPU_RESOURCE, len(slices), tuple(SliceShare(s, 1000) for s in slices))


def tenant(name: str, *needs: Need, started: bool = False, terminal: bool = False, problem: str = "") -> Tenant:
    done = frozenset(n.container for n in needs) if started else frozenset()
    return Tenant(f"uid-{name}", "ns", name, needs, done, terminal=terminal, problem=problem)


def listing(**pods: dict[str, list[str]]) -> Listing:
    return {("ns", name): {c: frozenset(ids) for c, ids in containers.items()} for name, containers in pods.items()}


def book(*tenants: Tenant) -> Book:
    made = Book(GPU_RESOURCE)
    for one in tenants:
        made.see(one)
    return made


def admit(made: Book, listed: Listing | None, size: int = 1) -> tuple[str, str, Identity]:
    """Play one Pref and Allocate; return the pod, the container and how they were found."""
    owners = made.owners()
    free = [device for device in ALL if device not in made.held()]
    preference = made.prefer(made.admission(listed), free, [], size)
    chosen = [*preference.ids, *(d for d in free if d not in owners and d not in preference.ids)][:size]
    grant = made.allocate(chosen, f"g{len(made.grants)}")
    return grant.pod.removeprefix("ns/"), grant.container, grant.identity


P, Q = tenant("p", need("c", at(0, 0))), tenant("q", need("c", at(1, 0)))


@pytest.mark.parametrize(
    ("tenants", "listed", "expected"),
    [
        pytest.param([P, Q], listing(q={"c": []}), ("q", "c", Identity.KNOWN), id="equal pods: the listed one"),
        pytest.param(
            [P, Q],
            listing(p={"c": [at(0, 0)]}, q={"c": []}),
            ("q", "c", Identity.KNOWN),
            id="the other has its devices",
        ),
        pytest.param([P], None, ("p", "c", Identity.SOLE), id="no podresources, one pod waits"),
        pytest.param(
            [P, Q], None, ("p", "c", Identity.GUESSED), id="no podresources, two wait: the first, and a guess"
        ),
        pytest.param(
            [tenant("p", need("c", at(0, 0)), started=True), Q],
            listing(p={"c": []}, q={"c": []}),
            ("q", "c", Identity.KNOWN),
            id="after a lost checkpoint a running pod looks empty too",
        ),
        pytest.param(
            [tenant("p", need("c", at(0, 0)), terminal=True), Q],
            listing(p={"c": []}, q={"c": []}),
            ("q", "c", Identity.KNOWN),
            id="a pod that has ended is still listed by old kubelets",
        ),
        pytest.param(
            [tenant("p", need("i", at(0, 0), role=Role.INIT))],
            listing(p={"main": []}),
            ("p", "i", Identity.KNOWN),
            id="devices in an init container only, which is never listed",
        ),
        pytest.param([], listing(x={"c": []}), ("", "", Identity.UNMANAGED), id="nobody that we know"),
    ],
)
def test_who_is_admitted(tenants: list[Tenant], listed: Listing | None, expected: tuple[str, str, Identity]) -> None:
    assert admit(book(*tenants), listed) == expected


def test_containers_of_a_pod_are_served_in_admission_order() -> None:
    pod = tenant("p", need("i", at(0, 0), role=Role.INIT), need("a", at(1, 0)), need("b", at(2, 0)))
    made = book(pod)
    served = [admit(made, listing(p={"a": [], "b": []}))[1]]
    served.append(admit(made, listing(p={"a": [], "b": []}))[1])
    served.append(admit(made, listing(p={"a": [at(1, 0)], "b": []}))[1])
    assert served == ["i", "a", "b"]


def test_an_id_of_a_living_pod_is_never_proposed_even_when_the_kubelet_offers_it() -> None:
    made = book(tenant("p", need("c", at(0, 0)), started=True), tenant("q", need("c", at(0, 1))))
    assert made.prefer(made.admission(listing(q={"c": []})), [at(0, 0)], [], 1).ids == ()


def test_a_must_include_id_is_kept_and_the_answer_has_exactly_the_size() -> None:
    made = book(tenant("p", need("c", at(0, 0), at(1, 0))))
    preference = made.prefer(made.admission(listing(p={"c": []})), ALL, [at(3, 3)], 2)
    assert (len(preference.ids), at(3, 3) in preference.ids, preference.exact) == (2, True, False)


def test_a_pod_admitted_anew_after_a_reboot_gets_the_same_slices() -> None:
    made = book(P)
    admit(made, listing(p={"c": []}))
    preference = made.prefer(made.admission(listing(p={"c": []})), ALL, [], 1)
    assert (preference.ids, preference.identity) == ((at(0, 0),), Identity.KNOWN)


def test_a_withdrawn_grant_leaves_its_container_waiting() -> None:
    made = book(P)
    admit(made, listing(p={"c": []}))
    made.withdraw("g0")
    assert [t.name for t in made.waiting()] == ["p"]


@pytest.mark.parametrize(
    ("between", "ids", "foreseen"),
    [
        pytest.param(lambda _: None, [at(0, 0)], True, id="the kubelet takes what was preferred"),
        pytest.param(lambda _: None, [at(3, 3)], False, id="the kubelet takes something else"),
        pytest.param(lambda made: made.see(Q), [at(0, 0)], True, id="another pod comes"),
        pytest.param(lambda made: made.see(replace(P, terminating=True)), [at(0, 0)], False, id="the pod changes"),
        pytest.param(lambda made: made.forget(P.uid), [at(0, 0)], False, id="the pod is gone"),
        pytest.param(lambda made: made.allocate([at(0, 0)], "x"), [at(0, 0)], False, id="it was allocated already"),
        pytest.param(
            lambda made: made.prefer(made.admission(None), ALL, [], 1), [at(0, 0)], False, id="another is asked for"
        ),
    ],
)
def test_a_grant_is_foreseen_only_while_nothing_has_changed(
    between: Callable[[Book], object], ids: list[str], foreseen: bool
) -> None:
    made, plain = book(P), book(P)
    for each in (made, plain):
        each.prefer(each.admission(None), ALL, [], 1)
    ahead = made.foresee("g0", late=True, modes_of=lambda _: {})
    assert ahead is not None
    between(made)
    before = dict(made.grants)
    assert made.allocate_as_foreseen(ahead, frozenset(ids)) is foreseen
    made.check_invariants()
    if foreseen:
        assert (made.grants["g0"], P in made.waiting()) == (plain.allocate(ids, "g0"), False)
    else:
        assert made.grants == before


@pytest.mark.parametrize(
    ("pod", "offered"),
    [
        pytest.param(replace(P, problem="not ours"), ALL, id="a pod of another scheduler"),
        pytest.param(P, [at(3, 3)], id="its slice is not on offer"),
        pytest.param(
            tenant("p", need("c", at(0, 0), at(0, 0))), ALL, id="a reservation that names one slice twice: nobody's"
        ),
    ],
)
def test_what_is_not_certain_is_not_foreseen(pod: Tenant, offered: list[str]) -> None:
    made = book(pod)
    made.prefer(made.admission(None), offered, [], 1)
    assert made.foresee("g0", late=True, modes_of=lambda _: {}) is None


def test_reused_ids_of_an_init_container_need_no_preference() -> None:
    made = book(tenant("p", need("i", at(0, 0), at(1, 0), role=Role.INIT), need("c", at(1, 0))))
    made.prefer(made.admission(None), ALL, [], 2)
    made.allocate([at(0, 0), at(1, 0)], "g0")
    grant = made.allocate([at(0, 0)], "g1")
    assert (grant.container, grant.identity, grant.shares[0].slice) == ("c", Identity.REUSED, at(1, 0))


def test_the_checkpoint_corrects_a_wrong_guess() -> None:
    made = book(P, Q)
    _, _, identity = admit(made, None)
    corrected = made.confirm("g0", Q, "c")
    assert identity is Identity.GUESSED
    assert corrected is not None
    assert (corrected.uid, [s.slice for s in corrected.shares]) == ("uid-q", [at(1, 0)])


@given(st.permutations(range(8)), st.booleans())
def test_whatever_the_order_of_admission_every_pod_gets_its_own_slice(order: list[int], ignored: bool) -> None:
    tenants = [tenant(f"p{n}", need("c", at(n % 4, n // 4))) for n in range(8)]
    made, listed = book(*tenants), dict(listing())
    for n in order:
        waits: dict[str, dict[str, list[str]]] = {f"p{n}": {"c": []}}
        listed.update(listing(**waits))
        pod, _, identity = admit(made, listed)
        assert (pod, identity) == (f"p{n}", Identity.KNOWN)
        listed.update(listing(**{f"p{n}": {"c": [at(3, 9)] if ignored else [at(n % 4, n // 4)]}}))
    assert {grant.pod: grant.shares[0].slice for grant in made.grants.values()} == {
        f"ns/p{n}": at(n % 4, n // 4) for n in range(8)
    }


_STEPS = st.tuples(
    st.sampled_from(["see", "end", "forget", "admit", "guess", "reboot", "withdraw", "confirm"]), st.integers(0, 3)
)


@given(st.lists(_STEPS, max_size=30))
def test_who_waits_is_known_after_each_step(steps: list[tuple[str, int]]) -> None:
    tenants = [tenant(f"p{n}", need("a", at(n, 0)), need("b", at(n, 1))) for n in range(4)]
    made = book(*tenants[:2])
    for kind, n in steps:
        one, last = tenants[n], next(reversed(made.grants), "")
        match kind:
            case "see":
                made.see(one)
            case "end":
                made.see(replace(one, terminal=True))
            case "forget":
                made.forget(one.uid)
            case "admit" | "reboot":
                held: dict[str, list[str]] = {"a": [], "b": [] if kind == "reboot" else [at(n, 1)]}
                admit(made, listing(**{f"p{n}": held}))
            case "guess":
                admit(made, None)
            case "withdraw":
                made.withdraw(last)
            case _:
                made.confirm(last, one, "b")
        made.check_invariants()
