"""Gate the built library: glibc ceiling, dependencies, exports, forbidden imports, size.

Usage: check_library.py FILE
"""

import os
import re
import subprocess
import sys
from pathlib import Path

CEILING = (2, 17)
MOST_BYTES = 400_000
FORBIDDEN = {
    "exit",
    "_exit",
    "abort",
    "umask",
    "signal",
    "sigaction",
    "atexit",
    "dlsym",
    "dlopen",
    "dlvsym",
    "system",
    "fork",
}
# What a musl program must be able to resolve too: nothing that only glibc has.
GLIBC_ONLY = re.compile(r"^__(?!errno_location|cxa_finalize|gmon_start__)|^pthread_")


def dynamic_symbols(path: Path) -> tuple[list[tuple[str, str]], set[str]]:
    """Imports as (name, version), and exported names."""
    objdump = os.environ.get("OBJDUMP", "objdump")
    text = subprocess.run([objdump, "-T", str(path)], capture_output=True, text=True, check=True).stdout
    imports, exports = [], set()
    for line in text.splitlines():
        found = re.match(r"^[0-9a-f]+\s.{7}\s(\S+)\s+[0-9a-f]+\s+(?:\(?([\w.]+)\)?\s+)?(\S+)$", line)
        if found is None:
            continue
        section, version, name = found.groups()
        if section == "*UND*":
            imports.append((name, version or ""))
        elif not name.startswith("."):  # sections, which some linkers list
            exports.add(name)
    return imports, exports


def findings(path: Path) -> list[str]:
    """Everything that is wrong with the library."""
    imports, exports = dynamic_symbols(path)
    out = []
    for name, version in imports:
        numbers = re.match(r"GLIBC_(\d+)\.(\d+)", version)
        if numbers and (int(numbers[1]), int(numbers[2])) > CEILING:
            out.append(f"imports {name}@{version}, newer than GLIBC_2.17")
        if name in FORBIDDEN or GLIBC_ONLY.match(name):
            out.append(f"imports {name}")
    policy = (Path(__file__).resolve().parents[1] / "policy" / "hooks.txt").read_text()
    wanted = {line.split()[0] for line in policy.splitlines() if line.strip() and not line.startswith("#")}
    wanted |= {"dlsym", "dlopen"}
    out += [f"exports {name}, which no policy names" for name in sorted(exports - wanted)]
    out += [f"does not export {name}" for name in sorted(wanted - exports)]
    headers = subprocess.run(["readelf", "-dW", str(path)], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", headers)
    if needed != ["libc.so.6"]:
        out.append(f"needs {needed}, not libc alone")
    if path.stat().st_size > MOST_BYTES:
        out.append(f"{path.stat().st_size} bytes, more than {MOST_BYTES}")
    return out


def main() -> int:
    """Print the findings."""
    path = Path(sys.argv[1])
    wrong = findings(path)
    print(
        "\n".join(f"{path.name} {line}" for line in wrong)
        or f"{path.name}: all gates hold, {path.stat().st_size} bytes"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
