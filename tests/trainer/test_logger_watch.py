"""What loggers of Lightning's write where a step calls them by hand: real files, from sinks as from plain training."""

import csv

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

import positions
from lightning_sink import CompileError, SinkStrategy, StepCallback
from parity import QUIET, Net, loader

pytestmark = positions.needed


def trained(module, loggers, strategy="auto", **options):
    """Trains, and returns the trainer."""
    options = {**QUIET, "max_epochs": 2, "log_every_n_steps": 4, **options}
    trainer = L.Trainer(**options, strategy=strategy, logger=loggers)
    torch.manual_seed(0)
    trainer.fit(module, loader(12))
    return trainer


def csv_logger(folder):
    return CSVLogger(folder, flush_logs_every_n_steps=1000)


def rows(folder):
    """Returns what is in a file of rows."""
    with next(folder.rglob("metrics.csv")).open() as file:
        return [{key: value for key, value in row.items() if value} for row in csv.DictReader(file)]


def steps_by_hand(folder):
    return [int(row["step"]) for row in rows(folder) if "by hand" in row]


def scalars(folder):
    """Returns what is in files of TensorBoard's, by folder and tag: steps and values."""
    found = {}
    for file in sorted(folder.rglob("*tfevents*")):
        read = EventAccumulator(str(file)).Reload()
        for tag in read.Tags()["scalars"]:
            of = [(event.step, pytest.approx(event.value, rel=1e-4, abs=1e-6)) for event in read.Scalars(tag)]
            found.setdefault((str(file.parent.relative_to(folder)), tag), []).extend(of)
    return found


def both(make, logger, tmp_path, fallback="error", **options):
    """Trains plainly and in sinks, in two folders; returns these, and the strategy."""
    callbacks = options.pop("callbacks", list)
    torch.manual_seed(1)
    trained(make(), logger(tmp_path / "plain"), callbacks=callbacks(), **options)
    torch.manual_seed(1)
    strategy = SinkStrategy(9, epoch="dataset", engine="traced", fallback=fallback)
    trained(make(), logger(tmp_path / "sinks"), strategy, callbacks=callbacks(), **options)
    return tmp_path / "plain", tmp_path / "sinks", strategy


TRUTHS = {"True": 1.0, "False": 0.0}


def assert_same_rows(plain, sinks):
    """In their order, those that the step writes by hand among those of `self.log`."""
    assert [(row.get("step"), *row) for row in sinks] == [(row.get("step"), *row) for row in plain]
    number = lambda value: float(TRUTHS.get(value, value))  # noqa: E731
    numbers = ([{key: number(value) for key, value in row.items()} for row in of] for of in (plain, sinks))
    for expected, row in zip(*numbers, strict=True):
        assert row == pytest.approx(expected, rel=1e-4, abs=1e-6)


# -- TensorBoard's writer ----------------------------------------------------------------------------------------------


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


class OneNumber(Net):
    """Which is all that is computed for the call."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.logger.experiment.add_scalar("loss", loss)
        return loss


@pytest.mark.narrow(11)
@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2}], ids=["", "accumulated"])
@pytest.mark.parametrize("make", [Writes, ByTheTrainer, HasAWriter, OneNumber])
def test_a_board_has_the_same_scalars(make, options, tmp_path):
    *folders, strategy = both(make, TensorBoardLogger, tmp_path, **options)
    plain, sinks = map(scalars, folders)
    assert sinks == plain
    assert strategy.active_engine == "traced"
    assert max(map(len, plain.values())) == 24
    control = {key: [(step + 1, value) for step, value in of] for key, of in plain.items()}
    assert sinks != control


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


# -- rows of a file ----------------------------------------------------------------------------------------------------


class Rows(Net):
    """`write` writes by hand."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.write(loss.detach(), batch, batch_idx)
        return loss

    def write(self, loss, batch, batch_idx):
        self.logger.log_metrics({"by hand": loss.item(), "rows": (batch[1] >= 0).sum()}, step=self.global_step)


class WritesLate(Rows):
    """Where the step is counted."""

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.logger.log_metrics({"late": outputs["loss"].detach(), "rate": 0.05}, self.global_step)


class WritesAtTimes(Rows):
    """Some steps have two rows, some one, and some none."""

    def write(self, loss, batch, batch_idx):
        if batch_idx % 3 == 0:
            for logger in self.loggers:
                logger.log_metrics({"third": loss.item()}, step=self.global_step)
        if self.global_step % 4 == 3 and self.trainer.logger is not None:
            self.trainer.loggers[0].log_metrics({"fourth": loss.item(), "last": False}, step=self.global_step)


class WritesWithoutAStep(Rows):
    def write(self, loss, batch, batch_idx):
        logger = self.logger
        if isinstance(logger, CSVLogger):
            logger.log_metrics({"by hand": loss})


class WritesLargeNumbers(Rows):
    def write(self, loss, batch, batch_idx):
        place = torch.tensor([2**60 + 1]) + batch_idx
        metrics = {
            "place": place,
            "rest": place % 1000,
            "half": loss.bfloat16(),
            "small": batch[1].max().to(torch.uint8),
        }
        with torch.no_grad():
            self.logger.log_metrics(metrics, step=self.current_epoch * self.trainer.num_training_batches + batch_idx)


class WritesAWholeNumber(Rows):
    def write(self, loss, batch, batch_idx):
        self.logger.log_metrics({"by hand": (batch[1] == 1).sum().item()})


class WritesWhatItClears(Rows):
    def write(self, loss, batch, batch_idx):
        metrics = {"by hand": loss, "labels": {}}
        metrics.pop("labels")
        self.logger.log_metrics(metrics, step=self.global_step)
        metrics.clear()
        loss.zero_()


ROWS = [Rows, WritesLate, WritesAtTimes, WritesWithoutAStep, WritesLargeNumbers, WritesAWholeNumber]
ROWS += [WritesWhatItClears]


class OfTheStep(StepCallback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        trainer.logger.log_metrics({"mean": outputs["loss"].detach() / 2}, step=trainer.global_step)


@pytest.mark.narrow(11)
@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2}], ids=["", "accumulated"])
@pytest.mark.parametrize(
    "make",
    [Rows, WritesLate, WritesAtTimes, WritesWithoutAStep, WritesLargeNumbers, WritesAWholeNumber, WritesWhatItClears],
)
def test_rows_are_in_their_order(make, options, tmp_path):
    *folders, strategy = both(make, csv_logger, tmp_path, callbacks=lambda: [OfTheStep()], **options)
    plain, sinks = map(rows, folders)
    assert strategy.active_engine == "traced"
    assert_same_rows(plain, sinks)
    with pytest.raises(AssertionError):
        assert_same_rows(plain, [plain[1], plain[0], *plain[2:]])


class AsksForItsType(Rows):
    def write(self, loss, batch, batch_idx):
        if type(self.logger) is CSVLogger:
            self.logger.log_metrics({"by hand": loss}, step=self.global_step)


class Keeps(Rows):
    def write(self, loss, batch, batch_idx):
        self.own = self.logger
        self.own.log_metrics({"by hand": loss}, step=self.global_step)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        assert self.own is self.trainer.logger


class Sets(Rows):
    def write(self, loss, batch, batch_idx):
        self.logger.best = batch_idx
        self.logger.log_metrics({"by hand": loss}, step=self.logger.best)


class Catches(Rows):
    """An error that a later call would raise is another one's."""

    def write(self, loss, batch, batch_idx):
        try:
            self.logger.log_metrics({"by hand": loss}, step=self.global_step)
        except ConnectionError:
            self.is_offline = True


class UsesWhatItGives(Rows):
    def write(self, loss, batch, batch_idx):
        given = self.logger.log_metrics({"by hand": loss}, step=self.global_step)
        assert given is None


class Part(L.LightningModule):
    """Has the logger by the Trainer that it shares."""

    def write(self, step):
        self.logger.log_metrics({"by hand": 1.0}, step=step)


class HasAPart(Rows):
    def __init__(self):
        super().__init__()
        self.part = Part()

    def write(self, loss, batch, batch_idx):
        self.part.write(self.global_step)


class WritesOfNumpy(Rows):
    def write(self, loss, batch, batch_idx):
        self.logger.log_metrics({"by hand": loss, "of numpy": np.float64(0.5)}, step=self.global_step)


class WritesOddIntegers(Rows):
    def write(self, loss, batch, batch_idx):
        self.logger.log_metrics({"by hand": batch[1].max().to(torch.uint64)}, step=self.global_step)


class NamesItself(Rows):
    def write(self, loss, batch, batch_idx):
        self.logger.log_metrics({"by hand": loss}, step=self.global_step)
        if self.logger.name == "lightning_logs":
            self.logger.log_metrics({"more": loss}, step=self.global_step)


@pytest.mark.narrow(11)
@pytest.mark.parametrize(
    "make",
    [AsksForItsType, Keeps, Sets, Catches, UsesWhatItGives, HasAPart, WritesOfNumpy, WritesOddIntegers, NamesItself],
)
def test_whoever_asks_a_logger_for_more_gets_it(make, tmp_path):
    """And trains eagerly, with a warning."""
    with pytest.warns(UserWarning, match="The training step runs eagerly") as warned:
        *folders, strategy = both(make, csv_logger, tmp_path, fallback="warn")
    assert strategy.active_engine == "eager"
    texts = [str(item.message) for item in warned if "eagerly" in str(item.message)]
    assert len(texts) == 1
    assert "logger" in texts[0]
    assert_same_rows(*map(rows, folders))


class Own(CSVLogger):
    """A logger of the user's, which may look at anything."""

    def log_metrics(self, metrics, step=None):
        super().log_metrics(metrics, step)
        return len(metrics)


def test_a_logger_of_the_users_is_called_where_it_is(tmp_path):
    with pytest.warns(UserWarning, match="`logger` is read"):
        *folders, strategy = both(Rows, Own, tmp_path, fallback="warn")
    assert strategy.active_engine == "eager"
    assert_same_rows(*map(rows, folders))


class HasAnotherLogger(Rows):
    """Of its own, under the name."""

    def __init__(self):
        super().__init__()
        self.lines = []

    @property
    def logger(self):
        return self

    def info(self, number):
        self.lines.append(number)

    def write(self, loss, batch, batch_idx):
        self.logger.info(loss)


def test_a_logger_by_the_same_name_is_called_as_it_is(tmp_path):
    strategy = SinkStrategy(5, epoch="dataset", engine="traced")
    module = HasAnotherLogger()
    trained(module, csv_logger(tmp_path), strategy)
    assert len(module.lines) == 24


class MayHaveNone(Rows):
    def write(self, loss, batch, batch_idx):
        if self.logger is not None:
            self.logger.log_metrics({"by hand": loss}, step=self.global_step)


class Removes(L.Callback):
    def on_train_epoch_end(self, trainer, module):
        trainer.loggers = []


def test_loggers_may_come_and_go(tmp_path):
    for loggers in (False, csv_logger(tmp_path)):
        strategy = SinkStrategy(5, epoch="dataset", engine="traced", fallback="error")
        trained(MayHaveNone(), loggers, strategy, callbacks=[Removes()])
        assert strategy.active_engine == "traced"
    assert steps_by_hand(tmp_path) == [*range(12)]


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
