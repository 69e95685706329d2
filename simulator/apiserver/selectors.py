"""Label and field selectors: the query strings, and what they match.

Grammar and messages: k8s.io/apimachinery/pkg/labels and /pkg/fields. A selector without requirements matches all.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.apiserver.failures import Object, StatusError, bad_request

_KEY = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_SET = re.compile(rf"^\s*({_KEY})\s+(in|notin)\s*\(([^()]*)\)\s*$")
_COMPARE = re.compile(rf"^\s*({_KEY})\s*(==|=|!=)\s*([-A-Za-z0-9_.]*)\s*$")
_ORDER = re.compile(rf"^\s*({_KEY})\s*([<>])\s*(-?\d+)\s*$")
_EXISTS = re.compile(rf"^\s*(!?)\s*({_KEY})\s*$")


@dataclass(frozen=True, slots=True)
class LabelRequirement:
    """One term; `operator` is one of In, NotIn, Exists, DoesNotExist, Gt, Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Tell whether a label set fulfils this term; NotIn also holds where the key is absent."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
        if value is None or not value.lstrip("-").isdigit():
            return False
        return int(value) > int(self.values[0]) if self.operator == "Gt" else int(value) < int(self.values[0])


@dataclass(frozen=True, slots=True)
class FieldRequirement:
    """`field=value` or `field!=value`."""

    field: str
    equal: bool
    value: str

    def matches(self, fields: Mapping[str, str]) -> bool:
        """Compare with an object's selectable fields; an unset field is the empty string."""
        return (fields.get(self.field, "") == self.value) is self.equal


@dataclass(frozen=True, slots=True)
class Selector:
    """Both selectors of one request."""

    labels: tuple[LabelRequirement, ...] = ()
    fields: tuple[FieldRequirement, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.labels or self.fields)

    def matches(self, labels: Mapping[str, str], fields: Mapping[str, str]) -> bool:
        """Tell whether an object with these labels and selectable fields is selected."""
        return all(term.matches(labels) for term in self.labels) and all(term.matches(fields) for term in self.fields)

    def pinned(self, field: str) -> str | None:
        """Return the only value of a field that this selector can match, if it pins one."""
        for term in self.fields:
            if term.field == field and term.equal:
                return term.value
        return None


EVERYTHING = Selector()


def _split_terms(text: str) -> list[str]:
    """Split at commas outside parentheses."""
    return re.split(r",(?![^()]*\))", text)


def parse_labels(text: str) -> tuple[LabelRequirement, ...]:
    """Read a `labelSelector` query value.

    Raises:
        StatusError: 400 when a term is not understood.
    """
    if not text.strip():
        return ()
    return tuple(_label_term(term) for term in _split_terms(text))


def _label_term(term: str) -> LabelRequirement:
    if found := _SET.match(term):
        values = tuple(value.strip() for value in found[3].split(","))
        return LabelRequirement(found[1], "In" if found[2] == "in" else "NotIn", values)
    if found := _COMPARE.match(term):
        return LabelRequirement(found[1], "NotIn" if found[2] == "!=" else "In", (found[3],))
    if found := _ORDER.match(term):
        return LabelRequirement(found[1], "Gt" if found[2] == ">" else "Lt", (found[3],))
    if found := _EXISTS.match(term):
        return LabelRequirement(found[2], "DoesNotExist" if found[1] else "Exists")
    raise bad_request(f"unable to parse requirement: {term.strip()!r} is not a label selector term")


def parse_fields(text: str, known: Sequence[str]) -> tuple[FieldRequirement, ...]:
    """Read a `fieldSelector` query value.

    Args:
        text: Comma-separated `field=value`, `field==value`, `field!=value`; a backslash escapes `,`, `=` and itself.
        known: The fields by which this type can be selected.

    Raises:
        StatusError: 400 for a malformed term or a field that is not selectable.
    """
    terms = []
    for term in re.split(r"(?<!\\),", text):
        if not term:
            continue
        found = re.match(r"^((?:[^=!\\]|\\.)+?)(!=|==|=)(.*)$", term)
        if not found:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{term}'")
        if found[1] not in known:
            raise StatusError(400, "BadRequest", f"field label not supported: {found[1]}")
        value = re.sub(r"\\(.)", r"\1", found[3])
        terms.append(FieldRequirement(found[1], found[2] != "!=", value))
    return tuple(terms)


_ALWAYS = ("metadata.name", "metadata.namespace")

SELECTABLE: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "pods"): (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ),
    ("", "nodes"): ("spec.unschedulable",),
    ("", "namespaces"): ("status.phase",),
    ("", "secrets"): ("type",),
    ("", "services"): ("spec.clusterIP", "spec.type"),
    ("", "replicationcontrollers"): ("status.replicas",),
    ("apps", "replicasets"): ("status.replicas",),
    ("batch", "jobs"): ("status.successful",),
    ("", "events"): (
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
}

_BOOLEAN_FIELDS = {"spec.unschedulable", "spec.hostNetwork"}


def selectable_fields(storage: tuple[str, str]) -> tuple[str, ...]:
    """Name the fields by which objects of a type can be selected."""
    return _ALWAYS + SELECTABLE.get(storage, ())


def field_values(storage: tuple[str, str], obj: Object) -> dict[str, str]:
    """Read an object's selectable fields as the strings that selectors compare."""
    meta = obj["metadata"]
    values = {"metadata.name": meta["name"], "metadata.namespace": meta.get("namespace", "")}
    for field in SELECTABLE.get(storage, ()):
        values[field] = _field_text(obj, field)
    return values


def _field_text(obj: Object, field: str) -> str:
    found: Any = obj
    for part in field.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    if field == "source" and isinstance(found, dict):
        found = found.get("component")
    if field in _BOOLEAN_FIELDS:
        return "true" if found else "false"
    return "" if found is None else str(found)


def from_object(selector: Object | None) -> tuple[LabelRequirement, ...] | None:
    """Read a LabelSelector object (matchLabels, matchExpressions); None selects nothing, {} everything."""
    if selector is None:
        return None
    terms = [LabelRequirement(key, "In", (value,)) for key, value in (selector.get("matchLabels") or {}).items()]
    rows = selector.get("matchExpressions") or []
    terms += [LabelRequirement(row["key"], row["operator"], tuple(row.get("values") or ())) for row in rows]
    return tuple(terms)


def labels_match(selector: Object | None, labels: Mapping[str, str]) -> bool:
    """Match a LabelSelector object against labels; None matches nothing."""
    terms = from_object(selector)
    return terms is not None and all(term.matches(labels) for term in terms)
