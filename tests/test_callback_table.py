"""Every callback that Lightning ships: what a sink makes of it, and that the README says so."""

from datetime import timedelta
from pathlib import Path

import lightning as L
import pytest
import torch
from lightning.pytorch import callbacks as shipped
from torch import nn
from torch.utils.data import DataLoader

from gallery.options import Logged
from lightning_sink import SinkStrategy
from parity import assert_parity, both, loader

README = (Path(__file__).parents[1] / "README.md").read_text()
SECTION = README.split("## What changes, hook by hook")[1].split("\n## ")[0]

ENGINES = pytest.mark.parametrize("engine", ["eager", "traced"])


class Rated(Logged):
    """Has what the finders look for."""

    def __init__(self):
        super().__init__()
        self.learning_rate, self.batch_size, self.backbone = 0.05, 8, nn.Linear(6, 6)

    def forward(self, x):
        return self.net(self.backbone(x))

    def configure_optimizers(self):
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=self.learning_rate, momentum=0.5)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]

    def train_dataloader(self):
        return DataLoader(loader().dataset, self.batch_size)


class Thaws(shipped.BaseFinetuning):
    def freeze_before_training(self, pl_module):
        self.freeze(pl_module.net[0])

    def finetune_function(self, pl_module, epoch, optimizer):
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.net[0], optimizer)


class Writes(shipped.BasePredictionWriter):
    def write_on_epoch_end(self, trainer, pl_module, predictions, batch_indices):
        self.written = predictions


def pruning():
    return shipped.ModelPruning("l1_unstructured", [], ["weight", "bias"], amount=0.2)


# Each callback of Lightning: its kind, and a function that makes one.
UNCHANGED = {
    "BackboneFinetuning": lambda: shipped.BackboneFinetuning(1, backbone_initial_lr=0.01, verbose=False),
    "BaseFinetuning": Thaws,
    "BasePredictionWriter": lambda: Writes("epoch"),
    "BatchSizeFinder": lambda: shipped.BatchSizeFinder(steps_per_trial=2, max_trials=2, init_val=4),
    "Callback": L.Callback,
    "Checkpoint": shipped.Checkpoint,
    "EarlyStopping": lambda: shipped.EarlyStopping("val_loss", patience=0, min_delta=10.0),
    "GradientAccumulationScheduler": lambda: shipped.GradientAccumulationScheduler({0: 2, 1: 3, 2: 1}),
    "LambdaCallback": lambda: shipped.LambdaCallback(on_train_epoch_end=lambda trainer, module: None),
    "LearningRateFinder": lambda: shipped.LearningRateFinder(num_training_steps=8, attr_name="learning_rate"),
    "LearningRateMonitor": lambda: shipped.LearningRateMonitor("step", log_momentum=True),
    "ModelCheckpoint": lambda: shipped.ModelCheckpoint("kept", every_n_train_steps=5, save_top_k=-1),
    "ModelPruning": pruning,
    "ModelSummary": shipped.ModelSummary,
    "OnExceptionCheckpoint": lambda: shipped.OnExceptionCheckpoint("kept"),
    "RichModelSummary": shipped.RichModelSummary,
    "StochasticWeightAveraging": lambda: shipped.StochasticWeightAveraging(0.05, swa_epoch_start=1),
}
ONCE = {
    "DeviceStatsMonitor": shipped.DeviceStatsMonitor,
    "ProgressBar": shipped.ProgressBar,
    "RichProgressBar": shipped.RichProgressBar,
    "TQDMProgressBar": shipped.TQDMProgressBar,
    "Timer": lambda: shipped.Timer(timedelta(hours=1)),
}
SHOWN = {
    "EMAWeightAveraging": lambda: shipped.EMAWeightAveraging(decay=0.5),
    "SpikeDetection": shipped.SpikeDetection,
    "ThroughputMonitor": lambda: shipped.ThroughputMonitor(lambda batch: len(batch[0])),
    "WeightAveraging": shipped.WeightAveraging,
}
TABLE = {**UNCHANGED, **ONCE, **SHOWN}


def test_every_callback_of_lightning_is_in_the_table():
    assert set(shipped.__all__) == set(TABLE)
    assert len(TABLE) == len(UNCHANGED) + len(ONCE) + len(SHOWN)


@pytest.mark.parametrize("name", TABLE)
def test_the_readme_names_each(name):
    if name == "Callback":
        return
    assert f"`{name}" in SECTION, f"{name} is in no row of the README's table"


def options(name):
    given = {"max_epochs": 3}
    if "Bar" in name:
        given["enable_progress_bar"] = True
    if "Checkpoint" in name:
        given["enable_checkpointing"] = True
    return given | ({"enable_model_summary": True} if "Summary" in name else {})


class DeviceStats:
    """What takes the place of psutil, which not every machine has."""

    def __init__(self, monkeypatch):
        monkeypatch.setattr("lightning.pytorch.callbacks.device_stats_monitor._PSUTIL_AVAILABLE", True)
        monkeypatch.setattr("lightning.pytorch.accelerators.CPUAccelerator.get_device_stats", lambda *_: {"load": 1.0})


@pytest.fixture(autouse=True)
def _device_stats(monkeypatch):
    DeviceStats(monkeypatch)


@pytest.mark.narrow(13)
@pytest.mark.filterwarnings("ignore")
@ENGINES
@pytest.mark.parametrize("size", [5, -1])
@pytest.mark.parametrize("name", UNCHANGED)
def test_what_is_unchanged(name, size, engine, capfd):
    strategy = SinkStrategy(size, epoch="dataset", engine=engine)
    data = loader
    if name in ("BatchSizeFinder", "LearningRateFinder"):
        data = lambda: None  # noqa: E731 - the finders set the module's own loader anew
    plain, sink = both(Rated, data, strategy, callbacks=lambda: [TABLE[name]()], **options(name))
    assert_parity(plain, sink, exact=engine == "eager")
    assert plain.module.learning_rate == pytest.approx(sink.module.learning_rate, rel=1e-3)
    assert plain.module.batch_size == sink.module.batch_size
    if engine == "traced":
        assert not [text for text in sink.warned if "runs eagerly" in text]
        assert sink.engine == "traced"


class Number(L.Callback):
    def __init__(self):
        self.ends = 0

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.ends += 1


def without_stats(rows):
    return [(step, row) for step, row in rows if not any("DeviceStats" in name for name in row)]


@pytest.mark.narrow(11)
@ENGINES
@pytest.mark.parametrize("name", ONCE)
def test_what_is_called_once_per_sink(name, engine, capfd):
    calls = []

    class Watched(TABLE[name]().__class__):
        def on_train_batch_end(self, *given, **named):
            calls.append(1)
            return super().on_train_batch_end(*given, **named)

    Watched.__qualname__ = name  # the name in the rows

    def make():
        made = TABLE[name]()
        made.__class__ = Watched
        return [made]

    plain, sink = both(Rated, loader, SinkStrategy(5, epoch="dataset", engine=engine), callbacks=make, **options(name))
    assert len(calls) == 3 * 17 + 3 * 4
    if name == "DeviceStatsMonitor":
        # Its rows come once per sink; all others are plain Lightning's.
        stats = [[step for step, row in run.rows if any("DeviceStats" in key for key in row)] for run in (plain, sink)]
        assert set(stats[1]) < set(stats[0])
        assert {step % 17 for step in stats[1]} <= {0, 4, 5, 9, 10, 14, 15, 16}  # where sinks of 5 begin and end
        plain.rows, sink.rows = without_stats(plain.rows), without_stats(sink.rows)
    assert_parity(plain, sink, exact=engine == "eager")


@pytest.mark.narrow(11)
@pytest.mark.filterwarnings("ignore:When using the `ThroughputMonitor`, you need to define")
@pytest.mark.filterwarnings("ignore:The forked file should be committed")
@ENGINES
@pytest.mark.parametrize("name", SHOWN)
def test_what_is_shown_every_step(name, engine):
    calls = {}

    def make():
        made = TABLE[name]()
        noted = calls[len(calls)] = []
        inner = made.on_train_batch_end
        made.on_train_batch_end = lambda *given: noted.append(given[-1]) or inner(*given)
        return [made]

    plain, sink = both(Rated, loader, SinkStrategy(5, epoch="dataset", engine=engine), callbacks=make, max_epochs=3)
    assert calls[1] == calls[0] == 3 * [*range(17)]
    assert sink.engine == engine
    if name == "ThroughputMonitor":
        # Its rows are of the clock; all others are plain Lightning's.
        plain.rows, sink.rows = (
            [(step, row) for step, row in run.rows if not any("/time" in key for key in row)] for run in (plain, sink)
        )
    assert_parity(plain, sink, exact=engine == "eager")
