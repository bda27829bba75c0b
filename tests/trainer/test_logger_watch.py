"""What loggers of Lightning's write where a step calls them by hand: real files, from sinks as from plain training."""

import csv

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

import positions
from lightning_sink import CompileError, SinkStrategy
from parity import QUIET, Net, loader

pytestmark = positions.needed


class Writes(Net):
    """Numbers that it computes, and counters, as guides have it."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        writer = self.logger.experiment
        writer.add_scalar("loss", loss, self.global_step)
        writer.add_scalars("parts", {"half": loss.item() / 2, "twice": 2 * loss.item()}, global_step=self.global_step)
        if batch_idx % 3 == 0:
            writer.add_scalar("third", loss.item(), self.current_epoch * 100 + batch_idx)
        return loss


class ByTheTrainer(Net):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.trainer.logger.experiment.add_scalar("loss", loss.item(), self.trainer.global_step + 1)
        return loss


class HasAWriter(Net):
    """Which is the logger's, under another name, and one of its own."""

    def on_fit_start(self):
        self.board = self.logger.experiment
        self.own = SummaryWriter(f"{self.logger.save_dir}/own")

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.board.add_scalar("loss", loss.item(), self.global_step)
        self.own.add_scalar("epoch", self.current_epoch, self.global_step)
        return loss

    def on_fit_end(self):
        self.own.close()


class Rows(Net):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.logger.log_metrics({"by hand": loss.item(), "rows": (batch[1] >= 0).sum()}, step=self.global_step)
        return loss


def trained(module, logger, strategy="auto", **options):
    """Trains, and returns the trainer."""
    trainer = L.Trainer(**QUIET, strategy=strategy, logger=logger, max_epochs=2, log_every_n_steps=4, **options)
    torch.manual_seed(0)
    trainer.fit(module, loader(12))
    return trainer


def scalars(folder):
    """Returns what is in files of TensorBoard's, by folder and tag: steps and values."""
    found = {}
    for file in sorted(folder.rglob("*tfevents*")):
        read = EventAccumulator(str(file)).Reload()
        for tag in read.Tags()["scalars"]:
            of = [(event.step, pytest.approx(event.value, rel=1e-4, abs=1e-6)) for event in read.Scalars(tag)]
            found.setdefault((str(file.parent.relative_to(folder)), tag), []).extend(of)
    return found


def rows(folder):
    """Returns what is in a file of rows."""
    with next(folder.rglob("metrics.csv")).open() as file:
        return [{key: value for key, value in row.items() if value} for row in csv.DictReader(file)]


def steps_by_hand(folder):
    return [int(row["step"]) for row in rows(folder) if "by hand" in row]


def both(make, logger, tmp_path, **options):
    """Trains plainly and in sinks, in two folders."""
    torch.manual_seed(1)
    trained(make(), logger(tmp_path / "plain"), **options)
    torch.manual_seed(1)
    strategy = SinkStrategy(9, epoch="dataset", engine="traced", fallback="error")
    trained(make(), logger(tmp_path / "sinks"), strategy, **options)
    assert strategy.active_engine == "traced"
    return tmp_path / "plain", tmp_path / "sinks"


@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2}], ids=["", "accumulated"])
@pytest.mark.parametrize("make", [Writes, ByTheTrainer, HasAWriter])
def test_a_board_has_the_same_scalars(make, options, tmp_path):
    plain, sinks = map(scalars, both(make, TensorBoardLogger, tmp_path, **options))
    assert sinks == plain
    assert max(map(len, plain.values())) == 24
    control = {key: [(step + 1, value) for step, value in of] for key, of in plain.items()}
    assert sinks != control


def test_rows_of_a_file_are_in_their_order(tmp_path):
    """Those that the step writes by hand among those of `self.log`."""
    make = lambda folder: CSVLogger(folder, flush_logs_every_n_steps=1000)  # noqa: E731
    found = [*map(rows, both(Rows, make, tmp_path))]
    plain, sinks = found
    assert [(row["step"], *row) for row in sinks] == [(row["step"], *row) for row in plain]
    numbers = ([{key: float(value) for key, value in row.items()} for row in of] for of in found)
    for expected, row in zip(*numbers, strict=True):
        assert row == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert sum("by hand" in row for row in plain) == 24
    assert len(plain) > 24


class KeepsItsLogger(Net):
    """It is the logger, behind a step that is recorded as behind any other."""

    def training_step(self, batch, batch_idx):
        self.own, writer = self.logger, self.logger.experiment
        self.board = writer
        loss = super().training_step(batch, batch_idx)
        self.board.add_scalar("loss", loss.detach(), self.global_step)
        return loss

    def on_train_epoch_end(self):
        assert self.own is self.trainer.logger
        assert self.board is self.trainer.logger.experiment


def test_a_logger_that_a_step_keeps_is_the_logger(tmp_path):
    plain, sinks = map(scalars, both(KeepsItsLogger, TensorBoardLogger, tmp_path))
    assert sinks == plain


class Pictures(Net):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.logger.experiment.add_histogram("weights", self.net[0].weight, self.global_step)
        return loss


def test_what_is_no_number_is_refused_where_that_is_asked_for(tmp_path):
    strategy = SinkStrategy(engine="traced", fallback="error")
    with pytest.raises(CompileError, match="`logger` is read"):
        trained(Pictures(), TensorBoardLogger(tmp_path), strategy)


def test_a_dry_run_compiles_what_a_training_will():
    strategy = SinkStrategy(engine="traced", fallback="error")
    trained(Writes(), True, strategy, fast_dev_run=8)
    assert strategy.active_engine == "traced"


class Fails(Net):
    """Behind a row, in its sixth step."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.logger.log_metrics({"by hand": loss.item()}, step=self.global_step)
        if self.global_step == 5:
            raise ValueError("of no use")
        return loss


@pytest.mark.parametrize("strategy", ["auto", SinkStrategy(engine="traced")], ids=["plain", "sinks"])
def test_what_was_written_before_an_error_is_there_once(strategy, tmp_path):
    with pytest.raises(ValueError, match="of no use"):
        trained(Fails(), CSVLogger(tmp_path), strategy)
    assert steps_by_hand(tmp_path) == [*range(6)]


class FailsRecorded(Net):
    """Only where a number is another one than Python's own: its recordings fail, and are run again."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.logger.log_metrics({"by hand": loss.item()}, step=self.global_step)
        if type(batch_idx) is not int:
            raise TypeError("no number")
        return loss


def test_a_step_that_has_to_be_run_again_writes_once(tmp_path):
    with pytest.warns(UserWarning, match="recording it failed"):
        trained(FailsRecorded(), CSVLogger(tmp_path), SinkStrategy(engine="traced"))
    assert steps_by_hand(tmp_path) == [*range(24)]
