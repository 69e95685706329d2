"""The drivers' core and both libraries under AddressSanitizer and UndefinedBehaviorSanitizer."""

import subprocess
from pathlib import Path

import pytest

from tests.native.drivers.rig import BUILD, DRIVERS, HERE, Node, compile_c

SANITIZERS = "-fsanitize=address,undefined"
STRICT = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "halt_on_error=1"}
SCRIPT = [
    "init", "context 0", "alloc 1000", "alloc 5000000", "pitch 1000 1000", "managed 4000000", "async 9000000",
    "vmm 4194304",
    "array 64 64", "graph 1000000 k_1us", "stream", "record", "launch k_1us 50 0", "record", "sync", "elapsed 0 1",
    *(f"free {i}" for i in range(7)), "free 0", "trim 0", "graphfree", "limit 0 4096", "fork", "info",
]  # fmt: skip


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both libraries built with the sanitizers, in a directory of their own."""
    build = tmp_path_factory.mktemp("sanitized")
    done = subprocess.run(
        ["make", "-s", "-C", str(DRIVERS), f"BUILD={build}", "SANITIZE=address,undefined", "CFLAGS=-O1 -g",
         f"{build}/libcuda.so.1"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return build


def test_the_core_keeps_its_promises(tmp_path: Path) -> None:
    sources = [str(path) for path in sorted((DRIVERS / "core").glob("*.c")) if path.name != "gate.c"]
    tables = [str(BUILD / "gen" / name) for name in ("models.c", "mig_profiles.c")]
    binary = tmp_path / "core_test"
    compile_c(
        HERE / "core_test.c", binary, *sources, *tables, f"-I{DRIVERS / 'core'}", SANITIZERS, "-pthread",
        "-Wno-missing-field-initializers",
    )  # fmt: skip
    node = Node(tmp_path / "node", "cards: [{model: T4, count: 2}]\n", {"GPUSLICE_FAKE_CLOCK": "virtual", **STRICT})
    done = node.run(str(binary), "run")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
def test_a_program_of_everything_is_clean(tmp_path: Path, client: Path, sanitized: Path) -> None:
    runtime = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    node = Node(tmp_path, "cards: [{model: T4}]\n", STRICT)
    done = node.run(str(client), "-c", *SCRIPT, LD_LIBRARY_PATH=str(sanitized), LD_PRELOAD=runtime.stdout.strip())
    codes = [line.split()[0] for line in done.stdout.splitlines()]
    not_initialised, freed_twice = "3", "1"
    expected = ["0"] * len(SCRIPT)
    expected[SCRIPT.index("free 6") + 1] = freed_twice
    expected[SCRIPT.index("fork")] = not_initialised
    assert (done.returncode, done.stderr, codes) == (0, "", expected)
