"""The five classic ways in which one card ends up in two hands, as differences between books."""

import base64

import pytest

from deviceplugin.audit import View, findings
from deviceplugin.checkpoint import Entry
from deviceplugin.nodeconfig import NodeSettings
from deviceplugin.offers import GPU_RESOURCE, make_offers
from deviceplugin.tenants import Need, Tenant
from gpuslice.devices.allocation import SliceShare
from gpuslice.devices.requests import Role
from gpuslice.nvml.processes import CardProcess
from gpuslice.proto.deviceplugin.v1beta1 import api_pb2 as pb
from simulator.kubelet.rig import at, gpu, machine

OFFERS = make_offers(machine(), NodeSettings())


def tenant(name: str, *slices: str, memory_mib: int = 1000, terminal: bool = False, started: bool = True) -> Tenant:
    shares = tuple(SliceShare(s, memory_mib) for s in slices)
    need = Need("c", Role.APP, GPU_RESOURCE, len(slices), shares)
    done = frozenset({"c"}) if started else frozenset()
    return Tenant(name, "default", name, (need,), started=done, terminal=terminal)


def entry(uid: str, *ids: str, visible: str = "") -> Entry:
    env = {"GPUSLICE_GRANT": "g", "NVIDIA_VISIBLE_DEVICES": visible} if visible else {"GPUSLICE_GRANT": "g"}
    answer = pb.ContainerAllocateResponse(envs=env).SerializeToString()
    return Entry(uid, "c", GPU_RESOURCE, frozenset(ids), base64.b64encode(answer).decode())


def view(
    *tenants: Tenant,
    entries: tuple[Entry, ...] = (),
    alive: frozenset[str] = frozenset(),
    processes: tuple[CardProcess, ...] = (),
    pod_of: dict[int, str] | None = None,
) -> View:
    bystanders = {"plain": Tenant("plain", "default", "plain", ())}
    return View({t.uid: t for t in tenants}, entries, OFFERS, alive.__contains__, processes, pod_of, bystanders)


A0, B0, A1 = at(0, 0), at(1, 0), at(0, 1)
ONE, TWO = tenant("one", A0), tenant("two", B0)
BOTH = frozenset({"one", "two"})

ROWS = [
    pytest.param(
        view(ONE, TWO, entries=(entry("one", A0), entry("two", B0)), alive=BOTH), [], id="two pods on two slices"
    ),
    pytest.param(
        view(ONE, tenant("two", A1), entries=(entry("one", A0), entry("two", A1)), alive=BOTH),
        [],
        id="two slices of one card: deliberate sharing is no finding",
    ),
    pytest.param(
        view(ONE, tenant("two", A1), entries=(entry("two", A1),), alive=BOTH),
        [("forgotten", ("one",))],
        id="1 kubelet restart with a lost checkpoint: a running pod is not in its record",
    ),
    pytest.param(
        view(ONE, tenant("two", A1), entries=(entry("one", A0), entry("two", A0)), alive=BOTH),
        [("same-id", ("one", "two"))],
        id="1 and then it gives the same device again",
    ),
    pytest.param(
        view(TWO, entries=(entry("gone", A0), entry("two", A0)), alive=frozenset({"gone", "two"})),
        [("same-id", ("gone", "two"))],
        id="2 a deleted pod's process still runs and its device is given away",
    ),
    pytest.param(
        view(TWO, entries=(entry("gone", B0), entry("two", B0)), alive=frozenset({"two"})),
        [],
        id="2 a deleted pod whose processes have ended",
    ),
    pytest.param(
        view(tenant("one", A0), tenant("two", A0), entries=(), alive=frozenset()),
        [("same-slice", ("one", "two"))],
        id="3 two reservations of one slice",
    ),
    pytest.param(
        view(tenant("one", A0, terminal=True), tenant("two", A0)), [], id="3 a slice reused after its pod has completed"
    ),
    pytest.param(
        view(ONE, TWO, entries=(entry("one", A0), entry("two", B0, visible=gpu(0))), alive=BOTH),
        [("wrong-answer", ("two", "one"))],
        id="4 a plugin that answers card 0 to everybody",
    ),
    pytest.param(
        view(ONE, TWO, entries=(entry("one", A0), entry("two", B0)), alive=BOTH,
             processes=(CardProcess(gpu(0), 77), CardProcess(gpu(1), 78)), pod_of={77: "two", 78: "two"}),
        [("foreign-process", ("one", "two"))],
        id="5 a process on a card of which its pod holds no share",
    ),
    pytest.param(
        view(ONE, entries=(entry("one", A0),), alive=frozenset({"one"}), processes=(CardProcess(gpu(0), 7),),
             pod_of={7: "plain"}),
        [("foreign-process", ("one", "plain"))],
        id="5 a process of a pod that asked for no card",
    ),
    pytest.param(
        view(ONE, entries=(entry("one", A0),), alive=frozenset({"one"}), processes=(CardProcess(gpu(1), 7),),
             pod_of={7: "plain"}),
        [],
        id="5 a process of such a pod on a card that nobody holds",
    ),
    pytest.param(
        view(ONE, entries=(entry("one", A0),), alive=frozenset({"one"}), processes=(CardProcess(gpu(0), 5),),
             pod_of={}),
        [],
        id="5 a process of the host is not a pod's",
    ),
    pytest.param(
        view(tenant("one", A0, memory_mib=30_000), tenant("two", A1, memory_mib=20_000),
             entries=(entry("one", A0), entry("two", A1)), alive=BOTH),
        [("overload", ("one", "two"))],
        id="5 a card promised beyond what it has",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("seen", "expected"), ROWS)
def test_findings(seen: View, expected: list[tuple[str, tuple[str, ...]]]) -> None:
    assert [(found.kind, found.uids) for found in findings(seen)] == expected


@pytest.mark.parametrize("seen", [row.values[0] for row in ROWS if row.values[1]])
def test_every_finding_names_its_pods_and_says_what_to_do(seen: View) -> None:
    for found in findings(seen):
        assert all(uid in found.text for uid in found.uids)
        assert "delete" in found.text or "created anew" in found.text


def test_the_file_system_is_asked_only_about_pods_that_matter() -> None:
    asked: list[str] = []

    def lives(uid: str) -> bool:
        asked.append(uid)
        return True

    gone = tuple(entry(f"gone-{n}", at(0, n + 2)) for n in range(5))
    seen = View({"one": ONE, "two": TWO}, (entry("one", A0), entry("two", B0), *gone), OFFERS, lives)
    assert (list(findings(seen)), asked) == ([], [])
