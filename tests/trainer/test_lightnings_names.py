"""The names of Lightning and torchmetrics that are not public: an upgrade that takes one away fails here, by name."""

import lightning as L
import pytest
from lightning.pytorch import callbacks, loggers
from lightning.pytorch.loops import fetchers, fit_loop, training_epoch_loop
from lightning.pytorch.plugins.io import wrapper
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.connectors.logger_connector import logger_connector, result
from lightning.pytorch.tuner import lr_finder
from lightning.pytorch.utilities import imports
from torchmetrics import MetricCollection
from torchmetrics.aggregation import MeanMetric

from parity import QUIET, Net, loader

OF_EPOCH_LOOP = [
    "batch_progress", "automatic_optimization", "manual_optimization", "update_lr_schedulers", "_build_kwargs",
    "_should_accumulate", "_num_ready_batches_reached", "_batches_that_stepped", "_warning_cache", "_results",
    "_should_check_val_fx", "val_loop", "_is_training_done",
    "_save_loggers_on_train_batch_end", "scheduler_progress",
]  # fmt: skip
OF_FIT_LOOP = ["_combined_loader", "_data_source", "_data_fetcher", "epoch_loop"]
OF_TRAINER = ["_logger_connector", "_data_connector", "_results", "received_sigterm", "_val_check_time_interval"]
OF_CONNECTOR = ["on_batch_start", "on_batch_end", "update_train_step_metrics", "log_metrics", "metrics"]
OF_CONNECTOR += ["callback_metrics", "logged_metrics", "progress_bar_metrics", "should_update_logs"]
OF_CHECKPOINT = ["_every_n_train_steps", "_train_time_interval", "_last_time_checked", "_last_global_step_saved"]
OF_PROGRESS = ["ready", "started", "processed", "completed", "increment_by"]


@pytest.fixture(scope="module")
def trainer():
    made = L.Trainer(max_steps=1, **QUIET)
    made.fit(Net(), loader())
    return made


def missing(owner, names):
    return [f"{type(owner).__name__}.{name} is gone" for name in names if not hasattr(owner, name)]


def test_of_the_trainer_and_its_loops(trainer):
    loop = trainer.fit_loop.epoch_loop
    progress, optimizer = loop.batch_progress, loop.automatic_optimization.optim_progress.optimizer
    assert missing(trainer, OF_TRAINER) == []
    assert missing(type(trainer._logger_connector), OF_CONNECTOR) == []
    kept = ["_first_loop_iter", "_progress_bar_metrics", "_callback_metrics", "_logged_metrics"]
    assert missing(trainer._logger_connector, kept) == []
    assert missing(trainer._data_connector, ["_datahook_selector"]) == []
    assert missing(trainer.fit_loop, OF_FIT_LOOP) == []
    assert missing(loop, OF_EPOCH_LOOP) == []
    assert missing(progress, ["total", "current", "is_last_batch"]) == []
    assert missing(progress.total, OF_PROGRESS) == []
    assert missing(optimizer, ["step", "zero_grad"]) == []
    assert missing(loop.manual_optimization, ["optim_step_progress"]) == []
    assert missing(loop.automatic_optimization, ["_skip_backward"]) == []


def test_of_the_module(trainer):
    assert missing(trainer.lightning_module, ["_current_fx_name", "_on_before_batch_transfer", "_trainer"]) == []


def test_of_modules_and_classes():
    assert missing(call, ["_call_lightning_module_hook", "_call_strategy_hook"]) == []
    assert missing(fetchers, ["_DataFetcher", "_profile_nothing"]) == []
    assert missing(fit_loop, ["_FitLoop"]) == []
    assert missing(training_epoch_loop, ["_TrainingEpochLoop"]) == []
    assert missing(lr_finder, ["_LRCallback"]) == []
    assert missing(wrapper, ["_WrappingCheckpointIO"]) == []
    assert missing(imports, ["_RICH_AVAILABLE"]) == []
    assert missing(logger_connector, ["_LoggerConnector"]) == []
    assert missing(callbacks.ModelCheckpoint("kept"), OF_CHECKPOINT) == []
    assert missing(callbacks.Timer("00:00:01:00"), ["_interval"]) == []


def test_of_metrics():
    metric = MeanMetric()
    names = ["_forward_cache", "_defaults", "_reductions", "_update_count", "_computed", "_is_synced", "_filter_kwargs"]
    names += ["_to_sync", "_enable_grad"]
    assert missing(metric, names) == []
    assert missing(MetricCollection({"a": metric}), ["_groups", "_groups_checked", "_enable_compute_groups"]) == []
    logged = result._ResultMetric(result._Metadata("training_step", "loss"), True)
    assert missing(logged, ["value", "_forward_cache"]) == []
    assert "value" in vars(logged), "what was logged is no attribute any more"
    assert {"update", "compute"} <= set(vars(metric)), "`update` and `compute` are no attributes any more"


def test_control_a_name_that_is_gone_is_told():
    assert missing(call, ["_call_nothing"]) == ["module._call_nothing is gone"]


def test_of_loggers(trainer, tmp_path):
    dry = L.Trainer(fast_dev_run=True, accelerator="cpu")
    dry.fit(Net(), loader())
    assert type(dry.logger.experiment).__module__ == "lightning.fabric.loggers.logger", "a dry run has another writer"
    board = loggers.TensorBoardLogger(tmp_path).experiment
    assert type(board).__module__ == "torch.utils.tensorboard.writer", "TensorBoardLogger has another writer"
    assert missing(board, ["add_scalar", "add_scalars"]) == []
    for kind in (L.LightningModule, L.Trainer):
        assert isinstance(vars(kind)["logger"], property)
        assert isinstance(vars(kind)["loggers"], property)
    board.close()
