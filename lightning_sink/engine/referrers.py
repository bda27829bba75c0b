"""Who holds something, by way of the garbage collector."""

from __future__ import annotations

import gc
from typing import Any


def referrers(*held: Any) -> list[Any]:
    """Returns the objects that hold any of some others.

    A `gc.freeze()` hides objects from that: functions whose globals change would not be compared, and numbers that a
    step keeps would stay stand-ins. It is taken back.
    """
    if gc.get_freeze_count():
        gc.unfreeze()
    return [holder for holder in gc.get_referrers(*held) if holder is not held]
