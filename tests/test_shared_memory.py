"""Tensors that come to share their memory when a training is under way, long after its steps were compiled.

Compiled steps write at their end what eager steps write in between, so nothing else may lie where they write.
"""

import pytest
import torch

from gallery.case import Small
from lightning_sink import SinkStrategy
from lightning_sink.engine.programs.program import Program
from parity import assert_parity, both, loader


class FlatGradients(Small):
    """From the second epoch on gradients are parts of one buffer, of which the step takes the norm."""

    def __init__(self):
        super().__init__()
        self.register_buffer("flat", torch.zeros(sum(parameter.numel() for parameter in self.parameters())))

    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            sizes = [parameter.numel() for parameter in self.parameters()]
            for parameter, part in zip(self.parameters(), self.flat.zero_().split(sizes), strict=True):
                parameter.grad = part.view_as(parameter)

    def training_step(self, batch, batch_idx):
        return self.loss(batch) + 0 * self.flat.sum()

    def on_before_optimizer_step(self, optimizer):
        for parameter in self.parameters():
            parameter.grad.div_(1 + self.flat.norm())

    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        optimizer.zero_grad(set_to_none=False)


class SharedBuffers(Small):
    """From the second epoch on what the step reads is what it has written to before."""

    def __init__(self):
        super().__init__()
        self.register_buffer("written", torch.ones(4, 3))
        self.register_buffer("read", torch.zeros(4, 3))

    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            self.read.data = self.written.data

    def training_step(self, batch, batch_idx):
        self.written.add_(0.125)
        return self.loss(batch) * (1 + 0.1 * self.read.mean())


def trained(make, accumulate):
    strategy = SinkStrategy(6, epoch="dataset", engine="inductor", verify=0)
    options = {"max_epochs": 3, "accumulate_grad_batches": accumulate}
    return both(make, lambda: loader(60, last=8), strategy, **options)


@pytest.mark.narrow
@pytest.mark.parametrize(("make", "accumulate"), [(FlatGradients, 1), (FlatGradients, 2), (SharedBuffers, 1)])
def test_what_comes_to_be_shared_is_seen(make, accumulate):
    plain, sink = trained(make, accumulate)
    assert_parity(plain, sink)
    assert any("shares its memory" in text for text in sink.warned)


def test_control_where_nobody_looks_the_training_is_another(monkeypatch):
    monkeypatch.setattr(Program, "_shares_what_it_writes", lambda self: False)
    plain, sink = trained(SharedBuffers, 1)
    with pytest.raises(AssertionError):
        assert_parity(plain, sink)
