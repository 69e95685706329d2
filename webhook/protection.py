"""Annotations that only our daemons write: a decision that a user could write would be nobody's decision."""

from collections.abc import Mapping

from gpuslice.devices.families import Families

OWN_PREFIX = "gpuslice.io/"
HAMI_KEYS = frozenset(
    {
        "hami.io/vgpu-node",
        "hami.io/vgpu-time",
        "hami.io/vgpu-devices-allocated",
        "hami.io/vgpu-devices-to-allocate",
        "hami.io/vgpu-mig-allocations",
        "hami.io/bind-phase",
        "hami.io/bind-time",
    }
)


def protected_keys(families: Families) -> frozenset[str]:
    """Return the full keys (besides everything under ``gpuslice.io/``) that carry allocations.

    Keys without a domain (``predicate-time``) are left out: other software uses the same words, and nothing of ours
    believes them.
    """
    return HAMI_KEYS | {key for family in families for key in family.pod.annotation_keys() if "/" in key}


def touched_keys(new: Mapping[str, str], old: Mapping[str, str], protected: frozenset[str]) -> tuple[str, ...]:
    """Return the protected keys that were added, changed or removed, sorted."""
    if not new and not old:
        return ()
    return tuple(
        sorted(
            key
            for key in {*new, *old}
            if (key.startswith(OWN_PREFIX) or key in protected) and new.get(key) != old.get(key)
        )
    )


def explain(key: str) -> str:
    """Return the line that a person reads who wrote a protected key."""
    return f"annotation {key}: only the scheduler and the node daemon write it; remove it from your manifest"
