"""Defaults and ceilings per namespace, from a ConfigMap mounted as a file.

The webhook has no right to read the cluster; the kubelet updates the mounted file, and the webhook reads it again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated

import msgspec
import yaml

from gpuslice.devices.errors import BadConfiguration

EVERY_NAMESPACE = "*"
_Ceiling = Annotated[int, msgspec.Meta(ge=0)]
_Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]


class _Data(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", gc=False):
    """Base: an unknown key is an error."""


class Defaults(_Data, frozen=True, kw_only=True):
    """What a container gets that asks for cards of this family and leaves the rest open."""

    memory: int | str | None = None
    """Quantity for the family's memory resource, in its own unit."""
    cores: _Percent | None = None


class NamespacePolicy(_Data, frozen=True, kw_only=True):
    """Rules of one namespace."""

    defaults: dict[str, Defaults] = msgspec.field(default_factory=dict)
    """By family name or vendor."""
    allowed_models: tuple[str, ...] = ()
    """Card models that pods may use (whole tokens); empty means all."""
    max_cards_per_container: _Ceiling | None = None
    max_cards_per_pod: _Ceiling | None = None
    max_memory_mib: _Ceiling | None = None
    """Largest share of one card, MiB."""
    privileged: bool = False
    """Pods here may be privileged, use hostPID and mount devices (node agents)."""


_NO_RULES = NamespacePolicy()


@dataclass(frozen=True, slots=True)
class NamespacePolicies:
    """Rules by namespace; ``*`` speaks for every namespace that has none of its own."""

    by_name: Mapping[str, NamespacePolicy] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, namespace: str) -> NamespacePolicy:
        """Return the rules that hold in a namespace."""
        return self.by_name.get(namespace) or self.by_name.get(EVERY_NAMESPACE) or _NO_RULES


class _File(_Data, frozen=True, kw_only=True):
    version: int = 1
    namespaces: dict[str, NamespacePolicy]


def parse_namespace_policies(text: str, source: str) -> NamespacePolicies:
    """Read the YAML of the ConfigMap.

    Raises:
        BadConfiguration: Not YAML or an unknown key; the message names the place.
    """
    try:
        wire = msgspec.convert(yaml.safe_load(text), _File)
    except yaml.YAMLError as error:
        raise BadConfiguration(source, "YAML", str(error).replace("\n", " "), "correct the YAML") from error
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at ")
        raise BadConfiguration(
            source, place.strip("`") or "$", problem, "see docs/guide/webhook.md for the keys"
        ) from error
    return NamespacePolicies(MappingProxyType(wire.namespaces))
