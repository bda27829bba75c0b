"""What a callback leaves changed on the host, if the training depends on it."""

import random

import lightning as L
import numpy as np
import pytest
import torch
from torch import nn

from lightning_sink.trainer.batch_hooks import Compared
from lightning_sink.trainer.host_state import HostState
from parity import QUIET, Net, loader


class Average:
    def __init__(self):
        self.values = [torch.zeros(2)]


class Keeper(L.Callback):
    def __init__(self):
        self.average, self.seen, self.object = torch.zeros(2), [], Average()


@pytest.fixture
def trained():
    """A trainer with an optimizer, its module, a callback and a batch."""
    keeper = Keeper()
    trainer = L.Trainer(max_steps=1, callbacks=[keeper], **QUIET)
    trainer.fit(Net(), loader())
    return trainer, trainer.lightning_module, keeper, next(iter(loader()))


CHANGES = {
    "a weight": lambda trainer, module, keeper, batch: next(module.parameters()).data.mul_(0.5),
    "a weight's memory": lambda t, module, k, b: setattr(p := next(module.parameters()), "data", p.data * 0.5),
    "what is frozen": lambda trainer, module, keeper, batch: module.requires_grad_(False),
    "an option": lambda trainer, module, keeper, batch: trainer.optimizers[0].param_groups[0].update(lr=1.0),
    "an attribute": lambda trainer, module, keeper, batch: setattr(module, "mine", 3),
    "a random number": lambda trainer, module, keeper, batch: torch.rand(1),
    "a random number of Python's": lambda trainer, module, keeper, batch: random.random(),
    "a random number of numpy's": lambda trainer, module, keeper, batch: np.random.rand(),
    "the batch": lambda trainer, module, keeper, batch: batch[0].mul_(2),
    "a tensor of the callback's": lambda trainer, module, keeper, batch: keeper.average.add_(1),
    "a tensor of an object of the callback's": lambda t, module, keeper, batch: keeper.object.values[0].add_(1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_it_is_seen(trained, name):
    trainer, module, keeper, batch = trained
    before = HostState(trainer, [keeper], batch, contents=True)
    CHANGES[name](trainer, module, keeper, batch)
    assert before.differs_from(HostState(trainer, [keeper], batch, contents=True))


@pytest.mark.parametrize(
    "change",
    {
        "one more": lambda tensors: tensors.append(torch.zeros(())),
        "one less": lambda tensors: tensors.pop(),
        "the first one's memory": lambda tensors: tensors[0].data.add_(1),
        "the last one's memory": lambda tensors: tensors[-1].data.add_(1),
        "another last one": lambda tensors: tensors.__setitem__(-1, torch.zeros(())),
        "one near the end": lambda tensors: tensors[-4].add_(1),
    }.items(),
    ids=lambda change: change[0],
)
@pytest.mark.parametrize("count", [10, 300, 20_001])
@pytest.mark.parametrize("among", [lambda x: x, lambda x: {"losses": [*range(300)], "more": (x,)}], ids=["", "others"])
def test_a_list_of_the_modules(trained, change, count, among):
    trainer, module, keeper, batch = trained
    tensors = [torch.zeros(()) for _ in range(count)]
    module.held = among(tensors)
    before = HostState(trainer, [keeper], batch, contents=True)
    assert not before.differs_from(HostState(trainer, [keeper], batch, contents=True))
    change[1](tensors)
    assert before.differs_from(HostState(trainer, [keeper], batch, contents=True))


@pytest.mark.parametrize("place", [0, 100, 255])
def test_a_module_that_another_one_keeps_in_a_list(trained, place):
    trainer, module, keeper, batch = trained
    module.kept = [*range(place), nn.Linear(2, 2), *range(255 - place)]
    before = HostState(trainer, [keeper], batch, contents=True)
    assert not before.differs_from(HostState(trainer, [keeper], batch, contents=True))
    module.kept[place].weight.data.add_(1)
    assert before.differs_from(HostState(trainer, [keeper], batch, contents=True))


def test_tensors_without_memory_are_left_alone(trained):
    trainer, module, keeper, batch = trained
    keeper.given_back = torch.randn(4096)
    keeper.given_back.untyped_storage().resize_(0)
    keeper.nowhere = torch.empty(4, device="meta")
    before = HostState(trainer, [keeper], batch, contents=True)
    others = [torch.full((4096,), float(i)) for i in range(50)]  # what lies elsewhere is no part of it
    assert not before.differs_from(HostState(trainer, [keeper], batch, contents=True))
    assert len(others) == 50


def test_what_a_callback_counts_and_collects_changes_no_training(trained):
    trainer, _, keeper, batch = trained
    before = HostState(trainer, [keeper], batch, contents=True)
    keeper.seen.append(1)
    keeper.count = 1
    assert not before.differs_from(HostState(trainer, [keeper], batch, contents=True))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(300, 300),
        torch.zeros(4, 6).t(),
        torch.zeros(3, dtype=torch.bfloat16),
        torch.zeros(2, dtype=torch.bool),
    ],
    ids=["large", "transposed", "bfloat16", "bool"],
)
def test_one_number_that_no_version_counts_is_seen_whatever_holds_it(tensor, trained):
    trainer, module, keeper, batch = trained
    module.register_buffer("held", tensor.clone())
    before = HostState(trainer, [keeper], batch, contents=True)
    assert not before.differs_from(HostState(trainer, [keeper], batch, contents=True))
    module.held.data[1] = 1
    assert before.differs_from(HostState(trainer, [keeper], batch, contents=True))


def test_numbers_in_memory_are_compared_seldom_where_there_are_many():
    def due(module):
        compared = Compared()
        return [compared.is_due("a hook", module) for _ in range(100)]

    few, many = due(nn.LazyLinear(8)), due(nn.Linear(4096, 1024, device="meta"))
    assert all(few[:8])
    assert all(many[:2])
    assert 2 < sum(many) < sum(few) < 60
