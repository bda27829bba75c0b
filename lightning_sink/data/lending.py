"""How many batches may be held at once that lie in memory of the loader's, which it may fill again.

`reuse.py` finds out whether it does. What is sent to a device, or gathered, is a copy already.
"""

from __future__ import annotations

import sys
from typing import Any

from lightning_sink.data.graphs import is_made_anew
from lightning_sink.data.reuse import Reuse, copied
from lightning_sink.data.streams import Arriving
from lightning_sink.data.supply import Supply

_OF_STACKED = 3
"""Batches to look at of a loader that stacks samples: only code of theirs (`__torch_function__`) fills memory again."""

_SMALL = 1 << 16
"""Bytes of a batch that is small: it pays to look at further ones, so that more may be held.

What a row costs the trainer's thread is a third of an MLP's step at a batch of 32 with a schedule, in rows of 16.
"""


class Lending:
    """Says how far the batches of a source may be fetched before they are trained.

    Attributes:
        are_copies: Whether they are gathered of a dataset, each into memory of its own.
    """

    def __init__(self, supply: Supply) -> None:
        self._supply, self._fetches, self._options = supply, supply.fetches, supply.options
        self.restart()

    def restart(self) -> None:
        """Another source has begun, or another way of it."""
        self._as_of = self._fetches.source.changes
        self._reuse = self._looking(many=False)
        # Looks at further ones, while those before them are trained in rows; None where it has, or need not, or where
        # it would wait for a device.
        looks = self._options.buffer_size is None and self._fetches.device is None
        self._further = self._looking(many=True) if looks else None
        self._many = False  # whether as many may be held
        self._has_begun = self._sent = False  # whether the last batch was sent
        self._ask_source()
        self._allow()

    @property
    def most(self) -> int:
        """How many batches in a row may be held, as far as is known; 0 where each has to be trained first."""
        reuse = self._reuse
        if self._sent or reuse.found or self.are_copies or (reuse.ended and self._are_stacked):
            return sys.maxsize
        return reuse.seen - self._fetches.source.reads_further if reuse.ended else 0

    @property
    def gives_own(self) -> bool:
        """Whether the last batch is nobody else's, as far as is known."""
        return self._sent or self.are_copies or self._are_own

    @property
    def in_a_row(self) -> int:
        """How many may be fetched in one go."""
        many = self.are_copies or self._many
        return self._options.in_a_row(self._fetches.device is not None, many)

    def trained(self) -> None:
        """The last batch has been trained, and the next one is about to be fetched."""
        self._reuse.trained()

    def look_at(self, batch: Any, size: int, sent: bool) -> None:
        """Looks at a batch that is about to be trained: may the next one be fetched before it has been?

        `size`: its bytes.
        """
        self._see_changes()
        if not self._has_begun:
            self._has_begun = True
            self._ask_source()  # it may know only now what its loaders are
            if self._are_stacked:
                self._reuse, self._further = Reuse(_OF_STACKED, self._options.buffer_bytes), None
        reuse, self._sent = self._reuse, sent
        if self._are_graphs:  # those that are fetched ahead, and skipped, are like the last one that is taken
            self._are_own = is_made_anew(batch)
        if self._further is not None and not (sent or self.are_copies):
            self._look_further(self._further, batch, size)
        if not (sent or reuse.ended or self.are_copies):
            reuse.note(batch)
            if reuse.found and not self._supply.stays_in_step:
                self._supply.stay_in_step("the loader fills the memory of a batch again for a later one")
            if reuse.found and reuse.written:  # by the step, perhaps: a copy would keep that from the loader
                self._supply.look_ahead_no_more()
        self._allow()

    def keep(self, item: Any, size: int) -> tuple[Any, bool]:
        """Returns what is kept of a batch until its turn, and whether another one may be fetched before that.

        `size`: its bytes.
        """
        self._see_changes()
        self._sent = type(item) is Arriving
        if self._sent:
            return item.take(), True
        if self._further is not None and not (self._reuse.found or self._supply.pace.ahead):
            self._look_further(self._further, item, size)
        if not self._reuse.found:
            return item, True
        own = copied(item)
        if own is None:
            self._supply.look_ahead_no_more()
        return (item, False) if own is None else (own, True)

    def _see_changes(self) -> None:
        if self._as_of != self._fetches.source.changes:
            self.restart()

    def _look_further(self, further: Reuse, batch: Any, size: int) -> None:
        further.note(batch)
        if further.ended or size > _SMALL:
            self._further = None
            # What was found may be a step's doing, which has not been run yet: then no more are held than before.
            if further.ended and not further.found:
                self._reuse, self._many = further, True

    def _looking(self, many: bool) -> Reuse:
        # As many lie in the queue, or in two rows of steps; where data has no length, one more has been read.
        batches = 2 * self._options.in_a_row(sent=False, many=many) + 1
        return Reuse(batches, self._options.buffer_bytes)

    def _ask_source(self) -> None:
        source, is_prepared = self._fetches.source, self._fetches.prepares
        self.are_copies = source.gives_copies and not is_prepared
        self._are_stacked = source.stacks and not is_prepared
        self._are_own = source.makes_own and not is_prepared
        self._are_graphs: bool = source.makes_graphs and not is_prepared

    def _allow(self) -> None:
        most = self.most
        self._supply.sure = most > 0
        self._supply.producer.most = max(1, min(self._options.batches, most - 1))  # one of them is being trained
