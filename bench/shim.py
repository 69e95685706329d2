"""Benchmark of the preloaded library: ``python -m bench.shim [--quick]``.

Native and shim runs of the same program alternate on the same fake driver, so the difference is the library's. Compute
shares run on the fake driver's virtual clock and are exact. Its ledger is the judge of grants.
"""

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import shim_matrix
from bench.harness import Figure, report
from gpuslice.devices.limits import MIB, CorePolicy, DeviceHint, DeviceLimit, write_hints
from tests.native.shim_rig import CONTEXT_MIB, DRIVERS, FAULTY_LIBRARY, LIBRARY, SHIM, Client, Container, Node, build
from tests.native.test_limits_given_badly import BAD, GOOD
from tests.native.virtual_rig import UUID, box_on, kernel_ns, virtual_node

BLOCK_MIB = 4


def native(box: Container) -> Client:
    """The program without the library, on the same node."""
    return Client({name: value for name, value in box.environment.items() if name != "LD_PRELOAD"})


def box_of(node: Node, name: str, memory_mib: int, percent: int = 0) -> Container:
    """A container on every card of a node."""
    return Container(node, name, [DeviceLimit(uuid, memory_mib, percent) for uuid in node.uuids()])


def alternate(first: Callable[[], float], second: Callable[[], float], rounds: int) -> tuple[float, float]:
    """Least of several rounds of each, taken in turn: what else ran on the machine only ever adds."""
    pairs = [(first(), second()) for _ in range(rounds)]
    return min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)


def launch_extra(start: Callable[[], Client]) -> tuple[float, float]:
    """Median cost of a launch through the library over the driver's own function, and that function's; nanoseconds.

    One process, pinned to one processor, does short batches of the two in turn.
    """
    with start() as client:
        client.code("device 0")
        client.code("kernel k_1ns")
        _, driver_ns, _, _, median, _ = client.ask("compare 600 400")
    return float(median), float(driver_ns)


def launches(node: Node, processes: int) -> list[Figure]:
    """Cost of a launch without a core limit, and with one while there are tokens: median over fresh processes."""
    figures = []
    boxes = {percent: box_of(node, f"launch-{percent}", 20_000, percent) for percent in (0, 90)}
    plans: list[tuple[str, Callable[[], Client], float]] = [
        ("launch_noise", lambda: native(boxes[0]), 0.5),
        ("launch_unlimited_extra", boxes[0].start, 3.0),
        ("launch_limited_extra", boxes[90].start, 25.0),
    ]
    for name, start, target in plans:
        extras, bare = zip(*(launch_extra(start) for _ in range(processes)), strict=True)
        extra, base = statistics.median(extras), statistics.median(bare)
        figures.append(Figure(name, "ns", round(extra, 2), round(base, 2), round(1 + extra / base, 3), target))
        print(f"  {name}: {min(extras):.2f} to {max(extras):.2f} ns over {processes} processes", file=sys.stderr)
    return figures


def allocations(node: Node, rounds: int) -> list[Figure]:
    """Bookkeeping of an allocation and its release, with few and many live blocks."""
    box = box_of(node, "allocations", 79_000)
    figures = []
    with native(box) as plain, box.start() as limited:
        plain.code("device 0")
        limited.code("device 0")
        for size, live in ((4096, 1), (4096, 1_000), (4096, 100_000), (4 * MIB, 1), (4 * MIB, 10_000)):
            command = f"cycle 20000 {size} {live}"
            base, shim = alternate(
                lambda c=command: float(plain.ask(c)[1]), lambda c=command: float(limited.ask(c)[1]), rounds  # type: ignore[misc]
            )  # fmt: skip
            name = "alloc_free_extra" if (size, live) == (4096, 1_000) else f"alloc_free_extra_{size}_{live}"
            figures.append(Figure(name, "ns", round(shim - base, 1), base, round(shim / base, 3), 150.0))
    return figures


def starts(node: Node, processes: int) -> list[Figure]:
    """What cuInit takes, one process at a time and many at once."""
    box = box_of(node, "starts", 79_000)

    def one(start: Callable[[], Client]) -> float:
        began = time.perf_counter()
        client = start()
        took = (time.perf_counter() - began) * 1000
        client.kill()
        return took

    plain = [one(lambda: native(box)) for _ in range(20)]
    limited = [one(box.start) for _ in range(20)]
    extra = statistics.median(limited) - statistics.median(plain)

    def many(start: Callable[[], Client]) -> float:
        began = time.perf_counter()
        environment = box.environment if start == box.start else node.environment
        children = [
            subprocess.Popen([str(SHIM / "build" / "tests" / "client")], env=environment, stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            for _ in range(processes)
        ]  # fmt: skip
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "0 ready\n"
        took = time.perf_counter() - began
        for child in children:
            child.kill()
            child.communicate()
        return took

    base, shim = many(lambda: native(box)), many(box.start)
    return [
        Figure("cuinit_extra", "ms", round(extra, 3), round(statistics.median(plain), 3), target=2.0),
        Figure(f"start_{processes}", "s", round(shim, 3), round(base, 3), round(shim / base, 3), target=3.0),
    ]


def race(node: Node, rounds: int) -> list[Figure]:
    """Four processes allocate at random at the edge of their quota; the driver's ledger says what it handed out."""
    quota = 4 * CONTEXT_MIB + 400
    box = box_of(node, "race", quota)
    before = node.ledger()["cards"][0]["used_bytes"]
    racers = [box.start() for _ in range(4)]
    for racer in racers:
        racer.code("device 0")
    for racer in racers:
        racer.send(f"race {BLOCK_MIB * MIB} {rounds}")
    granted = sum(int(racer.answer()[1]) for racer in racers)
    peak = node.ledger()["cards"][0]["peak_bytes"] - before
    filled = sum(int(racer.ask(f"fill {2 * MIB}")[1]) for racer in racers[:1])
    full = node.ledger()["cards"][0]["used_bytes"] - before
    for racer in racers:
        racer.close()
    assert granted > 0
    assert filled > 0
    over = max(0, peak - quota * MIB) / (BLOCK_MIB * MIB)
    return [
        Figure("over_grants", "grants", over, 0.0, target=0.0),
        Figure("quota_usable", "%", round(100 * full / (quota * MIB), 3), target=99.9),
    ]


def run_windows(clients: Sequence[Client], kernel: str, windows: int, settle_ms: int = 300) -> list[float]:
    """Sum of the clients' shares in each second that all of them ran through, percent."""
    runs = "\n".join(["run 100"] * (10 * windows))
    for client in clients:
        client.send(f"device 0\nkernel {kernel}\nrun {settle_ms}\n{runs}")
    records: list[tuple[int, int, int]] = []
    starts, ends = [], []
    for client in clients:
        for _ in range(3):
            client.answer()
        rows = [[int(word) for word in client.answer()] for _ in range(10 * windows)]
        records += [(began, began + took, count * kernel_ns(kernel)) for _, count, took, began in rows]
        starts.append(rows[0][3])
        ends.append(rows[-1][3] + rows[-1][2])
    second, first, last = 1_000_000_000, max(starts), min(ends)
    shares = []
    for low in range(first, last - second + 1, second):
        parts = (
            work * max(0, min(end, low + second) - max(begin, low)) / (end - begin) for begin, end, work in records
        )
        shares.append(100 * sum(parts) / second)
    return shares


def shares(scratch: Path, quick: bool) -> list[Figure]:
    """Worst distance from the limit in any second, and throughput against the cap, over the grid or a sample of it."""
    with contextlib.redirect_stdout(sys.stderr):
        outcomes = shim_matrix.run_cells(shim_matrix.sample() if quick else shim_matrix.whole_grid(), scratch / "grid")
    missed = sum(not outcome.holds() for outcome in outcomes)
    return [
        Figure("share_worst_error", "points", round(max(abs(o.worst_window) for o in outcomes), 2), target=2.0),
        Figure("share_throughput_of_cap", "%", round(min(o.throughput for o in outcomes), 2), target=97.0),
        Figure("share_cells_missed", "cells", float(missed), float(len(outcomes)), target=0.0),
    ]


def tenants(scratch: Path) -> list[Figure]:
    """Two containers at 30 and 70 percent of one card."""
    worst = 0.0
    for kernel, settle_ms in (("k_500us", 300), ("k_5ms", 3000), ("k_50ms", 6000)):
        node = virtual_node(scratch / f"tenants-{kernel}", 2)
        clients = [
            box_on(node, name, percent).start(GPUSLICE_FAKE_RANK=str(percent))
            for name, percent in (("a", 30), ("b", 70))
        ]
        for client in clients:
            client.send(f"device 0\nkernel {kernel}\nrun {settle_ms}\nrun 6000")
        for client, percent in zip(clients, (30, 70), strict=True):
            _, _, _, (_, count, took, _) = [client.answer() for _ in range(4)]
            worst = max(worst, abs(100 * int(count) * kernel_ns(kernel) / int(took) - percent))
        for client in clients:
            client.close()
    return [Figure("two_tenants_worst_error", "points", round(worst, 2), target=3.0)]


def soft(scratch: Path) -> list[Figure]:
    """A soft limit of 30: use of an idle card, and how fast it is given back."""
    box = box_on(virtual_node(scratch / "soft", 1), "box", 30, core_policy=CorePolicy.SOFT)
    far = 10**18
    write_hints(box.directory / "limits", [DeviceHint(UUID, far)])
    with box.start() as client:
        idle = run_windows([client], "k_500us", 1)[0]
        write_hints(box.directory / "limits", [DeviceHint(UUID, far, others_active_percent=70)])
        steps = 0
        while steps < 100:
            _, count, took, _ = client.ask("run 20")
            steps += 1
            if 100 * int(count) * kernel_ns("k_500us") / int(took) < 45:
                break
    return [
        Figure("soft_idle_share", "%", round(idle, 2), target=95.0),
        Figure("soft_given_back", "ms", steps * 20.0, target=100.0),
    ]


def killed(node: Node) -> list[Figure]:
    """Sixteen processes race while others are killed inside the locks: the longest anybody was held up."""
    box = box_of(node, "killed", 20_000)
    waiters = [box.start() for _ in range(16)]
    for waiter in waiters:
        waiter.code("device 0")
    longest = 0.0
    for point in ("between", "locked:37", "registry:2", "unlock:9", "before-held:12"):
        for waiter in waiters:
            waiter.send(f"race {BLOCK_MIB * MIB} 2000")
        faulty = {**box.environment, "LD_PRELOAD": str(FAULTY_LIBRARY), "GPUSLICE_FAULT": point}
        subprocess.run(
            [str(SHIM / "build" / "tests" / "client")], env=faulty, input=f"device 0\nrace {BLOCK_MIB * MIB} 200\n",
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        began = time.perf_counter()
        for waiter in waiters:
            waiter.send(f"race {BLOCK_MIB * MIB} 20")
        for waiter in waiters:
            waiter.answer()
            waiter.answer()
        longest = max(longest, time.perf_counter() - began)
    waiters[0].ask("info")
    wrong = abs(box.state().devices[0].used_bytes - box.held_mib() * MIB)
    for waiter in waiters:
        waiter.close()
    return [
        Figure("killed_holdup", "s", round(longest, 3), target=1.0),
        Figure("killed_sum_error", "bytes", float(wrong), target=0.0),
    ]


def live(node: Node) -> list[Figure]:
    """From writing another limit to the first answer that follows it."""
    box = box_of(node, "live", 1_000)
    worst = 0.0
    with box.start() as client:
        client.code("device 0")
        for memory_mib in (2_000, 1_000, 3_000, 500):
            box.set_limits(*(DeviceLimit(uuid, memory_mib) for uuid in node.uuids()))
            began = time.perf_counter()
            while client.total_mib() != memory_mib:
                time.sleep(0.001)
            worst = max(worst, (time.perf_counter() - began) * 1000)
    return [Figure("live_requota", "ms", round(worst, 3), target=100.0)]


def badly_given(node: Node, scratch: Path) -> list[Figure]:
    """Limits from the environment: good ones must be exact, bad ones must close the quota with one line."""
    wrong = 0
    for number, (text, mib) in enumerate([*GOOD.items(), *((text, None) for text in BAD)]):
        variables = {
            "LD_PRELOAD": str(LIBRARY), "CUDA_DEVICE_MEMORY_LIMIT": text,
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(scratch / f"badly-{number}"),
        }  # fmt: skip
        with Client({**node.environment, **variables}) as client:
            code = client.code("device 0")
            total = int(client.ask("total 0")[1])
            lines = len(client.close().splitlines())
        expected = (0, mib * MIB, 0) if mib is not None else (2, 0, 1)
        wrong += (code, total, lines) != expected
    return [Figure("bad_limits_wrong", "rows", float(wrong), float(len(GOOD) + len(BAD)), target=0.0)]


def live_cores(scratch: Path) -> list[Figure]:
    """Time until a lowered core limit holds, on the virtual clock."""
    box = box_on(virtual_node(scratch / "live-cores", 1), "box", 90)
    with box.start() as client:
        run_windows([client], "k_500us", 1)
        box.set_limits(DeviceLimit(UUID, 20_000, 10))
        steps = 0
        while steps < 100:
            _, count, took, _ = client.ask("run 20")
            steps += 1
            if 100 * int(count) * kernel_ns("k_500us") / int(took) < 25:
                break
    return [Figure("live_core_limit", "ms", steps * 20.0, target=100.0)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run all parts; the last line is one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    quick: bool = parser.parse_args(argv).quick
    build(DRIVERS)
    build(SHIM, "all", "test-programs")
    with tempfile.TemporaryDirectory(prefix="gpuslice-bench-") as folder:
        scratch = Path(folder)
        node = Node(scratch / "node")
        figures = [
            *launches(node, 3 if quick else 15),
            *allocations(node, 3 if quick else 12),
            *starts(node, 60 if quick else 300),
            *race(Node(scratch / "race"), 20_000 if quick else 100_000),
            *shares(scratch, quick),
            *tenants(scratch),
            *soft(scratch),
            *killed(Node(scratch / "killed")),
            *live(node),
            *live_cores(scratch),
            *badly_given(node, scratch),
            Figure("library_size", "KB", round(LIBRARY.stat().st_size / 1000, 1), target=400.0),
        ]
    report("preloaded library, shim over native on the same fake driver", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
