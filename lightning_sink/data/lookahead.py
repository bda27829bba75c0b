"""Batches fetched before their turn, on the trainer's thread or taken from the queue's, while steps before them run.

`LookAhead` knows when that may be, keeps them, packs and sends those that go to a device, and keeps an error of theirs
until its turn. What is fetched so counts as held (`Producer.hold`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

from lightning_sink.data.gathered import Gathered
from lightning_sink.data.generators import watch_states
from lightning_sink.data.lending import Lending
from lightning_sink.data.listed_texts import Looked
from lightning_sink.data.load import Load
from lightning_sink.data.run import Early, Found, Part, count_of, notes_of
from lightning_sink.data.streams import Arriving
from lightning_sink.data.supply import Supply
from lightning_sink.data.texts import LATE
from lightning_sink.data.traversals import NotYet
from lightning_sink.errors import warn_at

_COPY = 32 << 20
"""Bytes that are sent to a device in one go: so many are pinned before it is known how many batches there will be. A
row is at most what one go brings."""

_SECONDS = 0.05
"""What batches that are looked at in one go may take to fetch: Ctrl-C takes effect between two goes."""


class LookAhead:
    """Has batches fetched before their turn.

    Attributes:
        size: Bytes of the batch that was fetched last: those behind it are reckoned as large.
    """

    def __init__(self, supply: Supply, lending: Lending, looked: Looked) -> None:
        fetches, options = supply.fetches, supply.options
        self._supply, self._lending, self._fetches, self._producer = supply, lending, fetches, supply.producer
        self._device, self._telemetry = fetches.device, fetches.telemetry
        self._room = options.buffer_bytes
        self._looked = looked
        self._early = Early(lambda count, size: self._producer.hold(-count, -size), looked)
        self._filling: Load | None = None  # what batches are packed into at present
        self._one_copy = sys.maxsize  # how many are sent at once
        self._failure: BaseException | None = None
        self.size = 0

    def __len__(self) -> int:
        return len(self._early)

    def failure(self) -> BaseException | None:
        """Returns what the batch raised whose turn it is now, once."""
        error, self._failure = self._failure, None
        return error

    def clear(self) -> None:
        """Forgets all."""
        self._failure = None
        self._early.clear()

    def take(self, count: int) -> tuple[Any, list[Any]]:
        """Forgets the first batches, which are alike; returns the last of them, and the notes of the last two."""
        return self._early.take(count)

    def part(self, most: int, behind: int) -> Part | None:
        """Returns at most so many batches that are alike, behind the first `behind` ones; None where there are none."""
        most = min(most, self._lending.in_a_row, self._lending.most - behind)
        missing = behind + most - len(self._early)
        if missing > 0 and self._failure is None:
            self._look_further(missing, due=behind == len(self._early))
        return self._early.part(behind, most)

    def _look_further(self, batches: int, due: bool) -> None:
        began, held, batches = time.perf_counter(), len(self._early), min(batches, self._one_copy)
        supply, source = self._supply, self._fetches.source
        if supply.looks_ahead:
            if supply.is_from_ahead():  # on the thread, a draw waits for its turn
                self._look_while_there_is_room(min(batches, self._fit()), iter(self._from_ahead, None))
            elif (source.draws_nothing or supply.is_quiet) and not source.restarts_midway:
                self._look_in_step(batches, due)
        seconds = time.perf_counter() - began
        self._telemetry.consumer_wait_seconds += seconds
        supply.pace.skip(len(self._early) - held, seconds)

    def _look_in_step(self, batches: int, due: bool) -> None:
        """Fetches here, or on the thread if there is a timeout; a fetch that draws all the same is warned of.

        A traversal begins on this thread, in its turn, and of data only that is known to bear steps beside that:
        batches that are gathered are copies, in whose memory nothing is written anew, and no process is started for
        them, which would have a copy of everything but the thread that steps run on.
        """
        source = self._fetches.source
        if due and source.draws_nothing and source.begin_due:
            self._look_while_there_is_room(1, iter(self._begin, None))
            # Behind its beginning the loader may be gathered no longer, and may fill the memory of that batch again.
            if self._failure is not None or not source.draws_nothing:
                return
            batches -= 1
        batches = min(batches, self._fit())
        has_drawn = None if source.draws_nothing else watch_states()
        on_thread = self._supply.options.timeout is not None
        founds = iter(self._demand, None) if on_thread else self._fetch(batches)
        self._look_while_there_is_room(batches, founds)
        if has_drawn is not None and has_drawn():
            self._supply.draws = True
            warn_at(LATE, "")

    def _begin(self) -> Found:
        """Returns a traversal's first batch, whose turn it is."""
        found = self._supply.next()
        self._producer.hold(1, found[2])
        return found

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

    def _fetch(self, most: int) -> Iterator[Found]:
        producer = self._producer
        founds = self._fetches.row(most, self._pack, time.perf_counter() + _SECONDS)
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

    def _pack(self, batch: Any, note: Any) -> int | None:
        """Packs a batch that has just been fetched where it is like those before it; the next one is fetched then."""
        load, producer = self._filling, self._producer
        # Where there will be no room for another one, it is kept as others are, behind which that is looked at.
        if load is None or producer.held_bytes + 2 * load.size > self._room or not load.put(batch, note):
            return None
        producer.hold(1, load.size)
        producer.wanted -= 1
        return load.size

    def _demand(self) -> Found | None:
        if self._fetches.source.begin_due:
            return None
        try:
            found = self._supply.demand(in_turn=False)
        except NotYet:  # data without a length: its end is known when it is reached
            return None
        self._producer.hold(1, found[2])
        return found

    def _fit(self) -> int:
        """Returns how many more batches there is room for, each as large as the last one; for one in any case."""
        held = self._producer.held_bytes
        return max(int(held == 0), (self._room - held) // max(1, self.size))

    def _look_while_there_is_room(self, batches: int, founds: Iterator[Found]) -> None:
        until, end = time.perf_counter() + _SECONDS, self._kept + batches
        left = batches
        while left > 0 and self._fit() > 0 and (left == batches or time.perf_counter() <= until):
            found = None
            try:
                found = next(founds, None)
                if found is None:
                    break
                left = end - self._kept - count_of(found)
                self.size = found[2] // count_of(found)
                if not self._keep(found, left):
                    break
            except BaseException as error:  # in its turn, whatever it is
                self._failure = error
                last = (self._early if self._filling is None else self._filling).last
                if found is not None and notes_of(found)[-1] is not last:  # it has not been kept
                    self._producer.hold(-count_of(found), -found[2])
                break
        try:
            self._send()
        except BaseException as error:
            error.__context__ = self._failure  # which would have come behind it
            self._failure = error

    @property
    def _kept(self) -> int:
        """Batches that were fetched and are kept, those that are being packed among them."""
        return len(self._early) + (0 if self._filling is None else len(self._filling))

    def _keep(self, found: Found, more: int) -> bool:
        """Keeps what was found; tells whether more may be fetched, and there may be so many."""
        if self._filling is not None and self._filling.add(found):
            return True
        self._send()
        self._filling = self._load(found, more)
        self._one_copy = sys.maxsize if self._filling is None else self._filling.fit
        return self._filling is not None or self._hold(found)

    def _hold(self, found: Found) -> bool:
        """Keeps a batch as it is, or a copy; tells whether another may be fetched, which may fill its memory again."""
        item, note, size = found
        if type(item) is Gathered:
            self._early.hold(found)
            return True
        batch, goes_on = self._lending.keep(item, size)
        self._early.hold((batch, note, size))
        return goes_on and len(self._early) < self._lending.most

    def _load(self, found: Found, more: int) -> Load | None:
        if self._device is None or type(found[0]) is Arriving:
            return None
        try:
            return self._device.load(found, count_of(found) + more, min(self._room, _COPY), self._looked)
        except BaseException as error:
            self._fetches.note_place(error, notes_of(found)[0])
            raise

    def _send(self) -> None:
        """Sends what was packed; where that fails, it is lost, and the error is raised in the turn of its first."""
        load, self._filling = self._filling, None
        if load is None:
            return
        try:
            load.send()
        except BaseException as error:
            (first,) = load.notes(0, 1)
            self._fetches.note_place(error, first)
            self._producer.hold(-len(load), -load.take(len(load)))
            raise
        self._early.append(load)
