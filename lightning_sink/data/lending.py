"""How many batches may be held at once that lie in memory of the loader's, which it may fill again.

`reuse.py` finds out whether it does. What is sent to a device, or gathered, is a copy already.
"""

from __future__ import annotations

from typing import Any

from lightning_sink.data.reuse import Reuse, copied
from lightning_sink.data.streams import Arriving
from lightning_sink.data.supply import Supply

_ENDLESS = 1 << 62

_OF_STACKED = 3
"""Batches to look at of a loader that stacks samples: only code of theirs (`__torch_function__`) fills memory again."""

_LONG, _SMALL = 1 << 16, 1 << 16
"""How long a training is in which it pays to look at further batches, so that more may be held; and how small they are.

To look at 129 takes 0.3 to 0.4 s. An MLP's step takes 15 us for 21 from then on at a batch of 8, and at 32 it takes 41
for 52 with one core, with two 27 as before: a training that is so long has lost as much by then, and is not much longer
for it where there is nothing to be had.
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
        """Another source has begun."""
        self._reuse, self._looks_further = self._looking(), False
        self._before = self._fetches.telemetry.batches_consumed
        self._has_begun = self._sent = False  # whether the last batch was sent
        self._ask_source()
        self._allow()

    @property
    def most(self) -> int:
        """How many batches in a row may be held, as far as is known; 0 where each has to be trained first."""
        reuse = self._reuse
        if self._sent or reuse.found or self.are_copies or (reuse.ended and self._are_stacked):
            return _ENDLESS
        return reuse.seen - self._fetches.source.reads_further if reuse.ended else 0

    @property
    def in_a_row(self) -> int:
        """How many may be fetched in one go."""
        many = self.are_copies or self._looks_further
        return self._options.in_a_row(self._fetches.device is not None, many)

    def weigh(self, size: int) -> None:
        """Looks at further batches, which are trained one by one meanwhile, where that is worth it.

        `size`: bytes of one.
        """
        if self._looks_further or self.most in (0, _ENDLESS) or self._options.buffer_size is not None:
            return
        trained = self._fetches.telemetry.batches_consumed - self._before
        if trained >= _LONG and size <= _SMALL and not self._supply.pace.ahead:
            self._reuse, self._looks_further = self._looking(many=True), True

    def trained(self) -> None:
        """The last batch has been trained, and the next one is about to be fetched."""
        self._reuse.trained()

    def look_at(self, batch: Any, sent: bool) -> None:
        """Looks at a batch that is about to be trained: may the next one be fetched before it has been?"""
        if not self._has_begun:
            self._has_begun = True
            self._ask_source()  # it may know only now what its loaders are
            if self._are_stacked:
                self._reuse = Reuse(_OF_STACKED, self._options.buffer_bytes)
        reuse, self._sent = self._reuse, sent
        if not (sent or reuse.ended or self.are_copies):
            reuse.note(batch)
            if reuse.found and not self._supply.stays_in_step:
                self._supply.stay_in_step("the loader fills the memory of a batch again for a later one")
            if reuse.found and reuse.written:  # by the step, perhaps: a copy would keep that from the loader
                self._supply.look_ahead_no_more()
        self._allow()

    def keep(self, item: Any) -> tuple[Any, bool]:
        """Returns what is kept of a batch until its turn, and whether another one may be fetched before that."""
        self._sent = type(item) is Arriving
        if self._sent:
            return item.take(), True
        if not self._reuse.found:
            return item, True
        own = copied(item)
        if own is None:
            self._supply.look_ahead_no_more()
        return (item, False) if own is None else (own, True)

    def _looking(self, many: bool = False) -> Reuse:
        # As many lie in the queue, or in two rows of steps; where data has no length, one more has been read.
        batches = 2 * self._options.in_a_row(sent=False, many=many) + 1
        return Reuse(batches, self._options.buffer_bytes)

    def _ask_source(self) -> None:
        source, is_prepared = self._fetches.source, self._fetches.prepares
        self.are_copies = source.gives_copies and not is_prepared
        self._are_stacked = source.stacks and not is_prepared

    def _allow(self) -> None:
        most = self.most
        self._supply.sure = most > 0
        self._supply.producer.most = max(1, min(self._options.batches, most - 1))  # one of them is being trained
