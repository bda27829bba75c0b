"""Programs go on with what was put into a place anew, and with what they took for granted when it comes again."""

import pytest
import torch
from loop import Training, batches, both, loss_of, mlp, sgd

from lightning_sink.engine.programs.maker import ProgramMaker

SHORT = batches(1, size=3)
SINKS = [[*batches(9), *SHORT]] * 10


class Sized(torch.nn.Module):
    """Makes a mask for each size of its batches, as darts' TFT does."""

    def __init__(self):
        super().__init__()
        self.net, self.size, self.mask = mlp(), None, None

    def forward(self, x):
        if self.size != len(x):
            self.size, self.mask = len(x), torch.linspace(0.5, 1.0, len(x))
        return self.net(x) * self.mask[:, None]


@pytest.fixture
def recorded(monkeypatch):
    """The sinks in which steps were recorded."""
    made, record = [], ProgramMaker._record

    def recording(self, sink, step, candidate):
        made.append(sink._training.index // 10)
        return record(self, sink, step, candidate)

    monkeypatch.setattr(ProgramMaker, "_record", recording)
    return made


def trained(module, between=lambda training, sink: None, sinks=SINKS):
    def build():
        made = module()
        return Training(made, sgd(made), lambda batch, index: loss_of(made, batch), between)

    return both(build, sinks, costly=True)


def test_a_shorter_batch_at_the_end_of_each_epoch_has_nothing_recorded_for_ever(recorded):
    _, sink = trained(Sized)
    assert sink.compiled
    assert recorded
    assert max(recorded) < 6


def test_an_attribute_that_goes_back_and_forth(recorded):
    class Phased(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.phase = mlp(), "first"

        def forward(self, x):
            return self.net(x) if self.phase == "first" else self.net(2 * x)

    def between(training, sink):
        training.module.phase = "first" if sink % 2 else "second"

    _, sink = trained(Phased, between, [batches(10)] * 10)
    assert sink.compiled
    assert max(recorded) < 3


class Masked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.mask, self.other = mlp(), torch.ones(3), None

    def forward(self, x):
        return self.net(x) * self.mask


KINDS = [torch.float32, torch.float64]
REPLACED = {
    "a mask": lambda module, sink: setattr(module, "mask", torch.rand(3)),
    "by another size": lambda module, sink: setattr(module, "mask", torch.rand(3 if sink < 7 else 1)),
    "by another type": lambda module, sink: setattr(module, "mask", torch.rand(3).to(KINDS[sink > 6])),
    "by one that asks": lambda module, sink: setattr(module, "mask", torch.rand(3).requires_grad_(sink > 6)),
    "by a part": lambda module, sink: setattr(module, "mask", torch.rand(3, 4)[:, 0] if sink > 6 else torch.rand(3)),
    "by a weight": lambda module, sink: setattr(module, "mask", module.net[2].bias if sink > 6 else torch.rand(3)),
    "by nothing new": lambda module, sink: setattr(module, "mask", module.mask if sink > 6 else torch.rand(3)),
    "in two places": lambda module, sink: vars(module).update(dict.fromkeys(("mask", "other"), torch.rand(3))),
}


@pytest.mark.parametrize("name", REPLACED)
def test_what_is_put_into_a_place_before_each_sink(name):
    _, sink = trained(Masked, lambda training, number: REPLACED[name](training.module, number), [batches(10)] * 10)
    assert sink.compiled


def test_nothing_is_recorded_for_ever_where_a_mask_is_another_in_each_epoch(recorded):
    trained(Masked, lambda training, number: REPLACED["a mask"](training.module, number), [batches(10)] * 10)
    assert max(recorded) < 4


def test_a_tensor_that_the_step_has_from_elsewhere_is_not_read_from_the_place():
    held = {}

    class Elsewhere(Masked):
        def forward(self, x):
            return self.net(x) * held["mask"]

    def between(training, sink):
        held["mask"] = torch.rand(3) if sink < 5 else held["mask"]
        training.module.mask = held["mask"] if sink < 5 else torch.rand(3)

    trained(Elsewhere, between, [batches(10)] * 10)
