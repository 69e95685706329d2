"""Generate build/replacement/*: a libcuda.so.1 that stands in for the driver's.

For what a preload cannot reach (env -i without /etc/ld.so.preload, dlmopen, foreign loaders). Hooked functions are the
library's own; every other function of policy/symbols.txt is a jump through a slot that is resolved in the real driver
on first use. Usage: gen_replacement.py OUTPUT_DIRECTORY
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
# All registers that may carry arguments are kept; the stack is aligned for the call.
COMMON = """
\t.text
\t.type replacement_resolve_common,@function
replacement_resolve_common:
\tpush %rdi
\tpush %rsi
\tpush %rdx
\tpush %rcx
\tpush %r8
\tpush %r9
\tpush %rax
\tsub $128, %rsp
\tmovups %xmm0, (%rsp)
\tmovups %xmm1, 16(%rsp)
\tmovups %xmm2, 32(%rsp)
\tmovups %xmm3, 48(%rsp)
\tmovups %xmm4, 64(%rsp)
\tmovups %xmm5, 80(%rsp)
\tmovups %xmm6, 96(%rsp)
\tmovups %xmm7, 112(%rsp)
\tmov %r11, %rdi
\tcall replacement_resolve
\tmov %rax, %r11
\tmovups (%rsp), %xmm0
\tmovups 16(%rsp), %xmm1
\tmovups 32(%rsp), %xmm2
\tmovups 48(%rsp), %xmm3
\tmovups 64(%rsp), %xmm4
\tmovups 80(%rsp), %xmm5
\tmovups 96(%rsp), %xmm6
\tmovups 112(%rsp), %xmm7
\tadd $128, %rsp
\tpop %rax
\tpop %r9
\tpop %r8
\tpop %rcx
\tpop %rdx
\tpop %rsi
\tpop %rdi
\tjmp *%r11
"""


def main(arguments: list[str]) -> int:
    """Write trampolines.S, names.c and exports.map."""
    out = Path(arguments[0])
    out.mkdir(parents=True, exist_ok=True)
    lines = (line.split("#")[0].split() for line in (HERE / "policy" / "symbols.txt").read_text().splitlines())
    policy = {words[0]: words[1] for words in lines if words and words[0].startswith("cu")}
    passed = [name for name, kind in policy.items() if kind == "pass"]
    text = [COMMON]
    for number, name in enumerate(passed):
        text.append(
            f"\t.globl {name}\n\t.type {name},@function\n{name}:\n\tjmp *replacement_slots+{number * 8}(%rip)\n"
            f"first_{name}:\n\tmov ${number}, %r11d\n\tjmp replacement_resolve_common\n"
        )
    text.append("\t.data\n\t.globl replacement_slots\n\t.hidden replacement_slots\n\t.balign 8\nreplacement_slots:\n")
    text += [f"\t.quad first_{name}\n" for name in passed]
    text.append('\t.section .note.GNU-stack,"",@progbits\n')
    (out / "trampolines.S").write_text("".join(text))
    names = "".join(f'\t"{name}",\n' for name in passed)
    (out / "names.c").write_text(
        f'#include "replacement.h"\n\nconst char *const replacement_names[] = {{\n{names}}};\n'
    )
    exported = "".join(f"\t\t{name};\n" for name in policy)
    (out / "exports.map").write_text(f"{{\n\tglobal:\n{exported}\tlocal: *;\n}};\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
