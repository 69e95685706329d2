"""Check that every function of NVIDIA's headers is classified in policy/symbols.txt, and that our ABI is theirs.

Usage: classify.py HEADER_DIRECTORY…      (each holds cuda.h or nvml.h; nothing of them is copied)
Exit 1 and one line per finding when a function is unclassified or a prototype or structure differs.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
HOOKED = {
    "start", "view", "alloc", "free", "pool", "ipc", "vmm", "array", "context", "code", "graph", "launch", "capture",
}  # fmt: skip
CLASSES = {*HOOKED, "pass"}
VARIANTS = ((), ("-DCUDA_API_PER_THREAD_DEFAULT_STREAM",), ("-D__CUDA_API_VERSION_INTERNAL",))
# Our structure, theirs, and the members that must lie at the same place.
STRUCTURES = {
    "cuda.h": (
        ("struct cu_uuid", "CUuuid", {}),
        ("struct cu_location", "CUmemLocation", {"type": "type", "id": "id"}),
        ("struct cu_allocation_prop", "CUmemAllocationProp", {"location": "location", "type": "type"}),
        ("struct cu_pool_props", "CUmemPoolProps", {"location": "location"}),
        ("struct cu_array_descriptor", "CUDA_ARRAY_DESCRIPTOR", {"format": "Format", "channels": "NumChannels"}),
        ("struct cu_array3d_descriptor", "CUDA_ARRAY3D_DESCRIPTOR", {"depth": "Depth", "flags": "Flags"}),
        ("struct cu_array_requirements", "CUDA_ARRAY_MEMORY_REQUIREMENTS", {"size": "size"}),
        ("struct cu_array_map", "CUarrayMapInfo", {"operation": "memOperationType", "handle": "memHandle"}),
        ("struct cu_launch_config", "CUlaunchConfig", {"block_z": "blockDimZ", "stream": "hStream"}),
    ),
    "nvml.h": (
        ("struct nvml_memory", "nvmlMemory_t", {"used": "used", "free": "free"}),
        ("struct nvml_memory_v2", "nvmlMemory_v2_t", {"used": "used", "reserved": "reserved"}),
        ("struct nvml_process_v1", "nvmlProcessInfo_v1_t", {"used_bytes": "usedGpuMemory"}),
        ("struct nvml_process", "nvmlProcessInfo_t", {"gpu_instance": "gpuInstanceId"}),
        ("struct nvml_process_detail", "nvmlProcessDetail_v1_t", {"protected_bytes": "usedGpuCcProtectedMemory"}),
        ("struct nvml_process_detail_list", "nvmlProcessDetailList_v1_t", {"entries": "procArray"}),
        ("struct nvml_process_sample", "nvmlProcessUtilizationSample_t", {"sm": "smUtil"}),
        ("struct nvml_process_utilization", "nvmlProcessUtilizationInfo_v1_t", {"sm": "smUtil", "ofa": "ofaUtil"}),
        ("struct nvml_processes_utilization", "nvmlProcessesUtilizationInfo_v1_t", {"entries": "procUtilArray"}),
    ),
}


def policy() -> dict[str, str]:
    """Symbol -> class."""
    lines = (line.split("#")[0].split() for line in (HERE / "policy" / "symbols.txt").read_text().splitlines())
    return {words[0]: words[1] for words in lines if words}


def preprocessed(header: Path, *defines: str) -> str:
    """The header as the compiler sees it, on one line."""
    done = subprocess.run(
        ["gcc", "-E", "-P", *defines, "-I", str(header.parent), str(header)], capture_output=True, text=True, check=True
    )
    return " ".join(done.stdout.split())


def functions(header: Path) -> dict[str, list[str]]:
    """Name -> parameter types as far as they matter for a call: pointer, 32, 64, or the structure's name."""
    result = "CUresult" if header.name == "cuda.h" else "nvmlReturn_t"
    found: dict[str, list[str]] = {}
    for defines in VARIANTS if header.name == "cuda.h" else ((),):
        text = preprocessed(header, *defines)
        for name, parameters in re.findall(rf"\b{result}\s+(\w+)\s*\(([^)]*)\)", text):
            found.setdefault(name, [_kind(p) for p in parameters.split(",") if p.strip() not in {"", "void"}])
    return found


_HANDLES = ("context", "stream", "event", "function", "module", "library", "array", "mipmappedArray", "graph",
            "graphExec", "graphNode", "memoryPool", "graph_node")  # fmt: skip


def _kind(parameter: str) -> str:
    words = parameter.replace("const", "").split()
    handles = {f"CU{kind}" for kind in _HANDLES} | {
        f"cu_{kind}" for kind in (*_HANDLES, "pool", "mipmap", "graph_exec")
    }
    if "*" in parameter or "[" in parameter or words[0] in handles | {"nvmlDevice_t", "nvml_device"}:
        return "pointer"
    wide = {"size_t", "CUdeviceptr", "CUdeviceptr_v2", "cu_deviceptr", "cu_handle", "uint64_t", "cuuint64_t",
            "CUmemGenericAllocationHandle"}  # fmt: skip
    if words[0] in wide or parameter.count("long") == 2:
        return "64"
    return "32"


def ours() -> dict[str, list[str]]:
    """The same of our own prototypes."""
    found = {}
    for name in ("cuda_prototypes.h", "nvml_abi.h"):
        text = " ".join((HERE / "include" / name).read_text().split())
        for symbol, parameters in re.findall(r"\b(?:cu|nvml)_result (\w+)\(([^)]*)\)", text):
            found[symbol] = [_kind(p) for p in parameters.split(",") if p.strip() not in {"", "void"}]
    return found


def check_functions(header: Path) -> Iterator[str]:
    """Unclassified functions, and prototypes of ours that differ."""
    known = policy()
    own = ours()
    for name, parameters in functions(header).items():
        if name not in known:
            yield f"{header}: {name} is not classified in policy/symbols.txt"
        if name in own and own[name] != parameters and not _renamed(name, header):
            yield f"{header}: {name} takes {parameters}, include/ says {own[name]}"


def _renamed(name: str, header: Path) -> bool:
    """Whether the header maps the plain name to a versioned symbol, so that its prototype is the latter's."""
    return bool(re.search(rf"#\s*define\s+{name}\s+\w+", header.read_text(errors="replace")))


def check_structures(header: Path) -> Iterator[str]:
    """Compile a file that asserts sizes and offsets against the header."""
    lines = ["#include <stddef.h>", f'#include "{header}"', *(f"#undef {name}" for name in ours())]
    own = "cuda_abi.h" if header.name == "cuda.h" else "nvml_abi.h"
    text = re.sub(r'#include "cuda_prototypes.h"', "", (HERE / "include" / own).read_text())
    text = re.sub(r"^(cu|nvml)_result \w+\([^;]*;", "", text, flags=re.MULTILINE)
    text = re.sub(r"enum \{[^}]*\};", "", text)
    lines.append(text)
    for mine, theirs, members in STRUCTURES[header.name]:
        if theirs.removesuffix("_t") not in header.read_text(errors="replace"):
            continue
        lines.append(f'_Static_assert(sizeof({mine}) == sizeof({theirs}), "{theirs}");')
        for member, other in members.items():
            lines.append(
                f'_Static_assert(offsetof({mine}, {member}) == offsetof({theirs}, {other}), "{theirs}.{other}");'
            )
    with tempfile.NamedTemporaryFile("w", suffix=".c") as file:
        file.write("\n".join(lines))
        file.flush()
        done = subprocess.run(
            ["gcc", "-std=c11", "-fsyntax-only", "-I", str(header.parent), file.name],
            capture_output=True,
            text=True,
            check=False,
        )
    for line in done.stderr.splitlines():
        if "error" in line:
            yield f"{header}: {line.split('error:')[-1].strip()}"


def main(arguments: list[str]) -> int:
    """Check every header found in the directories."""
    findings = [
        f"policy/symbols.txt: {name} has unknown class {kind}" for name, kind in policy().items() if kind not in CLASSES
    ]
    checked = 0
    for directory in map(Path, arguments):
        for header in (directory / "cuda.h", directory / "nvml.h"):
            if header.exists():
                checked += 1
                findings += [*check_functions(header), *check_structures(header)]
    print("\n".join(findings) or f"{checked} headers, {len(policy())} symbols: all classified, all alike")
    return 1 if findings or checked == 0 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
