"""Request paths and verbs: `/apis/apps/v1/namespaces/x/deployments/web/scale` as names."""

from dataclasses import dataclass
from urllib.parse import unquote


@dataclass(frozen=True, slots=True)
class Target:
    """What a resource path points at; empty strings where the path says nothing."""

    group: str
    version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    watch: bool = False


def parse_target(path: str) -> Target | None:
    """Read a resource path.

    Returns:
        None for every other path (discovery, health, unknown).
    """
    parts = [unquote(part) for part in path.split("/") if part]
    if len(parts) >= 3 and parts[0] == "api" and parts[1] == "v1":
        return _parse_rest("", "v1", parts[2:])
    if len(parts) >= 4 and parts[0] == "apis":
        return _parse_rest(parts[1], parts[2], parts[3:])
    return None


def _parse_rest(group: str, version: str, parts: list[str]) -> Target | None:
    watch = parts[0] == "watch"
    if watch:
        parts = parts[1:]
    namespace = ""
    # /namespaces/NAME/status and /finalize are subresources of the namespace itself, any other third part is a type.
    if len(parts) >= 3 and parts[0] == "namespaces" and not (group == "" and parts[2] in {"status", "finalize"}):
        namespace, parts = parts[1], parts[2:]
    if not 1 <= len(parts) <= 3:
        return None
    plural, name, subresource = [*parts, "", ""][:3]
    return Target(group, version, plural, namespace, name, subresource, watch)
