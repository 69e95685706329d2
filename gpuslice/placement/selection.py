"""Which cards a pod accepts: models by whole words, UUIDs, sharing modes."""

from functools import lru_cache

from gpuslice.devices.models import model_matches
from gpuslice.devices.requests import CardSelection


@lru_cache(maxsize=8192)
def model_accepted(selection: CardSelection, model: str) -> bool:
    """Tell whether the selection accepts a card model."""
    if selection.use_types and not any(model_matches(wanted, model) for wanted in selection.use_types):
        return False
    return not any(model_matches(refused, model) for refused in selection.refuse_types)


def card_accepted(selection: CardSelection, uuid: str, model: str, mode: str) -> bool:
    """Tell whether the selection accepts a card."""
    return (
        model_accepted(selection, model)
        and (not selection.modes or mode in selection.modes)
        and (not selection.use_uuids or uuid in selection.use_uuids)
        and uuid not in selection.refuse_uuids
    )
