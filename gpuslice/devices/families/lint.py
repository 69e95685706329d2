"""Check a family file as its author would like to be told: every mistake at once, with place and remedy.

``gpuslice devices lint FILE…`` calls :func:`main`.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import TextIO

from gpuslice.devices.errors import BadConfiguration
from gpuslice.devices.families.family import ExtraAnnotation, Family, FamilyFile
from gpuslice.devices.families.loader import Families, load_builtin, parse_family_file

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_PART = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_DOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_RESOURCE = re.compile(rf"(?P<domain>{_DOMAIN})/{_PART}")
_ANNOTATION = re.compile(rf"({_DOMAIN}/)?{_PART}")
_ENVIRONMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TEXT_FIELDS = frozenset(
    {"node", "seconds", "nanoseconds", "count", "first_index", "first_cores", "first_units", "first_slices"}
)
_JSON_SOURCES = frozenset({"uuid", "memory", "cores", "index", "size", "size-id", "slices", "false"})
_TAKEN_DOMAINS = ("kubernetes.io", "k8s.io")


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing to correct."""

    source: str
    place: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        """Return the line that the author reads."""
        return f"{self.source}: {self.place}: {self.problem}; {self.remedy}"


def lint_text(text: str, source: str, known: Families | None = None) -> tuple[Mistake, ...]:
    """Return every mistake in one family file.

    Args:
        text: The YAML.
        source: File name, for the messages.
        known: Families that will run beside it; the built-in ones when None. A kind of the same name is replaced.
    """
    try:
        parsed = parse_family_file(text, source)
    except BadConfiguration as error:
        return (Mistake(source, error.field, error.problem, error.remedy),)
    others = load_builtin() if known is None else known
    return tuple(Mistake(source, place, problem, remedy) for place, problem, remedy in _check(parsed, others))


_Found = Iterator[tuple[str, str, str]]


def _check(file: FamilyFile, others: Families) -> _Found:
    if not file.kinds:
        yield "kinds", "is empty", "describe at least one kind of card"
    seen: dict[str, str] = {}
    names: set[str] = set()
    own = {kind.name for kind in file.kinds}
    for position, kind in enumerate(file.kinds):
        place = f"kinds[{position}] ({kind.name})"
        if kind.name in names:
            yield f"{place}.name", "is used twice in this file", "give each kind a name of its own"
        names.add(kind.name)
        if kind.vendor != file.vendor:
            yield (
                f"{place}.vendor",
                f"{kind.vendor!r} is not the file's {file.vendor!r}",
                "write the same vendor in both",
            )
        for name in kind.resources.names():
            other = others.by_resource.get(name)
            if other is not None and other.name not in own:
                yield (
                    f"{place}.resources",
                    f"{name} belongs to family {other.name}",
                    "use resource names of your vendor",
                )
            if seen.setdefault(name, kind.name) != kind.name:
                yield f"{place}.resources", f"{name} belongs to {seen[name]} in this file", "use a name of its own"
        for check in (_names, _annotations, _memory, _cores, _counts, _node, _pod):
            for where, problem, remedy in check(kind):
                yield f"{place}.{where}", problem, remedy


def _names(kind: Family) -> _Found:
    if not _NAME.fullmatch(kind.name):
        yield "name", f"{kind.name!r} is no name", "write lower-case letters, digits and -, such as acme-x1"
    if not kind.word or set(kind.word) & set(",:;"):
        yield "word", f"{kind.word!r} cannot stand in HAMi's grammar", "write a word without , : ;"
    for name in kind.resources.names():
        match = _RESOURCE.fullmatch(name)
        if match is None:
            yield "resources", f"{name!r} is no resource name", "write <vendor domain>/<name>, such as acme.com/xpu"
        elif match["domain"].endswith(_TAKEN_DOMAINS):
            yield "resources", f"{name!r} is in a domain of Kubernetes", "use your vendor's domain"
    for alias, meant in kind.resources.aliases.items():
        if meant not in kind.resources.names() or meant in kind.resources.aliases:
            yield "resources.aliases", f"{alias} means {meant}, which is not above", "name one of this kind's resources"


def _annotations(kind: Family) -> _Found:
    for key in sorted(kind.selection.keys()):
        if not _ANNOTATION.fullmatch(key):
            yield "selection", f"{key!r} is no annotation key", "write <domain>/<name>"
    for variable in kind.container_env:
        if not _ENVIRONMENT.fullmatch(variable.name):
            yield "containerEnv", f"{variable.name!r} is no variable name", "write letters, digits and _"
    for choice in kind.choices:
        if choice.default is not None and choice.default not in choice.values:
            yield "choices", f"default {choice.default!r} is not among the values", "choose one of the values"


def _memory(kind: Family) -> _Found:
    rule, resources = kind.memory, kind.resources
    if rule.unit_mib < 1:
        yield "memory.unitMib", f"{rule.unit_mib} is no unit", "write how many MiB a bare number counts, 1 or more"
    sizes = [size.mib for size in rule.sizes]
    if sizes != sorted(set(sizes)) or any(size < 1 for size in sizes):
        yield "memory.sizes", f"{sizes} do not rise", "list each size once, smallest first, 1 MiB or more"
    if rule.card_mib is not None and sizes and sizes[-1] > rule.card_mib:
        yield "memory.sizes", f"{sizes[-1]} MiB is more than the card's {rule.card_mib}", "correct sizes or cardMib"
    if rule.rounding == "up" and not sizes:
        yield "memory.rounding", "rounds up to nothing", "list sizes, or remove rounding"
    if sizes and rule.card_mib is None:
        yield "memory.cardMib", "is missing", "write a card's memory: requests above the largest size are whole cards"
    if sizes and resources.memory is None:
        yield "resources.memory", "is missing", "sizes need a resource by which a pod asks for memory"
    if not kind.shared and (resources.memory or resources.memory_percentage or resources.cores):
        yield "shared", "is false, but there are resources for a part of a card", "remove them, or set shared: true"
    if rule.exact_when and "=" not in rule.exact_when:
        yield "memory.exactWhen", f"{rule.exact_when!r} is no condition", "write annotation=value"


def _cores(kind: Family) -> _Found:
    rule = kind.cores
    if rule.units_per_card < 1 or rule.alone_units_per_card < 1:
        yield "cores", "a card has at least one unit of compute", "write 1 or more"
    if not 0 <= rule.default_percent <= 100:
        yield "cores.defaultPercent", f"{rule.default_percent} is no percentage", "write 0 to 100; 0 means no cap"
    if rule.follows_memory and kind.memory.card_mib is None:
        yield "cores.followsMemory", "needs the card's memory", "write memory.cardMib"
    if rule.written_as == "mask" and kind.resources.cores_alone is None:
        yield "cores.writtenAs", "a mask needs units that pods count", "write resources.coresAlone"


def _counts(kind: Family) -> _Found:
    rule = kind.counts
    if any(count < 1 for count in rule.allowed) or rule.maximum < 1 or rule.default < 0 or rule.round_up_to < 1:
        yield "counts", "a count is below its least value", "write whole numbers: 1 or more, default 0 or more"
    if rule.unit == "slices" and not all(size.slices for size in kind.memory.sizes):
        yield "counts.unit", "slices need sizes that say how many they are", "write slices in each of memory.sizes"
    if rule.unit == "slices" and not kind.memory.sizes:
        yield "counts.unit", "slices need sizes", "write memory.sizes with slices"


def _node(kind: Family) -> _Found:
    form = kind.node
    if form.grammar != "capacity" and not form.register:
        yield "node.register", "is missing", "name the node annotation in which the plugin lists its cards"
    if form.grammar in ("capacity", "drs"):
        fields = _fields(form.card_name)
        if fields is None or "index" not in fields or not fields <= {"node", "index"}:
            yield (
                "node.cardName",
                f"{form.card_name!r} does not tell cards apart",
                'write for example "{node}-acme-{index}"',
            )
    if form.cards_from == "cores" and kind.resources.cores is None:
        yield "node.cardsFrom", "cores, but the kind has no such resource", "write cardsFrom: count"
    if kind.topology == "group" and not (form.group_size or form.group_key):
        yield "topology", "groups of what?", "write node.groupSize, or node.groupKey with what a card tells"
    if form.group_size < 0:
        yield "node.groupSize", f"{form.group_size} is no number of cards", "write 2 or more, or leave it out"
    if form.slots_per_card < 1:
        yield "node.slotsPerCard", f"{form.slots_per_card} containers cannot share a card", "write 1 or more"


def _pod(kind: Family) -> _Found:
    for key in kind.pod.annotation_keys():
        if not _ANNOTATION.fullmatch(key):
            yield "pod", f"{key!r} is no annotation key", "write <domain>/<name>"
    for extra in kind.pod.extra:
        place = f"pod.extra ({extra.key})"
        if sum(form is not None for form in (extra.text, extra.json, extra.list)) != 1:
            yield place, "has no value, or several", "write one of text, json, list"
        yield from _extra(extra, place)
        if extra.when in ("by-count", "by-cores") and kind.resources.cores_alone is None:
            yield place, f"when: {extra.when} needs units that pods count", "write resources.coresAlone, or remove when"


def _extra(extra: ExtraAnnotation, place: str) -> _Found:
    if extra.text is not None:
        fields = _fields(extra.text)
        if fields is None or not fields <= _TEXT_FIELDS:
            yield place, f"text {extra.text!r} has unknown fields", f"use {', '.join(sorted(_TEXT_FIELDS))}"
    if extra.list is not None:
        fields = _fields(extra.list.item)
        if fields is None or not fields <= {"index", "unit"}:
            yield place, f"item {extra.list.item!r} has unknown fields", "use {index} or {unit}"
    for form in (extra.json, extra.json_exact):
        unknown = set() if form is None else set(form.fields.values()) - _JSON_SOURCES
        if unknown:
            yield place, f"unknown sources {', '.join(sorted(unknown))}", f"use {', '.join(sorted(_JSON_SOURCES))}"


def _fields(template: str) -> set[str] | None:
    """Return the fields of a format text, or None when it is broken."""
    try:
        return {name for _, name, _, _ in Formatter().parse(template) if name is not None}
    except ValueError:
        return None


def main(files: Sequence[str], output: TextIO | None = None) -> int:
    """Check files; prints every mistake, or a summary of each good file. Gives 0 when all are good, else 1."""
    output = output or sys.stdout
    bad = 0
    for name in files:
        try:
            text = Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            output.write(f"{name}: file: {error}; give the path of a readable UTF-8 file\n")
            bad += 1
            continue
        mistakes = lint_text(text, name)
        bad += bool(mistakes)
        output.writelines(f"{mistake}\n" for mistake in mistakes)
        if not mistakes:
            kinds = parse_family_file(text, name).kinds
            output.writelines(f"{name}: {kind.name}: ok ({', '.join(kind.resources.names())})\n" for kind in kinds)
    return 1 if bad else 0
