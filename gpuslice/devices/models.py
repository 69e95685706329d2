"""Card models, compared by whole tokens: "A10" is not "A100", and "910B4" is not "910B4-1"."""

import re
from functools import lru_cache

_TOKEN = re.compile(r"[a-z0-9]+")


@lru_cache(maxsize=4096)
def _tokens(model: str) -> tuple[str, ...]:
    """Split a model into lower-case tokens; the vendor's name at the front carries nothing and is dropped."""
    tokens = tuple(_TOKEN.findall(model.lower()))
    start = 0
    while start < len(tokens) - 1 and tokens[start] == "nvidia":
        start += 1
    return tokens[start:]


@lru_cache(maxsize=4096)
def model_matches(wanted: str, model: str) -> bool:
    """Tell whether the tokens of ``wanted`` stand side by side among those of ``model``, whatever the case.

    An empty ``wanted`` matches nothing: it names no model.
    """
    needle, hay = _tokens(wanted), _tokens(model)
    if not needle:
        return False
    return any(hay[start : start + len(needle)] == needle for start in range(len(hay) - len(needle) + 1))
