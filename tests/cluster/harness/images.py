"""Container images made by hand: OCI archives of a few files of this machine, no engine and no registry.

`pause` holds one static program. `app` holds a shell, a few tools and the test programs with the libraries of this
machine that they need, so that a container runs the same binaries as the host tests do.
"""

import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.harness.process import ClusterError, run_checked

PAUSE = "example.invalid/pause:1"
APP = "example.invalid/app:1"
APP_TOOLS = ("sh", "sleep", "cat", "env", "ls", "id", "date", "touch", "kill", "ln", "mkdir", "rm", "dd", "chmod")
LIBRARY_FOLDER = "/usr/lib/x86_64-linux-gnu"
_PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"


@dataclass(frozen=True, slots=True)
class Image:
    """What goes into an image.

    Attributes:
        name: Full reference; a registry name that cannot exist, so nothing is ever pulled.
        files: Path in the image -> file of this machine; symbolic links are followed.
        environment: NAME -> value for every container.
        entrypoint: Default command.
    """

    name: str
    files: Mapping[str, Path]
    environment: Mapping[str, str] = field(default_factory=dict)
    entrypoint: Sequence[str] = ()


def compile_program(name: str, folder: Path, *flags: str) -> Path:
    """Compile `programs/NAME.c` into a folder; once."""
    target = folder / name
    if target.exists():
        return target
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise ClusterError(f"no C compiler on PATH to build {name}.c: apt-get install gcc libc6-dev")
    strict = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-Wconversion"]
    run_checked([compiler, *strict, *flags, "-o", str(target), str(_PROGRAMS / f"{name}.c")], what=f"compile {name}.c")
    return target


def init_program(folder: Path) -> Path:
    """Build the reaper that sandboxes and nodes start with."""
    return compile_program("init", folder, "-static")


def share_program(folder: Path) -> Path:
    """Build the program that tells what a container gets of its cards."""
    return compile_program("share", folder, "-ldl")


def pause_image(folder: Path) -> Image:
    """Return the image of a pod's sandbox."""
    return Image(PAUSE, {"/pause": init_program(folder)}, entrypoint=("/pause",))


def app_image(programs: Mapping[str, Path], libraries: Sequence[Path], environment: Mapping[str, str]) -> Image:
    """Return the application image: shell, tools, the given programs and driver libraries.

    Args:
        programs: Path in the image -> program of this machine.
        libraries: Shared libraries put into the library folder under their own names.
        environment: Environment of every container.
    """
    files: dict[str, Path] = {}
    for tool in APP_TOOLS:
        found = shutil.which(tool)
        if found is None:
            raise ClusterError(
                f"{tool} is not on PATH; the application image needs it (Debian: coreutils, dash, procps)"
            )
        files[f"/bin/{tool}"] = Path(found)
    files |= programs
    needed = shared_libraries([*files.values(), *libraries])
    files |= needed
    files |= {f"{LIBRARY_FOLDER}/{library.name}": library for library in libraries}
    base = {"PATH": "/usr/local/bin:/bin", "HOME": "/"}
    return Image(APP, files, base | dict(environment), ("/bin/sh",))


def shared_libraries(programs: Iterable[Path]) -> dict[str, Path]:
    """Return path in the image -> file for every library that the programs need, the loader included."""
    found: dict[str, Path] = {}
    for program in programs:
        listing = subprocess.run(["ldd", str(program)], check=False, capture_output=True, text=True).stdout
        for path in re.findall(r"(/\S+) \(0x", listing):
            found[path] = Path(path)
    return found


def write_archive(image: Image, target: Path) -> Path:
    """Write an image as an OCI archive that `ctr images import` reads."""
    layer = _layer(image.files)
    config = _json(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {
                "Env": [f"{name}={value}" for name, value in image.environment.items()],
                "Entrypoint": list(image.entrypoint),
            },
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _descriptor(_CONFIG, config),
            "layers": [_descriptor(_LAYER, layer)],
        }
    )
    entry = _descriptor(_MANIFEST, manifest) | {"annotations": {"io.containerd.image.name": image.name}}
    index = _json({"schemaVersion": 2, "mediaType": _INDEX, "manifests": [entry]})
    with tarfile.open(target, "w") as archive:
        _add(archive, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(archive, "index.json", index)
        for blob in (layer, config, manifest):
            _add(archive, f"blobs/sha256/{_digest(blob).removeprefix('sha256:')}", blob)
    return target


def _layer(files: Mapping[str, Path]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for folder in ("tmp", "etc", "proc", "sys", "dev", "run", "var", "var/run"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            layer.addfile(entry)
        _add(layer, "etc/passwd", b"root:x:0:0:root:/:/bin/sh\nuser:x:1000:1000:user:/:/bin/sh\n")
        for where, source in sorted(files.items()):
            _add(layer, where.lstrip("/"), source.read_bytes(), mode=0o755)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _descriptor(media_type: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}
