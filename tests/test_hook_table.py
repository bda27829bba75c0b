"""Every hook there is: what a sink makes of it, and that the README says so."""

import re
import warnings

import lightning as L
import pytest
import torch
from lightning.pytorch.core.hooks import CheckpointHooks, DataHooks, ModelHooks

from gallery.case import Small
from gallery.recorder import recorded
from lightning_sink import SinkStrategy
from parity import QUIET, Events, Rows, both, loader, train
from test_callback_table import ENGINES, SECTION, Rated

# -- hooks ------------------------------------------------------------------------------------------------------------

OWN = "training_step validation_step test_step predict_step configure_callbacks configure_optimizers backward"
OWN += " configure_gradient_clipping lr_scheduler_step optimizer_step optimizer_zero_grad"
HOOKS = {name for kind in (ModelHooks, DataHooks, CheckpointHooks, L.Callback) for name in vars(kind)}
HOOKS = sorted({name for name in HOOKS if not name.startswith("_")} | set(OWN.split()))


def named(text):
    """Returns the hooks that a text names; `on_fit_start/end` names two."""
    found = set()
    for quoted in re.findall(r"`([\w./]+)`", text):
        first, *others = quoted.removeprefix("Callback.").split("/")
        found |= {first, *(first.rsplit("_", 1)[0] + "_" + other for other in others)}
    return found


def test_hooks_are_those_that_lightning_has():
    overridable = {name for name in dir(L.LightningModule) if re.match("on_|configure_|.*_step$|.*_dataloader$", name)}
    assert overridable - {"on_gpu", "global_step"} <= set(HOOKS)
    assert len(HOOKS) > 60


@pytest.mark.parametrize("hook", HOOKS)
def test_the_readme_names_each_hook(hook):
    names = named(SECTION)
    # One row speaks of validation and of what is like it.
    alike = {re.sub("(test|predict)", "validation", hook), re.sub("(test|predict)", "val", hook)}
    assert hook in names or ("and the same of `test` and `predict`" in SECTION and alike & names)


PER_STEP = {"on_before_zero_grad", "on_before_backward", "on_after_backward", "on_before_optimizer_step", "backward"}
PER_STEP |= {"training_step", "configure_gradient_clipping", "optimizer_step", "optimizer_zero_grad"}
PER_STEP |= {"on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer", "lr_scheduler_step"}
BATCH = {"on_train_batch_start", "on_train_batch_end"}


class Everything(L.Callback):
    """Overrides each hook that no step calls."""


for _name in HOOKS:
    if _name not in PER_STEP | BATCH and hasattr(L.Callback, _name) and _name.startswith("on_"):
        setattr(Everything, _name, lambda self, *_, **__: None)


class Scheduled(Rated):
    def configure_optimizers(self):
        (optimizer,), _ = super().configure_optimizers()
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9), "interval": "step"}]


def calls_of(strategy, **given):
    trainer = L.Trainer(
        strategy=strategy, logger=Rows(), callbacks=[Events(), Everything()],
        **{**QUIET, "max_epochs": 2, "val_check_interval": 7, "enable_checkpointing": True, **given},
    )  # fmt: skip
    torch.manual_seed(7)
    module, calls = Scheduled(), []
    with warnings.catch_warnings(), recorded(trainer, module, calls):
        warnings.simplefilter("ignore", category=UserWarning)
        trainer.fit(module, loader())
    return calls


@pytest.mark.parametrize("size", [4, -1])
def test_hooks_that_no_step_calls_are_unchanged(size):
    plain, sink = calls_of("auto"), calls_of(SinkStrategy(size, epoch="dataset", engine="eager"))

    def others(calls):
        return [call for call in calls if call[1] not in PER_STEP | BATCH]

    assert others(plain) == others(sink)
    assert len({name for _, name, _ in others(plain)}) > 20


@pytest.mark.parametrize("size", [4, -1])
def test_hooks_of_each_step_are_called_at_each_step(size):
    plain, sink = calls_of("auto"), calls_of(SinkStrategy(size, epoch="dataset", engine="eager"))
    for hook in PER_STEP | BATCH:
        counts = [sum(1 for owner, name, _ in calls if (owner, name) == ("Scheduled", hook)) for calls in (plain, sink)]
        assert counts[0] == counts[1]
        assert counts[0] >= 34
    for hook in BATCH:
        assert sum((owner, name) == ("Events", hook) for owner, name, _ in sink) == (10 if size == 4 else 6)


# -- what the README says of callbacks that users write ---------------------------------------------------------------


class LogsItself(L.Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.log("index", float(batch_idx), on_step=False, on_epoch=True)


def test_a_callback_logs_once_per_sink():
    plain, sink = both(
        Small, loader, SinkStrategy(4, epoch="dataset", engine="eager"), callbacks=lambda: [LogsItself()], max_epochs=1
    )
    assert plain.trainer.callback_metrics["index"] != sink.trainer.callback_metrics["index"]
    assert "what it logs there, it logs once per sink" in SECTION


class StopsAt(L.Callback):
    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        trainer.should_stop = trainer.global_step >= self.step


@ENGINES
@pytest.mark.parametrize(("step", "ends"), [(8, 8), (10, 12), (15, 16), (17, 17)])
def test_a_callback_stops_the_training_where_its_sink_ends(step, ends, engine):
    run = train(Small(), loader(), SinkStrategy(4, epoch="dataset", engine=engine), callbacks=[StopsAt(step)])
    assert run.trainer.global_step == ends


def test_lightning_has_no_other_place_for_hooks():
    assert {name for name in vars(L.LightningDataModule) if name.startswith("on_")} <= set(HOOKS)
