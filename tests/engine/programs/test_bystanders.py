"""What a step asks of tensors with which it does nothing is answered alike for each step that a program runs."""

import pytest
import torch

from lightning_sink import SinkStrategy
from lightning_sink.engine.programs.registry import Programs
from parity import Net, assert_parity, both, loader


class Grows(Net):
    """Keeps what no step looks at."""

    def __init__(self):
        super().__init__()
        self.scores = torch.zeros(0)
        self.register_buffer("ranks", torch.zeros(0))
        self.nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])

    def on_train_epoch_end(self):
        self.scores = torch.cat([self.scores, torch.ones(3)])
        self.ranks = torch.ones(self.current_epoch)


class Alternates(Net):
    """Is asked in each step, and gives one of two answers in each epoch."""

    def __init__(self):
        super().__init__()
        self.bank = torch.zeros(0)

    def on_train_epoch_start(self):
        self.bank = torch.zeros(self.current_epoch % 2)

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (0.5 if len(self.bank) else 1.0)


class AsksForAll(Grows):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) / (1 + sum(part.numel() for part in self.buffers()))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning")
@pytest.mark.parametrize(("make", "programs"), [(Grows, 1), (Alternates, 2), (AsksForAll, 6)])
def test_there_is_a_program_for_each_answer(make, programs, monkeypatch):
    made, add = [], Programs.add
    monkeypatch.setattr(Programs, "add", lambda self, key, program: (made.append(program), add(self, key, program)))
    strategy = SinkStrategy(4, epoch="dataset", engine="traced")
    plain, sink = both(make, lambda: loader(12, last=8), strategy, max_epochs=6)
    assert_parity(plain, sink)
    assert len(made) == programs
