"""Which cards a pod accepts: models by whole words, UUIDs, sharing modes."""

import re
from collections.abc import Sequence
from functools import lru_cache

from gpuslice.devices.requests import CardSelection

_WORD = re.compile(r"[0-9a-z]+")


@lru_cache(maxsize=8192)
def model_accepted(selection: CardSelection, model: str) -> bool:
    """Tell whether the selection accepts a card model."""
    words = _words(model)
    if selection.use_types and not any(_names(wanted, words) for wanted in selection.use_types):
        return False
    return not any(_names(refused, words) for refused in selection.refuse_types)


def card_accepted(selection: CardSelection, uuid: str, model: str, mode: str) -> bool:
    """Tell whether the selection accepts a card."""
    return (
        model_accepted(selection, model)
        and (not selection.modes or mode in selection.modes)
        and (not selection.use_uuids or uuid in selection.use_uuids)
        and uuid not in selection.refuse_uuids
    )


@lru_cache(maxsize=4096)
def _words(text: str) -> tuple[str, ...]:
    return tuple(_WORD.findall(text.lower()))


def _names(wanted: str, words: Sequence[str]) -> bool:
    """Tell whether the wanted words stand in the model's name, next to each other and in order."""
    sought = _words(wanted)
    width = len(sought)
    return bool(sought) and any(tuple(words[at : at + width]) == sought for at in range(len(words) - width + 1))
