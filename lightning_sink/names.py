"""The names in code: what it may ask globals and objects for."""

from __future__ import annotations

from functools import lru_cache
from types import CodeType


@lru_cache(maxsize=4096)
def names_in(code: CodeType) -> frozenset[str]:
    """Returns the names in some code and in what is defined in it: comprehensions, lambdas."""
    inner = (names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return frozenset(code.co_names).union(*inner)
