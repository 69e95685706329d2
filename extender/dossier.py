"""What is remembered of a pod between /filter and /bind."""

from collections import OrderedDict

from extender.facts import cpu_milli_of, group_of, pod_key, roles_of
from gpuslice.devices.pods import Pod
from gpuslice.devices.requests import PodRequest, Role
from gpuslice.devices.traits import PodTraits, traits_of
from gpuslice.devices.value import Value
from gpuslice.placement.decide import Asker
from gpuslice.placement.events import PodKey


class Dossier(Value, frozen=True):
    """One pod on its way: who it is, and what it asks for."""

    key: PodKey
    request: PodRequest
    asker: Asker
    roles: tuple[tuple[str, Role], ...]
    pod: Pod
    priority: int
    created_at: str
    traits: PodTraits
    preempts: bool
    """It may evict others (preemptionPolicy is not Never)."""


def open_dossier(pod: Pod, request: PodRequest) -> Dossier:
    """Take down what matters of a pod."""
    return Dossier(
        key=pod_key(pod),
        request=request,
        asker=Asker(pod.metadata.uid, cpu_milli_of(pod), group_of(pod)),
        roles=roles_of(pod),
        pod=pod,
        priority=pod.spec.priority or 0,
        created_at=pod.metadata.creation_timestamp or "",
        traits=traits_of(pod),
        preempts=pod.spec.preemption_policy != "Never",
    )


class Dossiers:
    """The most recent dossiers by pod UID."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._by_uid: OrderedDict[str, Dossier] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_uid)

    def get(self, uid: str) -> Dossier | None:
        """Find a pod."""
        return self._by_uid.get(uid)

    def put(self, dossier: Dossier) -> None:
        """Keep a pod as the most recent one, and forget the oldest beyond the capacity."""
        self._by_uid[dossier.key.uid] = dossier
        self._by_uid.move_to_end(dossier.key.uid)
        while len(self._by_uid) > self._capacity:
            self._by_uid.popitem(last=False)

    def drop(self, uid: str) -> None:
        """Forget a pod: it is bound or gone."""
        self._by_uid.pop(uid, None)
