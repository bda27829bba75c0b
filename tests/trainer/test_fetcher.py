"""Batches in a row are those that are fetched one by one, with their notes, whatever Lightning makes of the loaders."""

import itertools

import pytest
import torch
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from lightning_sink.data.gathered import Gathered
from lightning_sink.data.options import QueueOptions
from lightning_sink.data.place import place_of
from lightning_sink.trainer.loaders import TrainingLoaders


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(7))


class Stateful:
    """A loader with a state."""

    def __init__(self):
        self.given = 0

    def __len__(self):
        return 6

    def __iter__(self):
        for number in range(6):
            self.given += 1
            yield number

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.given = state["given"]


def in_memory(rows):
    return DataLoader(TensorDataset(torch.arange(8 * rows).reshape(rows, 8)), batch_size=2)


LOADERS = {
    "gathered": lambda: in_memory(12),
    "as it is": lambda: DataLoader(range(12), batch_size=2),
    "without a length": lambda: DataLoader(Stream(), batch_size=2),
    "stateful": Stateful,
    "several": lambda: CombinedLoader({"a": in_memory(12), "b": in_memory(6)}, "max_size_cycle"),
    "one after another": lambda: CombinedLoader([in_memory(6), in_memory(8)], "sequential"),
}


def batches_of(make, epoch_batches):
    loaders = TrainingLoaders(make(), epoch_batches, QueueOptions(), lambda: 4, torch.device("cpu"))
    source = iter(loaders).traversals
    if source.reads_further:
        source.read_further()
    return source


def described(found):
    batch, note = found
    place = place_of(note)
    return str(batch), place.traversal, place.batch, place.length, place.states, place.last


def one_by_one(found):
    """Returns each of several batches that came together."""
    batches, notes = found
    if not isinstance(batches, Gathered):
        return [found]
    return [(batches.batch(number), note) for number, note in enumerate(notes)]


def take(source, in_rows, together=False, most=40):
    """Takes batches, the first of each traversal in turn; returns them, and how many came in rows."""
    found, rows = [], 0
    while len(found) < most:
        row = list(itertools.islice(source.row(5, together), 3)) if in_rows else []
        row = [*itertools.chain.from_iterable(map(one_by_one, row))]
        assert len(row) <= 5
        found += map(described, row)
        rows += len(row)
        if not row:
            try:
                found.append(described(source.fetch(True)))
            except StopIteration:
                break
    return found, rows, source.describe()


@pytest.mark.parametrize("epoch_batches", [None, 5])
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("kind", LOADERS)
def test_batches_in_a_row_are_those_one_by_one(kind, together, epoch_batches):
    expected, none, *left = take(batches_of(LOADERS[kind], epoch_batches), False)
    found, rows, *left_by_rows = take(batches_of(LOADERS[kind], epoch_batches), True, together)
    assert none == 0
    assert rows > 0 or kind == "one after another"
    assert found[: len(expected)] == expected
    if epoch_batches is None:
        assert left_by_rows == left


def test_batches_that_are_gathered_come_together():
    source = batches_of(LOADERS["gathered"], None)
    source.fetch(True)
    batches, notes = next(source.row(5, together=True))
    assert isinstance(batches, Gathered)
    assert [batch for _, batch in notes] == [2, 3, 4]  # four may be read at once
    assert not isinstance(next(source.row(5, together=False))[0], Gathered)
