"""Names, labels, annotations: what may stand in an object's metadata.

Rules and sentences: k8s.io/apimachinery/pkg/util/validation and pkg/api/validation.
"""

import re

from simulator.apiserver.failures import FieldError, Object

Storage = tuple[str, str]

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")

BAD_SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
BAD_LABEL = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
BAD_LABEL_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
BAD_QUALIFIED_NAME = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)

BAD_KEY = (
    BAD_QUALIFIED_NAME.replace("name part must", "a qualified name must")
    + " with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
)

ANNOTATION_LIMIT_BYTES = 256 * 1024

# Names of these types may hold anything that a path can (RBAC: `system:node`).
_PATH_NAMES = frozenset({"rbac.authorization.k8s.io"})
_LABEL_NAMES = frozenset({("", "namespaces"), ("", "services")})


def validate_metadata(storage: Storage, meta: Object) -> list[FieldError]:
    """Check name, labels and annotations."""
    problems = []
    name = meta.get("name", "")
    if not name:
        problems.append(FieldError("Required", "metadata.name", None, "name or generateName is required"))
    elif storage[0] in _PATH_NAMES:
        if "/" in name or "%" in name or name in {".", ".."}:
            problems.append(FieldError("Invalid", "metadata.name", name, "may not contain '/' or '%'"))
    elif storage in _LABEL_NAMES and (not _LABEL.fullmatch(name) or len(name) > 63):
        problems.append(FieldError("Invalid", "metadata.name", name, BAD_LABEL))
    elif not _SUBDOMAIN.fullmatch(name) or len(name) > 253:
        problems.append(FieldError("Invalid", "metadata.name", name, BAD_SUBDOMAIN))
    for field in ("labels", "annotations"):
        problems += _validate_keys(meta.get(field) or {}, f"metadata.{field}")
    for value in (meta.get("labels") or {}).values():
        if not isinstance(value, str) or len(value) > 63 or not _LABEL_VALUE.fullmatch(value):
            problems.append(FieldError("Invalid", "metadata.labels", value, BAD_LABEL_VALUE))
    size = sum(len(key) + len(str(value)) for key, value in (meta.get("annotations") or {}).items())
    if size > ANNOTATION_LIMIT_BYTES:
        problems.append(
            FieldError("TooLong", "metadata.annotations", "", f"may not be more than {ANNOTATION_LIMIT_BYTES} bytes")
        )
    return problems


def _validate_keys(entries: Object, field: str) -> list[FieldError]:
    problems = []
    for key in entries:
        prefix, slash, name = key.rpartition("/")
        if key.count("/") > 1:
            problems.append(FieldError("Invalid", field, key, BAD_KEY))
        elif slash and not _SUBDOMAIN.fullmatch(prefix):
            problems.append(FieldError("Invalid", field, key, "prefix part " + BAD_SUBDOMAIN))
        elif not _QUALIFIED.fullmatch(name) or len(name) > 63:
            problems.append(FieldError("Invalid", field, key, BAD_QUALIFIED_NAME))
    return problems
