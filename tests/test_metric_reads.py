"""What the user's code reads of metrics between compiled steps, and behind errors, is that of the last step."""

from contextlib import nullcontext

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import WeightAveraging
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics.aggregation import SumMetric

from lightning_sink import SinkStrategy
from lightning_sink.trainer.delivery import SinkLoggerConnector
from parity import QUIET, Net, Rows, assert_parity, both, loader

KINDS = ["callback_metrics", "logged_metrics", "progress_bar_metrics"]


class Looks(Net):
    """Looks at what the step before logged, in one of the places where the user's code runs between steps."""

    def __init__(self, kind):
        super().__init__()
        self.net[3] = nn.Identity()
        self.kind, self.seen = kind, []

    def look(self):
        found = getattr(self.trainer, self.kind)
        value = next((float(value) for name, value in found.items() if name.startswith("loss_forked")), 1.0)
        self.seen.append(value)
        return value


class InASchedule(Looks):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, self.look()) if step else 1.0)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class InTheHookOfSchedules(Looks):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), "interval": "step"}]

    def lr_scheduler_step(self, scheduler, metric):
        if self.look() < 1.1:
            scheduler.step()


class InATransferHook(Looks):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        x, y = batch
        return x * min(2.0, 0.5 + self.look()), y


class Data(Dataset):
    """Holds the module."""

    def __init__(self, module):
        self.module, self.batches = module, list(loader(last=8))

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        x, y = self.batches[index]
        return x * min(2.0, 0.5 + self.module.look()), y


class InADataset(Looks):
    def train_dataloader(self):
        return DataLoader(Data(self), batch_size=None)


PLACES = [InASchedule, InTheHookOfSchedules, InATransferHook, InADataset]


@pytest.mark.narrow(11)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.filterwarnings("ignore:You have overridden `.*transfer")
def test_metrics_between_steps(place, kind):
    data = (lambda: None) if place is InADataset else loader
    plain, sink = both(lambda: place(kind), data, SinkStrategy(-1, epoch="dataset", engine="traced"), max_epochs=2)
    assert sink.trainer.strategy.active_engine == "traced"
    assert sink.module.seen == pytest.approx(plain.module.seen, rel=1e-4)
    assert len({*plain.module.seen}) > 20 or kind == "logged_metrics"  # which change where a row is due
    assert_parity(plain, sink)


def test_control_without_being_told_they_are_those_of_an_earlier_step(monkeypatch):
    monkeypatch.setattr(SinkLoggerConnector, "_tell", lambda self: None)
    strategy = SinkStrategy(-1, epoch="dataset", engine="traced")
    plain, sink = both(lambda: InASchedule("callback_metrics"), loader, strategy, max_epochs=2)
    assert sink.module.seen != pytest.approx(plain.module.seen, rel=1e-4)


class AMetricInASchedule(Net):
    def __init__(self):
        super().__init__()
        self.net[3] = nn.Identity()
        self.count, self.seen = SumMetric(), []

    def training_step(self, batch, batch_idx):
        self.count.update(torch.ones(()))
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()

        def rate(step):
            self.seen.append(float(self.count.compute()) if step else 0.0)
            return 1.0 - 0.01 * self.seen[-1]

        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.LambdaLR(optimizer, rate), "interval": "step"}]


def test_a_metric_in_a_schedule():
    plain, sink = both(AMetricInASchedule, loader, SinkStrategy(-1, epoch="dataset", engine="traced"), max_epochs=2)
    assert plain.module.seen == sink.module.seen == [*map(float, range(35))]
    assert_parity(plain, sink)


class Averages(WeightAveraging):
    """Is shown every step; averages while the loss is small, and logs how often it did."""

    def __init__(self):
        super().__init__(avg_fn=lambda average, current, count: average * 0.9 + current * 0.1)
        self.seen = []

    def should_update(self, step_idx=None, epoch_idx=None):
        found = {} if step_idx is None else self.trainer.callback_metrics
        self.seen += [float(value) for name, value in found.items() if name == "loss_forked_step"]
        return bool(found) and self.seen[-1] < 1.1

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.trainer = trainer
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        pl_module.log("averaged", float(len(self.seen)), on_step=True)


@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_callbacks_that_are_shown_every_step_read_its_metrics_and_log_into_its_row(engine):
    kept = []

    def callbacks():
        kept.append(Averages())
        return [kept[-1]]

    strategy = SinkStrategy(-1, epoch="dataset", engine=engine)
    plain, sink = both(lambda: Looks("callback_metrics"), loader, strategy, callbacks=callbacks, max_epochs=2)
    assert kept[1].seen == pytest.approx(kept[0].seen, rel=1e-4)
    assert {row["averaged"] for row in (values for _, values in plain.rows) if "averaged" in row} >= {3.0, 6.0}
    assert_parity(plain, sink)


class Fails(Net):
    """Fails in the 13th step, in one way."""

    def __init__(self, where):
        super().__init__()
        self.net[3] = nn.Identity()
        self.where = where

    def fail(self, where, error):
        if self.where == where and self.global_step == 12:
            raise error

    def training_step(self, batch, batch_idx):
        self.fail("step", OSError("lost"))
        self.fail("end", StopIteration)
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self):
        optimizer, schedules = super().configure_optimizers(), torch.optim.lr_scheduler
        if self.where == "cycle":
            schedule = schedules.OneCycleLR(optimizer, 0.1, total_steps=12)
        else:
            schedule = schedules.LambdaLR(optimizer, lambda step: self.fail("schedule", OSError("lost")) or 1.0)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def read(trainer):
    kinds = [{name: float(value) for name, value in getattr(trainer, kind).items()} for kind in KINDS]
    return [trainer.global_step, *kinds]


class Reads(L.Callback):
    """Keeps what it reads when something has failed."""

    def __init__(self):
        self.found = None

    def on_exception(self, trainer, pl_module, exception):
        self.found = read(trainer)


@pytest.mark.narrow(11)
@pytest.mark.parametrize("engine", ["eager", "traced"])
@pytest.mark.parametrize(
    ("where", "is_late"),
    [(where, late) for where in ("step", "schedule", "cycle") for late in (False, True)] + [("end", True)],
)
def test_metrics_behind_an_error(where, is_late, engine):
    found, fails = [], where != "end"
    for strategy in ("auto", SinkStrategy(-1, epoch="dataset", engine=engine)):
        torch.manual_seed(7)
        reads = Reads()
        callbacks = [] if is_late or not fails else [reads]
        trainer = L.Trainer(strategy=strategy, max_epochs=1, logger=[Rows()], callbacks=callbacks, **QUIET)
        with pytest.raises((OSError, ValueError)) if fails else nullcontext():
            trainer.fit(Fails(where), loader())
        found.append(reads.found or read(trainer))
    assert found[0][0] == found[1][0]
    for plain, sink in zip(found[0][1:], found[1][1:], strict=True):
        assert sink == pytest.approx(plain, rel=1e-4)
