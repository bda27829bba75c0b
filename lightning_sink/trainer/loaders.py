"""A Trainer's training loaders: Lightning's `CombinedLoader`, traversed as sinks need it.

`TrainingLoaders` takes the place of the `CombinedLoader` that Lightning makes, or of the user's own, and keeps its
loaders, its mode and its limits; a queue fetches from its `LoaderTraversals`. The user's loaders stay what
`trainer.train_dataloader` shows. With `epoch_batches` its length is that of a sink and its traversals are endless.

Private names of Lightning (2.6): of `CombinedLoader` `_state_dicts`, what a checkpoint gets, `_iterator`, `_iterables`,
and `_flattened`, the list of the loaders; `_Stateful`, what Lightning takes for a loader with a state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat
from typing import Any, cast

import torch
from lightning.fabric.utilities.types import _Stateful
from lightning.pytorch.utilities import CombinedLoader

from lightning_sink.data.gather import gathered
from lightning_sink.data.options import QueueOptions
from lightning_sink.data.place import Place
from lightning_sink.data.road import Road
from lightning_sink.data.traversals import Traversals


class TrainingLoaders(CombinedLoader):
    """The training loaders of a fit, made out of what the user gave Lightning.

    Args:
        loader: A `CombinedLoader`, or what Lightning makes one of.
        epoch_batches: Batches of an epoch in an endless traversal; None where an epoch is a traversal.
        trained: Returns the place behind the last batch that was trained.
        before: What these take the place of: a loader of theirs that comes again goes on with its workers.

    Attributes:
        traversals: The place in the data.
        taken: The place behind the last batch that the training took, or where it was resumed; None before the first
            one, of each traversal that is not endless.
        taken_before: The place behind the batch before that one.
        has_ended: Whether workers that persist have ended, too.
    """

    has_ended = False

    def __init__(
        self,
        loader: Any,
        epoch_batches: int | None,
        options: QueueOptions,
        horizon: Callable[[], int],
        device: torch.device,
        trained: Callable[[], Place | None] = lambda: None,
        before: TrainingLoaders | None = None,
    ) -> None:
        if not isinstance(loader, CombinedLoader):
            loader = CombinedLoader(loader, "max_size_cycle")
        vars(self).update(vars(loader))  # its mode and its limits too, whatever class of the user's it is
        self._epoch_batches, self._options, self._horizon = epoch_batches, options, horizon
        self._device, self._trained = device, trained
        self.roads: list[Road] = []
        before_these = [] if before is None or before.has_ended else before.roads
        persist = [road for road in before_these if getattr(road.loader, "persistent_workers", False)]
        self._known = [road.fast for road in persist if road.fast is not None]
        self.traversals = LoaderTraversals(self, epoch_batches is not None, super()._state_dicts)
        self.taken: Place | None = None
        self.taken_before: Place | None = None

    def __repr__(self) -> str:
        return f"TrainingLoaders({self.roads or self.iterables}, {self.traversals!r})"

    def __len__(self) -> int:
        if self._epoch_batches is None:
            if not self.roads:
                # Lightning asks behind an error where the first traversal begins, whose place another would take.
                raise TypeError("no traversal has begun")
            return super().__len__()
        return self._epoch_batches if self.traversals.limit > 0 else 0

    def __iter__(self) -> TrainingLoaders:
        """Begins a traversal; endless ones go on."""
        if not self.roads:
            self.traversals.keeps_states = any(isinstance(loader, _Stateful) for loader in self.flattened)
            self.roads.extend(self._road(loader) for loader in self.flattened)
            self._known.clear()
        if not (self.traversals.endless and self.traversals.iterator is not None):
            self.traversals.begin()
            # Before a batch is taken, or where the first one fails, a checkpoint may be saved.
            self.taken = self.traversals.resumed_place()
        return self

    def __next__(self) -> tuple[Any, int, int]:
        """Gives nothing: Lightning's fetcher asks, for data without a length, before `SinkFetcher` takes its place."""
        raise StopIteration

    def _road(self, loader: Any) -> Road:
        if getattr(loader, "persistent_workers", False) and sum(other is loader for other in self.flattened) > 1:
            return Road(loader)  # its places share one iterator, which gives each the batches that others leave
        device = self._device if self._options.cache == "device" else None
        fast = gathered(loader, self._horizon, device=device, cache_bytes=self._options.cache_bytes)
        for known in self._known:
            if fast is not None and known.loader is loader:
                fast.go_on(known)
        return Road(loader, fast)

    def iterate(self) -> Iterator[Any]:
        """Makes the iterator of a traversal."""
        with self.shown_as(self.roads):
            super().__iter__()
        try:
            self.traversals.limit = super().__len__()
        except (TypeError, NotImplementedError):
            self.traversals.limit = float("inf")
        if self.iterables is self.flattened[0]:
            # What every mode makes of a single loader, in a fifth of the time.
            return cast(Iterator[Any], cast(Any, self._iterator).iterators[0])
        return map(lambda _: CombinedLoader.__next__(self)[0], repeat(None))  # goes on behind an error

    def reset(self) -> None:
        """Ends workers and lets go of iterators."""
        self.traversals.close()
        self.has_ended = True
        super().reset()

    def let_go(self) -> None:
        """Lets go of what others take the place of, as soon as they do: workers end with their iterators.

        A traversal and its loaders hold each other, and would wait for a collection of garbage otherwise.
        """
        self.traversals.close()
        self.roads.clear()
        self._iterator, self._iterables, self._flattened = None, [], []
        del self.traversals

    @contextmanager
    def shown_as(self, loaders: list[Any]) -> Iterator[None]:
        """Lets `flattened` be these, for a while; its setter would make them the user's loaders."""
        present, self._flattened = self._flattened, loaders
        try:
            yield
        finally:
            self._flattened = present

    # -- states -----------------------------------------------------------------------------------------------------

    def _state_dicts(self) -> list[dict[str, Any]]:
        """Returns the loaders' states behind the batch that was trained last, not the one fetched last."""
        place = self._trained()
        if place is not None and place.states is not None:
            return place.states
        return super()._state_dicts()


class LoaderTraversals(Traversals):
    """The traversals of training loaders."""

    def __init__(self, loaders: TrainingLoaders, endless: bool, states: Callable[[], list[Any]]) -> None:
        super().__init__(loaders.roads, loaders.iterate, endless=endless, states=states, tells_last=not endless)
        self._of = loaders

    @property
    def restarts_midway(self) -> bool:  # type: ignore[override]
        """Whether there are several loaders, of which the shorter are begun again, and draw, until the longest ends."""
        return self._of._mode == "max_size_cycle" and len(self.roads) > 1

    def _iterators(self) -> list[Any]:
        return getattr(self._of._iterator, "iterators", [])
