"""Options of the Trainer: each means in sinks what it means in plain Lightning."""

from datetime import timedelta

import torch
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch.callbacks import ModelCheckpoint, ModelSummary, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.plugins import AsyncCheckpointIO, MixedPrecision
from lightning.pytorch.profilers import AdvancedProfiler, PassThroughProfiler, PyTorchProfiler, SimpleProfiler
from torch import nn
from torch.utils.data import DataLoader

from gallery.case import Small, add, case
from parity import loader


class Logged(Small):
    """Logs, and has every step that a Trainer runs."""

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch), prog_bar=True)

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self.loss(batch))

    def predict_step(self, batch, batch_idx):
        return self(batch[0])

    def val_dataloader(self):
        return DataLoader(loader(4).dataset, 8)


class Normalized(Logged):
    def __init__(self):
        super().__init__()
        # No bias in front of the normalization: its gradient is nothing but rounding.
        self.net[0] = nn.Linear(6, 8, bias=False)
        self.net.insert(1, nn.BatchNorm1d(8))


class Stopping(Logged):
    """Asks for the end of the training early."""

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if batch_idx == 6:
            self.trainer.should_stop = True


case(options={"num_sanity_val_steps": 2})(Logged)

LENGTHS = {
    "overfitting batches": {"overfit_batches": 3},
    "overfitting a part": {"overfit_batches": 0.5},
    "a run for development": {"fast_dev_run": True},
    "a run of three batches for development": {"fast_dev_run": 3},
    "a time that is not reached": {"max_time": {"hours": 1}},
    "a time that is not reached as text": {"max_time": "00:01:00:00"},
    "a time that is not reached as a delta": {"max_time": timedelta(hours=1)},
    "a time that is over at once": {"max_time": timedelta(0)},
    "no epochs": {"max_epochs": 0},
    "no steps": {"max_steps": 0},
    "steps in an epoch": {"max_steps": 7},
    "steps over epochs": {"max_steps": 21},
    "more steps than epochs": {"max_steps": 100},
    "steps in epochs without end": {"max_steps": 40, "max_epochs": -1},
    "steps that accumulate": {"max_steps": 5, "accumulate_grad_batches": 4},
    "a number of batches": {"limit_train_batches": 7},
    "a part of the batches": {"limit_train_batches": 0.4},
    "one batch": {"limit_train_batches": 1},
    "no batches": {"limit_train_batches": 0},
    "a number of batches for validation": {"limit_val_batches": 1},
    "a part of the batches for validation": {"limit_val_batches": 0.5},
    "no validation": {"limit_val_batches": 0},
    "no sanity check": {"num_sanity_val_steps": 0},
    "a whole sanity check": {"num_sanity_val_steps": -1},
    "validation by batches": {"val_check_interval": 5},
    "validation by a part of the epoch": {"val_check_interval": 0.3},
    "validation over epochs": {"val_check_interval": 7, "check_val_every_n_epoch": None},
    "validation at every second epoch": {"check_val_every_n_epoch": 2, "max_epochs": 4},
    "validation by a time": {"val_check_interval": "00:01:00:00"},
    "data that is loaded anew": {"reload_dataloaders_every_n_epochs": 1},
    "data that is loaded anew at times": {"reload_dataloaders_every_n_epochs": 2, "max_epochs": 4},
}
FEW = ["a run for development", "a run of three batches for development", "a time that is over at once"]
FEW += ["no epochs", "no steps", "one batch", "no batches"]
for name, given in LENGTHS.items():
    add(name, Logged, options=given, few=name in FEW)
for name, given in {
    "a stop": {},
    "a stop that waits for steps": {"min_steps": 12},
    "a stop that waits for steps of another epoch": {"min_steps": 20},
    "a stop that waits for epochs": {"min_epochs": 2, "max_epochs": 4},
    "a stop that waits for both": {"min_epochs": 1, "min_steps": 21, "max_epochs": 4},
}.items():
    add(name, Stopping, options=given, few=name == "a stop")

# -- what happens in a step -------------------------------------------------------------------------------------------

STEPS = {
    "clipping by norm": {"gradient_clip_val": 0.1},
    "clipping by norm by its name": {"gradient_clip_val": 0.1, "gradient_clip_algorithm": "norm"},
    "clipping by value": {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    "clipping that does nothing": {"gradient_clip_val": 0.0},
    "accumulation": {"accumulate_grad_batches": 3},
    "accumulation of more than an epoch": {"accumulate_grad_batches": 30},
    "accumulation and clipping": {"accumulate_grad_batches": 5, "gradient_clip_val": 0.1},
    "deterministic algorithms": {"deterministic": True},
    "deterministic algorithms with a warning": {"deterministic": "warn"},
    "no deterministic algorithms": {"deterministic": False},
    "no benchmark": {"benchmark": False},
    "no inference mode": {"inference_mode": False, "val_check_interval": 5},
}
for name, given in STEPS.items():
    add(name, Normalized, options=given, inductor=name == "accumulation and clipping")
add("detecting anomalies", Logged, options={"detect_anomaly": True}, eager="detect_anomaly")

# -- what is around the training --------------------------------------------------------------------------------------

AROUND = {
    "one device": {"devices": 1, "num_nodes": 1},
    "one device in a list of processes": {"devices": "1"},
    "no distributed sampler": {"use_distributed_sampler": False},
    "normalization over one process": {"sync_batchnorm": True},
    "a row for each step": {"log_every_n_steps": 1},
    "a row for few steps": {"log_every_n_steps": 20},
    "no rows": {"log_every_n_steps": 0},
    "a directory": {"default_root_dir": "somewhere"},
    "no hyperparameters for loggers": {"enable_autolog_hparams": False},
    "a summary": {"enable_model_summary": True},
    "a summary of its own": {"enable_model_summary": True, "callbacks": lambda: [ModelSummary(max_depth=2)]},
    "a progress bar": {"enable_progress_bar": True},
    "a slow progress bar": {"enable_progress_bar": True, "callbacks": lambda: [TQDMProgressBar(refresh_rate=5)]},
    "a simple profiler": {"profiler": "simple"},
    "an advanced profiler": {"profiler": "advanced"},
    "a profiler of pytorch": {"profiler": "pytorch"},
    "a simple profiler as an object": {"profiler": lambda: SimpleProfiler(extended=True)},
    "an advanced profiler that writes": {"profiler": lambda: AdvancedProfiler(dirpath=".", filename="profile")},
    "a profiler of pytorch with shapes": {"profiler": lambda: PyTorchProfiler(record_shapes=True)},
    "no profiler": {"profiler": PassThroughProfiler},
    "an environment": {"plugins": lambda: [LightningEnvironment()]},
    "checkpoints by a plugin": {"plugins": lambda: [TorchCheckpointIO()], "enable_checkpointing": True},
    "checkpoints beside the training": {"plugins": lambda: [AsyncCheckpointIO()], "enable_checkpointing": True},
}
for name, given in AROUND.items():
    add(name, Normalized, options=given, ordered="advanced profiler" not in name)
add("a precision plugin", Logged, options={"plugins": lambda: [MixedPrecision("bf16-mixed", "cpu")]}, tolerance=5e-2)
add("a precision by name", Logged, options={"precision": "bf16-mixed"}, tolerance=5e-2)
add("double precision", Logged, options={"precision": "64-true"})

LOGGERS = {
    "a file of rows": lambda: [CSVLogger("rows", flush_logs_every_n_steps=1)],
    "tensorboard": lambda: [TensorBoardLogger("boards", log_graph=False)],
    "several loggers": lambda: [CSVLogger("rows"), CSVLogger("more", prefix="x"), TensorBoardLogger("boards")],
}
for name, loggers in LOGGERS.items():
    add(name, Logged, loggers=loggers)

# -- checkpoints ------------------------------------------------------------------------------------------------------

CHECKPOINTS = {
    "by default": {},
    "the last": {"save_last": True},
    "the best": {"monitor": "val_loss", "save_top_k": 2, "mode": "max"},
    "by a value of steps": {"monitor": "loss_step", "every_n_train_steps": 3, "save_top_k": 2},
    "all of some steps": {"every_n_train_steps": 5, "save_top_k": -1},
    "all epochs": {"every_n_epochs": 1, "save_top_k": -1},
    "by the clock": {"train_time_interval": timedelta(hours=1)},
    "at epochs ends": {"save_on_train_epoch_end": True, "monitor": "loss_epoch"},
    "of weights": {"save_weights_only": True, "every_n_train_steps": 4},
    "none": {"save_top_k": 0},
}
for name, given in CHECKPOINTS.items():
    add(
        f"checkpoints, {name}",
        Logged,
        options={
            "enable_checkpointing": True,
            "val_check_interval": 0.5,
            "callbacks": lambda given=given: [ModelCheckpoint("kept", filename="{step}-{epoch}", **given)],
        },
    )


# -- compiled models --------------------------------------------------------------------------------------------------


# (Dynamo of torch 2.13 does not get through `self.log`, in plain Lightning either.)


@case(inductor=True)
def a_compiled_module():
    return torch.compile(Small(), backend="aot_eager")


class ReadsItsIndex(Small):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) * (1 + batch_idx % 2)


@case()
def a_compiled_module_that_reads_its_index():
    return torch.compile(ReadsItsIndex(), backend="aot_eager")


class CountsInItsLayers(Logged):
    """Compiled code is left out while a step is recorded, so that nothing hides in it."""

    def __init__(self):
        super().__init__()
        self.layers = torch.compile(self.through, backend="aot_eager")

    def through(self, x):
        return self.net(x) * (1 + self.trainer.global_step % 2)

    def forward(self, x):
        return self.layers(x)


case()(CountsInItsLayers)


@case()
class CompilesItsLayers(Logged):
    def __init__(self):
        super().__init__()
        self.net = torch.compile(self.net, backend="aot_eager")


@case()
class CompilesItsLayersByInductor(Logged):
    def __init__(self):
        super().__init__()
        self.net = torch.compile(self.net)


@case()
class CompilesItsLayersInOneGraph(Logged):
    """The layers are compiled in the validation; while a step is recorded they are not, and not refused either."""

    def __init__(self):
        super().__init__()
        torch._dynamo.reset()  # other cases have compiled such layers, and no more than eight are
        self.net = torch.compile(self.net, backend="aot_eager", fullgraph=True)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def val_dataloader(self):
        return loader(3)


@case()
class CompilesItsLossInOneGraph(Logged):
    def __init__(self):
        super().__init__()
        torch._dynamo.reset()
        self.criterion = torch.compile(nn.functional.cross_entropy, backend="aot_eager", fullgraph=True)

    def loss(self, batch):
        x, y = batch
        return self.criterion(self(x), y)


@case()
class CompilesItsLayersInPlace(Logged):
    def __init__(self):
        super().__init__()
        self.net.compile(backend="aot_eager")
