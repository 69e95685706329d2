"""Build what the Python packages carry: generated protos, the preload library, the fake drivers.

Used twice: as hatchling's build hook, so that ``pip install .`` gives a wheel with the shim inside; and as a script
(``make build``), so that a checkout runs from its own tree.
"""

import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
LIBRARY = ROOT / "gpuslice" / "lib" / "libvgpu.so"
DRIVERS = ROOT / "simulator" / "drivers" / "build"


def build_all() -> None:
    """Build everything that is out of date.

    Raises:
        SystemExit: A tool is missing or a compilation failed; the text says which.
    """
    for tool in ("make", "gcc"):
        if shutil.which(tool) is None:
            raise SystemExit(f"gpuslice: {tool} is not on PATH; install it (Debian: apt-get install {tool})")
    runpy.run_path(str(ROOT / "proto" / "generate.py"))["generate"](ROOT)
    for folder in (ROOT / "hami_core", ROOT / "simulator" / "drivers"):
        _make(folder)
    _install(ROOT / "hami_core" / "build" / "libvgpu.so", LIBRARY)


def _make(folder: Path) -> None:
    done = subprocess.run(["make", "-C", str(folder), "-s", "-j2"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.stderr.write(done.stdout + done.stderr)
        raise SystemExit(f"gpuslice: make -C {folder.name} failed; the compiler's words are above")


def _install(built: Path, target: Path) -> None:
    """Copy a new library beside the old one and rename it, since processes may have the old one mapped."""
    if target.exists() and target.read_bytes() == built.read_bytes():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".new")
    shutil.copy(built, partial)
    partial.replace(target)


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a script in an environment without hatchling
    pass
else:

    class NativeBuildHook(BuildHookInterface[Any]):
        """Adds the compiled and generated files to the wheel and names its platform."""

        PLUGIN_NAME = "custom"

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Build, then tell hatchling what to include."""
            if self.target_name != "wheel":
                return
            build_all()
            build_data["pure_python"] = False
            build_data["tag"] = "py3-none-linux_x86_64"
            if version == "editable":
                return
            generated = [LIBRARY, *sorted((ROOT / "gpuslice" / "proto").rglob("*_pb2*.py*"))]
            built = [path for path in sorted(DRIVERS.iterdir()) if path.is_file() and path.suffix != ".o"]
            for path in (*generated, *built):
                build_data["force_include"][str(path)] = str(path.relative_to(ROOT))


if __name__ == "__main__":
    build_all()
