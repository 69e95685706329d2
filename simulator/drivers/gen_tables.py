"""Turn the tables of this folder into the C and assembly sources that the Makefile compiles.

Run as ``python3 gen_tables.py TABLES OUT``; needs the standard library alone, because the drivers
are built before any environment exists. Writes for each of the two libraries an assembly file with
one entry per exported symbol, a C file with a weak "not supported" body for every symbol that no
source file implements, and the lookup tables; and one C table of card models.
"""

import sys
from pathlib import Path

ENTRY = """
\t.globl {name}
\t.type {name},@function
\t.p2align 4
{name}:
\tincq fake_calls+{offset}(%rip)
\tmovq fake_gate(%rip), %r10
\tcmpl $0, (%r10)
\tjne 1f
\tjmp fake_{target}
1:\tleaq fake_{target}(%rip), %r11
\tmovl ${index}, %r10d
\tjmp fake_gate_slow
\t.size {name},.-{name}
"""

PROLOGUE = """/* Built by gen_tables.py. Entry of every exported symbol: count the call, then go straight to the
 * body unless the gate is shut (library not initialised, or faults armed). */
\t.text
\t.hidden fake_calls
\t.hidden fake_gate
\t.hidden fake_gate_slow
"""


def rows(path: Path) -> list[list[str]]:
    """Return the tab-separated rows of a table, without comments and blank lines."""
    lines = path.read_text().splitlines()
    return [line.split("\t") for line in lines if line and not line.startswith("#")]


def entries(names: list[str], targets: list[str]) -> str:
    """Return the assembly of one exported entry per name."""
    blocks = [
        ENTRY.format(name=name, target=target, index=index, offset=8 * index)
        for index, (name, target) in enumerate(zip(names, targets, strict=True))
    ]
    hidden = [f"\t.hidden fake_{target}\n" for target in dict.fromkeys(targets)]
    return PROLOGUE + "".join(hidden) + "".join(blocks) + '\t.section .note.GNU-stack,"",@progbits\n'


def stubs(names: list[str], targets: list[str]) -> str:
    """Return weak bodies: a source file that defines the same function replaces them."""
    out = ['/* Built by gen_tables.py. */\n#include "gate.h"\n', f"uint64_t fake_calls[{len(names)}];\n"]
    out.append(f"const unsigned fake_symbol_count = {len(names)};\n")
    out.append("const char *const fake_symbol_names[] = {\n" + "".join(f'\t"{name}",\n' for name in names) + "};\n")
    first = {target: index for index, target in reversed(list(enumerate(targets)))}
    for target, index in sorted(first.items()):
        out.append(
            f"int fake_{target}(void);\n__attribute__((weak)) int\nfake_{target}(void)\n"
            f"{{\n\treturn fake_unsupported({index});\n}}\n"
        )
    return "".join(out)


def exports(names: list[str]) -> str:
    """Return a linker version script that exports the API and our own control functions only."""
    return "{\n global:\n" + "".join(f"  {name};\n" for name in names) + "  gpuslice_fake_*;\n local: *;\n};\n"


def cuda_lookup(table: list[list[str]]) -> str:
    """Return the (base name, version, stream mode) table of cuGetProcAddress, ordered for a binary search."""
    ordered = sorted(table, key=lambda row: (row[1], int(row[3]), int(row[2])))
    externs = "".join(f"extern char {row[0]}[];\n" for row in ordered)
    lines = "".join(f'\t{{"{base}", {version}, {mode}, {export}}},\n' for export, base, version, mode in ordered)
    return (
        '/* Built by gen_tables.py. */\n#include "lookup.h"\n'
        + externs
        + f"const unsigned cuda_lookup_count = {len(ordered)};\n"
        + "const struct cuda_lookup cuda_lookup_table[] = {\n"
        + lines
        + "};\n"
    )


def card_models(table: list[list[str]]) -> str:
    """Return the C table of card models; the columns are named in the first row."""
    columns, *models = table
    text = {"model", "name", "mig"}
    out = ['/* Built by gen_tables.py. */\n#include "models.h"\nconst struct card_model card_models[] = {\n']
    for model in models:
        fields = (
            f'.{column} = "{value}"' if column in text else f".{column} = {value}"
            for column, value in zip(columns, model, strict=True)
        )
        out.append("\t{" + ", ".join(fields) + "},\n")
    out.append("};\n" + f"const unsigned card_model_count = {len(models)};\n")
    return "".join(out)


def mig_profiles(table: list[list[str]]) -> str:
    """Return the C table of MIG profiles, one row per (family, profile)."""
    _, *profiles = table
    out = ['/* Built by gen_tables.py. */\n#include "models.h"\nconst struct mig_profile mig_profiles[] = {\n']
    for family, name, *numbers, starts in profiles:
        slots = starts.split(",")
        out.append(f'\t{{"{family}", "{name}", ' + ", ".join(numbers) + f", {len(slots)}, {{{', '.join(slots)}}}}},\n")
    out.append("};\n" + f"const unsigned mig_profile_count = {len(profiles)};\n")
    return "".join(out)


def body_of(export: str) -> str:
    """Return the name of the function behind an export: stream-mode twins share their plain form's body."""
    return export.removesuffix("_ptsz").removesuffix("_ptds")


def main(tables: Path, out: Path) -> None:
    """Write every generated file into ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    cuda = rows(tables / "cuda_symbols.tsv")
    cuda_names = [row[0] for row in cuda]
    nvml_names = [row[0] for row in rows(tables / "nvml_symbols.tsv")]
    cuda_targets = [body_of(name) for name in cuda_names]
    files = {
        "cuda_entries.S": entries(cuda_names, cuda_targets),
        "cuda_stubs.c": stubs(cuda_names, cuda_targets),
        "cuda_lookup.c": cuda_lookup(cuda),
        "cuda.map": exports(cuda_names),
        "nvml_entries.S": entries(nvml_names, nvml_names),
        "nvml_stubs.c": stubs(nvml_names, nvml_names),
        "nvml.map": exports(nvml_names),
        "models.c": card_models(rows(tables / "models.tsv")),
        "mig_profiles.c": mig_profiles(rows(tables / "mig_profiles.tsv")),
    }
    for name, text in files.items():
        (out / name).write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
