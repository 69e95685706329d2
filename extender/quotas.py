"""ResourceQuota for what the API server cannot count: GPU memory x cards and compute x cards of a namespace.

Keys are ``limits.<memory resource>`` and ``limits.<cores resource>``. Every quota object of the namespace applies to
the pods that its scopes name. What cannot be read counts as 0, so that a quota never lets more through than it says.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import structlog

from extender.quota_scopes import EVERY_POD, Scopes, ScopeSelector, scopes_of
from gpuslice.devices.allocation import PodAllocation
from gpuslice.devices.errors import BadQuantity
from gpuslice.devices.families import Families, Family
from gpuslice.devices.pods import Metadata
from gpuslice.devices.quantity import MAX_INT32, mebibytes, whole_number
from gpuslice.devices.requests import PodRequest, Role
from gpuslice.devices.traits import PLAIN, PodTraits
from gpuslice.placement.holding import uses_of

log = structlog.get_logger(__name__)

QUOTA = "the namespace's quota of device memory or compute does not allow it"
_MAX_QUOTA_MIB = MAX_INT32

Amount = tuple[int, int]
"""MiB x cards, percent x cards."""


class QuotaSpec(msgspec.Struct, frozen=True):
    """ResourceQuotaSpec, as far as we read it."""

    hard: dict[str, str | int | float] | None = None
    scopes: tuple[str, ...] | None = None
    scope_selector: ScopeSelector | None = msgspec.field(name="scopeSelector", default=None)


class ResourceQuota(msgspec.Struct, frozen=True):
    """v1.ResourceQuota."""

    metadata: Metadata = Metadata()
    spec: QuotaSpec = QuotaSpec()


@dataclass(frozen=True, slots=True)
class Cap:
    """One limit of one quota object; ``memory`` tells the kind."""

    key: str
    family: str
    memory: bool
    most: int


@dataclass(frozen=True, slots=True)
class QuotaFacts:
    """One quota object reduced to its caps on devices."""

    namespace: str
    name: str
    caps: tuple[Cap, ...]
    scopes: Scopes = EVERY_POD


@dataclass(frozen=True, slots=True)
class Claim:
    """What a pod takes, and what quotas tell it apart by."""

    amounts: Mapping[str, Amount]
    """By family."""
    traits: PodTraits = PLAIN


class Usage(Protocol):
    """Who holds how much."""

    def used_in_namespace(
        self, namespace: str, counts: Callable[[PodTraits], bool] | None = None
    ) -> Mapping[str, Amount]:
        """Amount by family, of the pods whose traits count."""


def quota_facts(quota: ResourceQuota, families: Families) -> QuotaFacts:
    """Reduce a quota."""
    hard = quota.spec.hard or {}
    owner = f"{quota.metadata.namespace}/{quota.metadata.name}"
    caps = [cap for family in families for cap in _caps_of(family, hard, owner)]
    scopes = scopes_of(quota.spec.scopes, quota.spec.scope_selector)
    return QuotaFacts(quota.metadata.namespace, quota.metadata.name, tuple(caps), scopes)


def _caps_of(family: Family, hard: Mapping[str, str | int | float], owner: str) -> Iterable[Cap]:
    for resource, memory in ((family.resources.memory, True), (family.resources.cores, False)):
        key = f"limits.{resource}"
        if resource is None or key not in hard:
            continue
        try:
            most = mebibytes(hard[key], maximum=_MAX_QUOTA_MIB) if memory else whole_number(hard[key])
        except BadQuantity as error:
            log.error("quota_unreadable", quota=owner, key=key, error=str(error))
            most = 0
        yield Cap(key, family.name, memory, most)


def most_of_request(request: PodRequest) -> dict[str, Amount]:
    """What a pod takes at least, by family: shares given in percent count once their card is known."""
    running: dict[str, Amount] = {}
    peak: dict[str, Amount] = {}
    for demand in request.containers:
        wanted = demand.request
        one = (wanted.memory_mib * wanted.cards, wanted.core_percent * wanted.cards)
        before = running.get(wanted.family, (0, 0))
        together = (before[0] + one[0], before[1] + one[1])
        if demand.role is not Role.INIT:
            running[wanted.family] = together
        highest = peak.get(wanted.family, (0, 0))
        peak[wanted.family] = (max(highest[0], together[0]), max(highest[1], together[1]))
    return peak


def of_allocation(allocation: PodAllocation, roles: tuple[tuple[str, Role], ...]) -> dict[str, Amount]:
    """What a decision takes exactly, by family."""
    found: dict[str, Amount] = {}
    for use in uses_of(allocation, roles, init_done=False):
        memory, cores = found.get(use.family, (0, 0))
        found[use.family] = (memory + use.memory_mib, cores + use.core_percent)
    return found


class Quotas:
    """All quotas on devices, by namespace."""

    def __init__(self, usage: Usage) -> None:
        self._usage = usage
        self._by_namespace: dict[str, dict[str, QuotaFacts]] = {}

    def put(self, facts: QuotaFacts) -> None:
        """Note a quota as it is now."""
        here = self._by_namespace.setdefault(facts.namespace, {})
        here[facts.name] = facts
        if not facts.caps:
            self.drop(facts)

    def drop(self, facts: QuotaFacts) -> None:
        """Forget a quota."""
        here = self._by_namespace.get(facts.namespace, {})
        here.pop(facts.name, None)
        if not here:
            self._by_namespace.pop(facts.namespace, None)

    def replace(self, all_facts: Iterable[QuotaFacts]) -> None:
        """Take a complete list."""
        self._by_namespace.clear()
        for facts in all_facts:
            self.put(facts)

    def apply_to(self, namespace: str) -> bool:
        """Whether any quota of a namespace is about devices."""
        return namespace in self._by_namespace

    def excess(
        self,
        namespace: str,
        wanted: Claim,
        held: Mapping[str, Amount] | None = None,
        promised: Sequence[Claim] = (),
    ) -> str:
        """Say which quota ``wanted`` would exceed, with the figures; "" when none.

        Args:
            namespace: Where the pod lives.
            wanted: What it takes.
            held: What of the usage on record is the pod's own already.
            promised: What other pods, which hold nothing yet, are to take before it.
        """
        for name, facts in sorted(self._by_namespace.get(namespace, {}).items()):
            if not facts.scopes.include(wanted.traits):
                continue
            used = self._usage.used_in_namespace(namespace, facts.scopes.include if facts.scopes else None)
            before = [claim.amounts for claim in promised if facts.scopes.include(claim.traits)]
            for cap in facts.caps:
                kind = 0 if cap.memory else 1
                asked = _part(wanted.amounts, cap.family, kind)
                others = _part(used, cap.family, kind) - _part(held or {}, cap.family, kind)
                others += sum(_part(amounts, cap.family, kind) for amounts in before)
                if asked and others + asked > cap.most:
                    unit = "MiB" if cap.memory else "percent"
                    figures = f"{cap.most} {unit}, {others} in use, the pod needs {asked}"
                    return f"quota {namespace}/{name}: {cap.key} is {figures}"
        return ""


def _part(amounts: Mapping[str, Amount], family: str, kind: int) -> int:
    return amounts.get(family, (0, 0))[kind]
