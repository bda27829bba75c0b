"""What a step reads and writes outside of its module: the trainer, callbacks, data, loggers, files."""

import io
import json

import lightning as L
import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

from gallery.case import Small, add, case
from parity import loader

ANY = "runs eagerly"


class Smoothed(Small):
    """The loss takes a number that another object holds; it changes from epoch to epoch."""

    def loss(self, batch):
        return nn.functional.cross_entropy(self(batch[0]), batch[1], label_smoothing=self.number())


# -- read: constant within an epoch -----------------------------------------------------------------------------------


class Data(L.LightningDataModule):
    hardness = 0.0

    def train_dataloader(self):
        return loader()


@case(data=Data)
class NumberOfTheDatamodules(Smoothed):
    def on_train_epoch_start(self):
        self.trainer.datamodule.hardness = 0.2 * self.current_epoch

    def number(self):
        return self.trainer.datamodule.hardness


class Growing(L.Callback):
    weight = 0.0

    def on_train_epoch_start(self, trainer, pl_module):
        self.weight = 0.2 * trainer.current_epoch


@case(options={"callbacks": lambda: [Growing()]})
class NumberOfACallbacks(Smoothed):
    def number(self):
        return next(item for item in self.trainer.callbacks if isinstance(item, Growing)).weight


@case()
class NumberOfTheDatasets(Smoothed):
    def on_train_epoch_start(self):
        self.trainer.train_dataloader.dataset.hardness = 0.2 * self.current_epoch

    def number(self):
        return self.trainer.train_dataloader.dataset.hardness


@case()
class NumberThatIsPutOnTheTrainer(Smoothed):
    def on_train_epoch_start(self):
        self.trainer.hardness = 0.2 * self.current_epoch

    def number(self):
        return self.trainer.hardness


@case()
class NumberOfTheHyperparameters(Smoothed):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters({"hardness": 0.0})

    def on_train_epoch_start(self):
        self.hparams.hardness = 0.2 * self.current_epoch

    def number(self):
        return self.hparams.hardness


class Options:
    hardness = 0.0


@case()
class NumberOfAnObject(Smoothed):
    def __init__(self):
        super().__init__()
        self.held = Options()

    def on_train_epoch_start(self):
        self.held.hardness = 0.2 * self.current_epoch

    def number(self):
        return self.held.hardness


class Scale:
    """Holds its number for all of its kind."""

    factor = 0.0

    def __call__(self, x):
        return x * (1 + self.factor)


@case()
class NumberInTheClassOfAnObject(Small):
    def __init__(self):
        super().__init__()
        self.scale = Scale()

    def on_train_epoch_start(self):
        Scale.factor = 0.2 * self.current_epoch

    def training_step(self, batch, batch_idx):
        return self.scale(self.loss(batch))


@case()
class NumberOfAnObjectInTheClass(NumberOfAnObject):
    def __init__(self):
        super().__init__()
        del self.held
        type(self).held = Options()


@case(eager=ANY, line="progress_bar_metrics")
class MetricOfTheEpochBefore(Small):
    """Read by a public name, as `callback_metrics` could be."""

    def training_step(self, batch, batch_idx):
        before = self.trainer.progress_bar_metrics.get("loss", 0.0)
        loss = self.loss(batch)
        self.log("loss", loss, on_step=False, on_epoch=True, prog_bar=True)
        return loss * (1 + before)


@case(eager="`should_update_logs` is read", line="should_update_logs", options={"log_every_n_steps": 3})
class LogsWhatIsDueOnly(Small):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        if self.trainer._logger_connector.should_update_logs:
            self.log("weight", self.net[0].weight.mean())
            loss = 2 * loss
        return loss


@case(eager="`_num_ready_batches_reached()` is called", line="_num_ready_batches_reached")
class AsksLightningForTheLastBatch(Small):
    def training_step(self, batch, batch_idx):
        is_last = self.trainer.fit_loop.epoch_loop._num_ready_batches_reached()
        return super().training_step(batch, batch_idx) * (1 + is_last)


@case(eager="`callback_metrics` is read", line="callback_metrics")
class MetricOfTheEpochBeforeForCallbacks(Small):
    def training_step(self, batch, batch_idx):
        before = self.trainer.callback_metrics.get("loss", 0.0)
        loss = self.loss(batch)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss * (1 + before)


# -- read: changing with every step -----------------------------------------------------------------------------------


class Tripled(Small):
    """Every seventh step counts thrice; who counts differs."""

    def training_step(self, batch, batch_idx):
        return self.loss(batch) * (3.0 if self.count() % 7 == 6 else 1.0)


@case()
class CountedByLightning(Small):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) * (3.0 if batch_idx % 7 == 6 else 1.0)


@case(eager=ANY)
class CountedOnTheTrainer(Tripled):
    def count(self):
        self.trainer.steps = getattr(self.trainer, "steps", 0) + 1
        return self.trainer.steps


@case(eager=ANY)
class CountedOnTheLogger(Tripled):
    def count(self):
        self.logger.steps = getattr(self.logger, "steps", 0) + 1
        return self.logger.steps


@case(eager=ANY, data=Data)
class CountedOnTheDatamodule(Tripled):
    def count(self):
        self.trainer.datamodule.steps = getattr(self.trainer.datamodule, "steps", 0) + 1
        return self.trainer.datamodule.steps


class Meter:
    def __init__(self):
        self.steps = 0


@case(eager=ANY)
class CountedOnAnObjectInTheClass(Tripled):
    def __init__(self):
        super().__init__()
        type(self).meter = Meter()

    def count(self):
        self.meter.steps += 1
        return self.meter.steps


@case(eager=ANY)
class CountedInALongListBelowADictionary(Tripled):
    def __init__(self):
        super().__init__()
        self.tables = {"counts": [[0] * 3000]}

    def count(self):
        self.tables["counts"][0][5] += 1
        return self.tables["counts"][0][5]


# -- written: what a step leaves in the world -------------------------------------------------------------------------


class Writing(Small):
    """Each step leaves a trace. What was written can be compared."""

    def __init__(self, write=None):
        super().__init__()
        self.write, self.out = write, io.StringIO()

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.write(self, loss)
        return loss


WRITTEN = {
    "a line into an open file": lambda module, loss: module.out.write("seen\n"),
    "an object into an open file": lambda module, loss: json.dump({"seen": 1}, module.out),
    "a line with the module's print": lambda module, loss: module.print("seen", file=module.out),
    "a line with print": lambda module, loss: print("seen", file=module.out),
    "a row for the logger": lambda module, loss: module.logger.log_metrics({"seen": 1.0}),
}
for name, write in WRITTEN.items():
    add(f"written: {name}", lambda write=write: Writing(write), eager=ANY)


class Board(SummaryWriter):
    """A writer of TensorBoard's without a file."""

    def __init__(self, out):
        self.out, self.default_bins = out, [-1.0, 0.0, 1.0]

    def _get_file_writer(self):
        return self

    def add_summary(self, *args):
        self.out.write("seen")


class Drawing(Writing):
    """TensorBoard is used by hand, as `self.logger.experiment` is."""

    def __init__(self, draw):
        super().__init__(lambda module, loss: draw(module.board, module, loss))
        self.board = Board(self.out)


DRAWN = {
    "a number": lambda board, module, loss: board.add_scalar("loss", loss),
    "a histogram": lambda board, module, loss: board.add_histogram("weights", module.net[0].weight),
}
for name, draw in DRAWN.items():
    add(f"written: {name} for TensorBoard", lambda draw=draw: Drawing(draw), eager=ANY)


@case(eager=ANY)
class WrittenTensorsOfEachStep(Small):
    """Saved to memory, as a user looking for a bug does."""

    def __init__(self):
        super().__init__()
        self.out = io.StringIO()

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        file = io.BytesIO()
        torch.save(loss.detach(), file)
        self.out.write(str(len(file.getvalue())))
        return loss


@case(eager="changes Python state: `trainer.last`")
class LossIsKeptByTheTrainerByItsName(Small):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        setattr(self.trainer, "last", loss.detach())  # noqa: B010
        return loss
