"""cuGetProcAddress answers from the drivers' own table: every lookup NVIDIA's runtimes make."""

import re
from pathlib import Path

import pytest

from tests.native.drivers.rig import DRIVERS, HERE, Node, compile_c

LISTS = sorted((HERE / "data").glob("*_lookups.txt"))


@pytest.fixture(scope="module")
def resolver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    binary = tmp_path_factory.mktemp("resolver") / "resolver"
    compile_c(HERE / "resolver.c", binary, "-ldl")
    return binary


def expected_symbol(name: str, version: int, per_thread: bool) -> str:
    """The newest form not newer than asked for; the per-thread form if there is one and it was asked for."""
    rows = [line.split("\t") for line in (DRIVERS / "tables" / "cuda_symbols.tsv").read_text().splitlines()]
    forms = [(mode == "1", int(since), symbol) for symbol, base, since, mode in rows if base == name]
    allowed = [form for form in forms if form[1] <= version and (per_thread or not form[0])]
    return max(allowed)[2]


@pytest.mark.parametrize("listing", LISTS, ids=lambda path: path.stem)
def test_every_lookup_of_the_runtime_finds_the_right_form(tmp_path: Path, resolver: Path, listing: Path) -> None:
    node = Node(tmp_path, "cuda: '13.0'\ncards: [{model: T4}]\n")
    wanted = [line.split() for line in listing.read_text().splitlines()]
    done = node.run(str(resolver), str(listing))
    found = [line.split() for line in done.stdout.splitlines()]
    expected = [[name, expected_symbol(name, int(version), flags == "2")] for name, version, flags in wanted]
    assert found == expected


@pytest.mark.parametrize(
    ("question", "cuda", "answer"),
    [
        pytest.param(("cuMemAdvise", 12020, 0), "13.0", "cuMemAdvise_v2", id="version 12.2 asks for the second form"),
        pytest.param(("cuMemAdvise", 8000, 0), "13.0", "cuMemAdvise", id="version 8 keeps the first form"),
        pytest.param(
            ("cuMemAdvise", 12020, 0), "12.1", "invalid", id="asking for more than the driver's version is invalid"
        ),
        pytest.param(
            ("cuKernelGetName", 12000, 0), "13.0", "version", id="a name that came later needs a later version"
        ),
        pytest.param(("cuKernelGetName", 11080, 0), "11.8", "missing", id="an old driver does not know a new name"),
        pytest.param(("cuNoSuchThing", 12000, 0), "13.0", "missing", id="an unknown name is missing"),
        pytest.param(
            ("cuLaunchKernel", 12000, 2), "13.0", "cuLaunchKernel_ptsz", id="per-thread streams have own forms"
        ),
        pytest.param(("cuDeviceGet", 12000, 2), "13.0", "cuDeviceGet", id="calls without a stream have one form"),
    ],
)
def test_lookup(tmp_path: Path, resolver: Path, question: tuple[str, int, int], cuda: str, answer: str) -> None:
    name, version, flags = question
    node = Node(tmp_path, f"cuda: '{cuda}'\ncards: [{{model: T4}}]\n")
    listing = tmp_path / "one.txt"
    listing.write_text(f"{name} {version} {flags}\n")
    assert node.run(str(resolver), str(listing)).stdout.split() == [name, answer]


def test_the_library_exports_its_table_and_nothing_else() -> None:
    node_symbols = re.findall(r"^ +(\w+);$", (DRIVERS / "build" / "gen" / "cuda.map").read_text(), re.MULTILINE)
    rows = (DRIVERS / "tables" / "cuda_symbols.tsv").read_text().splitlines()
    assert sorted(node_symbols) == sorted(row.split("\t")[0] for row in rows)
