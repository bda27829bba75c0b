"""The loops ask for data where plain Lightning asks for it, and show users the numbers that plain Lightning shows."""

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader

from lightning_sink import SinkStrategy
from parity import QUIET, ContinuedLoader, Net, loader


class Noted(DataLoader):
    """A loader that notes when it is iterated."""

    def __init__(self, inner, notes):
        super().__init__(inner.dataset, batch_size=inner.batch_size)
        self.notes = notes

    def __iter__(self):
        self.notes.append("iter")
        return super().__iter__()


class Notes(L.Callback):
    def __init__(self, notes):
        self.notes = notes

    def on_fit_start(self, *_):
        self.notes.append("fit start")

    def on_train_start(self, trainer, *_):
        self.notes.append(f"train start {trainer.estimated_stepping_batches} {trainer.num_training_batches}")

    def on_train_epoch_start(self, trainer, *_):
        self.notes.append(f"epoch {trainer.current_epoch} of {trainer.global_step}")

    def on_train_epoch_end(self, trainer, *_):
        self.notes.append(f"end {trainer.is_last_batch} {trainer.fit_loop.epoch_loop.batch_idx} {trainer.global_step}")

    def on_validation_start(self, trainer, *_):
        self.notes.append(f"validation at {trainer.global_step}")


class EarlyReader(Net):
    def configure_optimizers(self):
        self.total = self.trainer.estimated_stepping_batches
        return super().configure_optimizers()


def notes_of(strategy, module, length=None, **options):
    notes = []
    data = Noted(loader(6), notes)
    if length is not None:
        data = ContinuedLoader(data, length)
    trainer = L.Trainer(strategy=strategy, logger=False, callbacks=[Notes(notes)], **QUIET, **options)
    torch.manual_seed(0)
    trainer.fit(module(), data, loader(2))
    return notes


@pytest.mark.parametrize("module", [Net, EarlyReader])
@pytest.mark.parametrize(
    "options",
    [
        {"max_epochs": 3},
        {"max_epochs": 2, "reload_dataloaders_every_n_epochs": 1},
        {"max_epochs": -1, "max_steps": 8, "val_check_interval": 4, "check_val_every_n_epoch": None},
        {"max_epochs": 2, "num_sanity_val_steps": 1, "val_check_interval": 0.5},
        {"max_epochs": 2, "limit_train_batches": 4, "accumulate_grad_batches": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [2, 100])
def test_events_and_iterations_are_plain_lightnings(module, options, size):
    plain = notes_of("auto", module, **options)
    assert plain == notes_of(SinkStrategy(size, epoch="dataset", engine="eager"), module, **options)
    assert "iter" in plain


@pytest.mark.parametrize("module", [Net, EarlyReader])
@pytest.mark.parametrize("size", [4, 9])
def test_an_endless_traversal_is_iterated_once_for_each_pass(module, size):
    plain = notes_of("auto", module, length=size, max_epochs=3)
    assert plain == notes_of(SinkStrategy(size, engine="eager"), module, max_epochs=3)
    assert plain.count("iter") == -(-3 * size // 6)
