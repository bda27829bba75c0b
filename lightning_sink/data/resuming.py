"""What is known of a saved place when the data is there again: whether it can be gone on from, and how surely."""

from __future__ import annotations

from typing import Any

from lightning_sink.data.road import Road
from lightning_sink.data.samplers import is_repeatable, is_sequential


def look_at(saved: dict[str, Any], roads: list[Road]) -> tuple[int, str]:
    """Returns the batches to pass over, and what may be wrong with going on behind them.

    That is a text for the user, "" where the next batch is certainly the one that would have followed. `saved` is what
    `Place.saved` returned.
    """
    position, length = int(saved["position"]), length_of(roads)
    finds = [finds_its_place(road) for road in roads]
    if all(finds) or not position:
        return position, ""
    where = f"batch {position} of traversal {saved['traversal']}"
    if length is not None and position > length:
        return 0, (
            f"The place to go on from, {where}, lies behind the end of the data, which has {length} batches now: the"
            " traversal begins again."
        )
    same = saved.get("length") in (None, length)
    sequential = all(is_sequential(road.loader) for road in roads)
    repeatable = len(roads) == 1 and is_repeatable(roads[0].loader) and bool(saved.get("draws"))
    if same and not any(finds) and (sequential or repeatable):
        return position, ""
    names = ", ".join(f"`{road.name}`" for road in roads)
    return position, (
        f"The data goes on at {where}: as many batches of what {names} gives were passed over. Whether these are the"
        " ones that were trained before is not certain. The order of torch's own samplers is had again exactly, of one"
        " loader with the batches that it had; a `StatefulDataLoader` of torchdata keeps its own place."
    )


def length_of(roads: list[Road]) -> int | None:
    """Returns the batches of a traversal; None where that is unknown, and for several loaders."""
    try:
        return len(roads[0]) if len(roads) == 1 else None
    except (TypeError, NotImplementedError):
        return None


def finds_its_place(road: Road) -> bool:
    """Tells whether a loader keeps its own place."""
    return hasattr(road.loader, "load_state_dict")
