"""Pods that a quota holds back, and which of them to wake when something of the namespace's share is given back."""

from collections.abc import Mapping

from extender.dossier import Dossier
from extender.quotas import Amount, Claim, Quotas, Usage, most_of_request
from gpuslice.devices.traits import PodTraits
from gpuslice.placement.events import PodKey


class QuotaWaits:
    """Waiting pods by namespace; they are told apart from pods that wait for a card."""

    def __init__(self, quotas: Quotas, usage: Usage) -> None:
        self._quotas = quotas
        self._usage = usage
        self._waiting: dict[str, dict[str, Dossier]] = {}
        self._used: dict[str, dict[str, Amount]] = {}

    def add(self, dossier: Dossier) -> None:
        """A pod was refused because of a quota."""
        namespace = dossier.key.namespace
        self._waiting.setdefault(namespace, {})[dossier.key.uid] = dossier
        self._used[namespace] = dict(self._usage.used_in_namespace(namespace))

    def keys(self) -> list[PodKey]:
        """Return all pods that wait."""
        return [dossier.key for here in self._waiting.values() for dossier in here.values()]

    def discard(self, uid: str, namespace: str) -> None:
        """A pod is bound, gone, or no longer held back by a quota."""
        here = self._waiting.get(namespace)
        if here is not None and here.pop(uid, None) is not None and not here:
            del self._waiting[namespace]
            self._used.pop(namespace, None)

    def released(self) -> list[PodKey]:
        """Pods to wake after a change of the ledger: those that fit into what was given back, most urgent first."""
        found: list[PodKey] = []
        for namespace in list(self._waiting):
            used = dict(self._usage.used_in_namespace(namespace))
            if used != self._used[namespace]:
                self._used[namespace] = used
                found += self.allowed(namespace)
        return found

    def allowed(self, namespace: str) -> list[PodKey]:
        """Pods of a namespace that its quotas would let through now, as many as fit together."""
        promised: dict[PodTraits, Claim] = {}
        found: list[PodKey] = []
        for dossier in sorted(self._waiting.get(namespace, {}).values(), key=_urgency):
            wanted = Claim(most_of_request(dossier.request), dossier.traits)
            if not self._quotas.excess(namespace, wanted, promised=tuple(promised.values())):
                before = promised.get(dossier.traits, Claim({}))
                promised[dossier.traits] = Claim(_sum(before.amounts, wanted.amounts), dossier.traits)
                found.append(dossier.key)
        return found


def _sum(first: Mapping[str, Amount], second: Mapping[str, Amount]) -> dict[str, Amount]:
    none = (0, 0)
    return {
        family: (
            first.get(family, none)[0] + second.get(family, none)[0],
            first.get(family, none)[1] + second.get(family, none)[1],
        )
        for family in first.keys() | second.keys()
    }


def _urgency(dossier: Dossier) -> tuple[int, str, str]:
    return (-dossier.priority, dossier.created_at, dossier.key.uid)
