"""Plain numbers in the place of those that change from step to step."""

from __future__ import annotations

import operator
from copy import copy
from typing import Any

from lightning_sink.engine.numbers.value import is_value


def released(value: Any) -> Any:
    """Returns a value with the plain number in every place of a stand-in, lists and dictionaries changed in place."""
    if is_value(value):
        return value.freeze()
    if type(value) is tuple:
        items = [released(item) for item in value]
        return value if all(map(operator.is_, items, value)) else tuple(items)
    if type(value) in (list, dict):
        for key, item in list(value.items() if type(value) is dict else enumerate(value)):
            plain = released(item)
            if plain is not item:
                value[key] = plain
    return value


def as_they_are(value: Any) -> Any:
    """Returns a value with the plain number in every place of a stand-in, and tells nobody.

    A tuple, list or dictionary that holds one is copied.
    """
    if is_value(value):
        return value.value
    if not isinstance(value, (tuple, list, dict)):
        return value
    held = [*(value.values() if isinstance(value, dict) else value)]
    items = [as_they_are(item) for item in held]
    if all(map(operator.is_, items, held)):
        return value
    if isinstance(value, tuple):
        return value._make(items) if hasattr(value, "_make") else type(value)(items)
    found = copy(value)
    for key, item in zip(value if isinstance(value, dict) else range(len(value)), items, strict=True):
        found[key] = item
    return found


def frozen(value: Any) -> Any:
    """Returns the plain number for a stand-in; the recording then stands for steps with the same one."""
    return value.freeze() if is_value(value) else value


def ended(value: Any) -> Any:
    """Returns the plain number for a stand-in of a step that has ended: it is nothing else any more."""
    return value.value if is_value(value) and value.uses.closed else value
