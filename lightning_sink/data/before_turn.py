"""Batches fetched before their turn, on the trainer's thread or taken from the queue's, while steps before them run.

`BeforeTurn` knows when that may be. What it gives counts as held by its owner (`Producer.hold`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from lightning_sink.data.fetches import Fetches
from lightning_sink.data.generators import watch_states
from lightning_sink.data.options import QueueOptions
from lightning_sink.data.run import Found, count_of
from lightning_sink.data.source import NotYet
from lightning_sink.data.supply import Supply
from lightning_sink.data.texts import LATE
from lightning_sink.errors import SinkWarning


class BeforeTurn:
    """Has batches fetched before their turn.

    Args:
        fetches: Makes a fetch.
        supply: Has batches fetched otherwise, and knows what fetches do.
        options: Whether a fetch may be waited for.
    """

    def __init__(self, fetches: Fetches, supply: Supply, options: QueueOptions) -> None:
        self._fetches, self._supply, self._producer = fetches, supply, supply.producer
        self._on_thread = options.timeout is not None

    def may(self) -> bool:
        """Tells whether the next batch can be had before its turn, and whatever the steps before it do."""
        supply, source = self._supply, self._fetches.source
        if not supply.looks_ahead:
            return False
        if supply.is_from_ahead():
            return self._producer.is_next_good
        return (source.draws_nothing or supply.is_quiet) and not source.restarts_midway

    @property
    def begins_here(self) -> bool:
        """Whether the next batch begins a traversal, on this thread, of data that is known to bear steps beside that.

        Batches that are gathered are copies, in whose memory nothing is written anew, and no process is started for
        them, which would have a copy of everything but the thread that steps run on.
        """
        source = self._fetches.source
        return not self._supply.is_from_ahead() and source.draws_nothing and source.begin_due

    def begin(self) -> Found:
        """Returns a traversal's first batch, whose turn it is."""
        found = self._supply.next()
        self._producer.hold(1, found[2])
        return found

    @contextmanager
    def row(self, most: int) -> Iterator[Iterator[Found]]:
        """Gives what gives the next batches, as long as they are to be had so.

        A fetch that draws all the same is noticed, and warned of.

        Args:
            most: How many at most.
        """
        if self._supply.is_from_ahead():
            yield iter(self._from_ahead, None)  # on the thread, a draw waits for its turn
        elif self._fetches.source.draws_nothing:
            yield self._in_row(most)
        else:
            has_drawn = watch_states()
            yield self._in_row(most)
            if has_drawn():
                self._supply.has_drawn()
                warnings.warn(LATE, SinkWarning, stacklevel=2)

    def _from_ahead(self) -> Found | None:
        if not self._producer.is_next_good:
            return None
        self._producer.hold(1, 0)  # before there is room for the thread to fetch another one
        try:
            found = self._supply.from_ahead()
        except BaseException:
            self._producer.hold(-1, 0)
            raise
        self._producer.hold(0, found[2])
        return found

    def _in_row(self, most: int) -> Iterator[Found]:
        """Fetches here, or on the thread if there is a timeout."""
        return iter(self._on_demand, None) if self._on_thread else self._in_step(most)

    def _in_step(self, most: int) -> Iterator[Found]:
        producer, founds = self._producer, self._fetches.row(most)
        while True:
            producer.wanted -= 1
            found = next(founds, None)
            if found is None:
                producer.wanted += 1
                return
            count = count_of(found)
            producer.wanted -= count - 1
            producer.hold(count, found[2])
            yield found

    def _on_demand(self) -> Found | None:
        if self._fetches.source.begin_due:
            return None
        try:
            found = self._supply.demand(in_turn=False)
        except NotYet:  # data without a length: its end is known when it is reached
            return None
        self._producer.hold(1, found[2])
        return found
