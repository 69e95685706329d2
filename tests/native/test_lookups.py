"""Symbols: every way to a driver function ends at the hook of the same ABI, everything else is left as it was."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuslice.devices.limits import DeviceLimit
from hami_core.gen import gen_hooks
from tests.native.shim_rig import OUT_OF_MEMORY, SHIM, Container, Node

Maker = Callable[..., Container]
LOOKUPS = SHIM / "build" / "tests" / "lookups"
QUERIES = Path(__file__).parent / "data"
SYMBOLS, ROUTES = gen_hooks.read_policy((SHIM / "policy" / "hooks.txt").read_text())


def run(box: Container, *words: str, preload: bool = True) -> list[str]:
    environment = {**box.environment, "LOOKUPS_OTHER": str(SHIM / "build" / "tests" / "other.so")}
    if not preload:
        del environment["LD_PRELOAD"]
    done = subprocess.run(
        [str(LOOKUPS), *words], env=environment, capture_output=True, text=True, check=True, timeout=20
    )
    return done.stdout.splitlines()


def expected_hook(name: str, version: int, flags: int) -> str | None:
    """The newest route that is not newer than the version asked for."""
    modes = {"any", "ptsz" if flags & 2 else "legacy"}
    fitting = [r for r in ROUTES if r.name == name and r.version <= version and r.mode in modes]
    return max(fitting, key=lambda route: route.version).symbol if fitting else None


@pytest.mark.parametrize("queries", ["cudart12_9.txt", "cudart13.txt"])
@pytest.mark.parametrize("cuda", ["11.4", "12.9", "13.0"])
def test_the_runtimes_own_lookups_land_on_the_hook_of_the_same_abi(
    built: None, tmp_path: Path, queries: str, cuda: str
) -> None:
    """What a driver of an older CUDA does not have stays missing."""
    node = Node(tmp_path / "node", cuda=cuda)
    box = Container(node, "box", [DeviceLimit(node.uuids()[0], 1000)])
    with_library = run(box, "queries", str(QUERIES / queries))
    without = run(box, "queries", str(QUERIES / queries), preload=False)
    assert len(with_library) == len(without) > 400
    for line, native in zip(with_library, without, strict=True):
        name, version, flags, *answer = line.split()
        hook = expected_hook(name, int(version), int(flags))
        native_answer = native.split()[3:]
        if hook is None or native_answer[2] == "none":
            assert answer == native_answer, line
        else:
            assert answer == [*native_answer[:2], "libvgpu.so", hook], line


def test_every_hooked_symbol_of_the_driver_is_found_as_its_hook_and_no_other(container: Maker) -> None:
    names = [name for name in SYMBOLS if name.startswith("cu")]
    names += ["cuMemcpyHtoD_v2", "cuStreamSynchronize", "cuCtxSynchronize", "cuMemHostAlloc", "cuNoSuchFunction"]
    box = container(1000)
    natives = dict(line.split(maxsplit=1) for line in run(box, "names", *names, preload=False))
    for line in run(box, "names", *names):
        name, owner, symbol = line.split()
        if natives[name] == "none none":
            assert owner == "none", f"{name}: the driver lacks it, so it must stay missing"
        elif name in SYMBOLS:
            assert (owner, symbol) == ("libvgpu.so", name)
        else:
            assert f"{owner} {symbol}" == natives[name]


def test_the_callers_handle_and_position_are_kept(container: Maker) -> None:
    ways = dict(line.split(maxsplit=1) for line in run(container(1000), "ways"))
    hook = "libvgpu.so cuMemAlloc_v2"
    assert ways == {
        "handle": hook,
        "next": hook,
        "default": hook,
        "missing": "none none",
        "other": "other.so cuMemAlloc_v2",
        "malloc0": "libc.so.6 malloc",
        "malloc1": "libc.so.6 malloc",
        "inside": "none none",
    }


def test_a_plugin_loaded_with_deepbind_does_not_get_past_the_quota(container: Maker) -> None:
    plugin = str(SHIM / "build" / "tests" / "plugin.so")
    assert run(container(1000), "deepbind", plugin) == [str(OUT_OF_MEMORY)]
    assert run(container(1000), "deepbind", plugin, preload=False) == ["0"]


def test_umask_and_signal_handlers_are_the_programs_own(container: Maker) -> None:
    assert run(container(1000), "signals") == ["unchanged"]


@pytest.mark.parametrize("program", [["/bin/true"], ["/bin/ls", "/"], ["/bin/sh", "-c", "exit 0"]])
def test_programs_without_cuda_notice_nothing(container: Maker, program: list[str]) -> None:
    box = container(1000)
    done = subprocess.run(program, env={**box.environment, "PATH": "/bin"}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (box.directory / "state").exists()
