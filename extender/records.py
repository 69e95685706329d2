"""What a binding writes into the pod: our own record, and HAMi's for its tools and plugins."""

from collections.abc import Sequence

from gpuslice.devices import annotations as keys
from gpuslice.devices.allocation import PodAllocation
from gpuslice.devices.annotations import encode_allocation, encode_hami_pod
from gpuslice.devices.families import Families


def binding_annotations(
    allocation: PodAllocation, containers: Sequence[str], families: Families, *, wall_seconds: int
) -> dict[str, str]:
    """Annotations of a decision.

    Args:
        allocation: The decision.
        containers: Names of all containers of the pod, init containers first: HAMi's grammar is positional.
        families: To name each family in HAMi's words and keys.
        wall_seconds: Time of the decision, seconds since 1970.
    """
    words = {family.name: family.word for family in families}
    found = {
        keys.ALLOCATION: encode_allocation(allocation),
        keys.HAMI_NODE: allocation.node,
        keys.HAMI_TIME: str(wall_seconds),
        keys.HAMI_BIND_PHASE: "allocating",
        keys.HAMI_BIND_TIME: str(wall_seconds),
    }
    for family in {share.family for _, share in allocation.shares()}:
        mine = PodAllocation(
            allocation.node,
            {
                name: tuple(share for share in shares if share.family == family)
                for name, shares in allocation.containers.items()
            },
        )
        text = encode_hami_pod(mine, containers, words)
        form = families.by_name[family].pod
        for key in (form.allocated, form.to_allocate):
            if key is not None:
                found[key] = text
    return found
