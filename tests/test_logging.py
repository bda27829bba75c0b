"""`self.log` in sinks: every option, every hook that may log, every row of the loggers."""

import lightning as L
import pytest
import torch
from torch import nn
from torchmetrics import MeanMetric

from lightning_sink import SinkStrategy
from parity import QUIET, Net, assert_parity, both, compare, loader, train

ENGINES = pytest.mark.parametrize("engine", ["eager", "traced"])
SIZES = pytest.mark.parametrize("size", [-1, 5])


def strategy(engine, size=-1):
    return SinkStrategy(size, epoch="dataset", engine=engine)


class Logging(Net):
    """Logs what a test asks for, from the hook that it asks for."""

    def __init__(self, hook="training_step", log=None):
        super().__init__()
        self.hook_that_logs, self.what = hook, log
        self.register_buffer("last", torch.zeros(()))

    def training_step(self, batch, batch_idx):
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.last.copy_(loss.detach() + len(batch[0]))
        self._here("training_step", loss)
        return loss

    def _here(self, hook, value):
        if hook == self.hook_that_logs:
            self.what(self, value)

    def on_train_batch_start(self, batch, batch_idx):
        self._here("on_train_batch_start", self.last * 2)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self._here("on_train_batch_end", outputs["loss"])

    def on_before_zero_grad(self, optimizer):
        self._here("on_before_zero_grad", self.last * 3)

    def on_before_backward(self, loss):
        self._here("on_before_backward", loss)

    def on_after_backward(self):
        self._here("on_after_backward", self.net[0].weight.grad.norm())

    def on_before_optimizer_step(self, optimizer):
        self._here("on_before_optimizer_step", self.net[4].weight.grad.abs().max())


OPTIONS = {
    "default": {},
    "step": {"on_step": True, "on_epoch": False},
    "epoch": {"on_step": False, "on_epoch": True},
    "both": {"on_step": True, "on_epoch": True},
    "prog_bar": {"prog_bar": True, "on_epoch": True},
    "no_logger": {"logger": False, "on_epoch": True},
    "mean": {"reduce_fx": "mean", "on_epoch": True},
    "sum": {"reduce_fx": "sum", "on_epoch": True},
    "min": {"reduce_fx": "min", "on_epoch": True},
    "max": {"reduce_fx": "max", "on_epoch": True},
    "torch.mean": {"reduce_fx": torch.mean, "on_epoch": True},
    "torch.sum": {"reduce_fx": torch.sum, "on_epoch": True},
    "max-step": {"reduce_fx": "max", "on_epoch": True, "on_step": False},
    "sum-epoch": {"reduce_fx": "sum", "on_epoch": True, "on_step": False},
    "batch_size": {"batch_size": 5, "on_epoch": True},
    "enable_graph": {"enable_graph": True, "on_epoch": True},
    "sync_dist": {"sync_dist": True, "on_epoch": True},
    "dataloader_idx": {"add_dataloader_idx": False, "on_epoch": True},
    "rank_zero_only": {"rank_zero_only": True, "on_epoch": True},
}


@pytest.mark.narrow(13)
@ENGINES
@pytest.mark.parametrize("options", OPTIONS)
def test_every_option_of_log(options, engine):
    def make():
        return Logging(log=lambda module, value: module.log("value", value, **OPTIONS[options]))

    plain, sink = both(make, lambda: loader(shuffle=True), strategy(engine, 5), max_epochs=2)
    assert sink.engine == engine, sink.warned
    assert_parity(plain, sink, exact=engine == "eager")
    assert plain.trainer.callback_metrics
    assert set(plain.trainer.progress_bar_metrics) == set(sink.trainer.progress_bar_metrics)
    for name, value in plain.trainer.progress_bar_metrics.items():
        assert sink.trainer.progress_bar_metrics[name] == pytest.approx(value, rel=1e-4)


def test_control_another_reduction_is_another_value():
    def make(reduction):
        return Logging(log=lambda module, value: module.log("value", value, on_epoch=True, reduce_fx=reduction))

    plain, _ = both(lambda: make("sum"), loader, strategy("eager"), max_epochs=1)
    _, sink = both(lambda: make("max"), loader, strategy("eager"), max_epochs=1)
    with pytest.raises(AssertionError):
        assert_parity(plain, sink)


HOOKS = {
    "on_train_batch_start": {"on_epoch": True},
    "on_train_batch_end": {"on_epoch": True},
    "on_before_zero_grad": {"on_step": True, "on_epoch": True},
    "on_before_backward": {"on_step": True, "on_epoch": True},
    "on_after_backward": {"on_step": True, "on_epoch": True},
    "on_before_optimizer_step": {"on_step": True},
}


@pytest.mark.narrow(13)
@ENGINES
@SIZES
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("hook", HOOKS)
def test_logging_from_every_hook_of_the_step(hook, accumulate, size, engine):
    def make():
        return Logging(hook, lambda module, value: module.log("value", value, **HOOKS[hook]))

    plain, sink = both(
        make, loader, strategy(engine, size), max_epochs=2, accumulate_grad_batches=accumulate, log_every_n_steps=2
    )
    assert sink.engine == engine, sink.warned
    assert_parity(plain, sink, exact=engine == "eager")
    assert any("value" in name for _, row in sink.rows for name in row)


def test_without_a_logger_metrics_are_as_ever():
    runs = []
    for kind in ("auto", strategy("traced")):
        torch.manual_seed(7)
        trainer = L.Trainer(strategy=kind, logger=False, **QUIET, max_epochs=2)
        trainer.fit(Net(), loader())
        runs.append(trainer.callback_metrics)
    assert set(runs[0]) == set(runs[1])
    for name, value in runs[0].items():
        assert float(runs[1][name]) == pytest.approx(float(value), rel=1e-4)


class Mixed(Net):
    """Logs numbers of Python, the rate, and several names at once."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("size", float(len(batch[0])), on_epoch=True)
        self.log("constant", 3)
        self.log("flag", True)
        self.log_dict({"a": loss.detach() * 2, "b": loss.detach() + 1}, on_epoch=True, on_step=True)
        return loss


class Rate(Net):
    def training_step(self, batch, batch_idx):
        self.log("rate", self.optimizers().param_groups[0]["lr"])
        return super().training_step(batch, batch_idx)


@pytest.mark.narrow(11)
@ENGINES
@SIZES
@pytest.mark.parametrize("make", [Mixed, lambda: Rate("sgd", "onecycle")], ids=["mixed", "rate"])
def test_numbers_of_python_and_the_learning_rate(make, size, engine):
    plain, sink = both(make, lambda: loader(), strategy(engine, size), max_epochs=2, log_every_n_steps=1)
    assert_parity(plain, sink, exact=engine == "eager")


class Computed(Net):
    """A metric whose value is logged by hand at the end of the epoch."""

    def __init__(self):
        super().__init__()
        self.mean = MeanMetric()

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.mean.update(loss.detach())
        return loss

    def on_train_epoch_end(self):
        self.log("by_hand", self.mean.compute())
        self.mean.reset()


@ENGINES
@SIZES
def test_a_metric_that_is_updated_in_the_step_and_computed_at_the_epochs_end(size, engine):
    plain, sink = both(Computed, loader, strategy(engine, size), max_epochs=3)
    assert_parity(plain, sink)


@ENGINES
def test_history_holds_the_last_sink_only(engine):
    lengths = []

    class Lengths(L.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            lengths.append({name: len(value) for name, value in trainer.strategy.history.items()})

    train(Net(), loader(), strategy(engine, 5), callbacks=[Lengths()], max_epochs=2)
    assert lengths == [{"loss": 2, "loss_forked": 2, "accuracy": 2, "largest": 2}] * 2


def test_a_wrong_log_is_the_users_error():
    def make():
        return Logging(log=lambda module, value: module.log("value", torch.ones(2)))

    with pytest.raises(ValueError, match="the tensor must have a single element"):
        train(make(), loader(), strategy("traced"), max_epochs=1)


class Overridden(Net):
    def log(self, name, value, **options):
        super().log(f"own/{name}", value, **options)


class Beside(Net):
    """Logs past its own `log`."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        L.LightningModule.log(self, "beside", loss, on_epoch=True, on_step=True)
        return loss


@ENGINES
@pytest.mark.parametrize("kind", [Overridden, Beside])
def test_a_log_of_the_users_own_is_right_and_eager(kind, engine):
    plain, sink = both(kind, loader, strategy(engine), max_epochs=2)
    assert_parity(plain, sink, exact=engine == "eager")
    assert sink.engine == "eager"
    assert {"own/accuracy", "beside"} & set(sink.trainer.callback_metrics)
    if engine == "traced":
        (warning,) = [text for text in sink.warned if "runs eagerly" in text]
        assert "LightningModule.log" in warning
        assert __file__ in warning


class LogsNumbers(Net):
    def training_step(self, batch, batch_idx):
        self.log("plain", 1001 / 7, on_step=True, on_epoch=True)
        self.log("counted", (1001 + batch_idx) / 7, on_step=True, on_epoch=True)
        return nn.functional.cross_entropy(self.net(batch[0].to(self.dtype)), batch[1])


@ENGINES
@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-true"])
def test_numbers_are_logged_as_precisely_as_by_lightning(precision, engine):
    """In float32 at least, whatever the precision of the step."""
    plain, sink = both(LogsNumbers, loader, strategy(engine), max_epochs=2, precision=precision)
    assert sink.engine == engine
    for (_, expected), (_, found) in zip(plain.rows, sink.rows, strict=True):
        for name in (name for name in expected if name.startswith(("plain", "counted"))):
            assert found[name] == pytest.approx(expected[name], rel=1e-6)


class LogsByTwoHooks(Net):
    """What is logged differs from step to step, so that steps are delivered in parts."""

    def on_train_batch_start(self, batch, batch_idx):
        self.log("early", batch[0].sum(), on_step=True, on_epoch=True)

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("index", batch_idx, on_step=False, on_epoch=True)
        if batch_idx % 4 == 0:
            self.log("some", loss * 2, on_step=True, on_epoch=True)
        return loss


@pytest.mark.narrow(13)
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("batches", [12, 17])
@pytest.mark.parametrize("size", [3, 7, -1])
def test_no_step_of_an_epoch_is_lost_to_its_metrics(size, batches, accumulate):
    kept = []

    class Keeps(L.Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            kept.append({name: float(value) for name, value in trainer.callback_metrics.items()})

    options = {"max_epochs": 4, "accumulate_grad_batches": accumulate, "callbacks": lambda: [Keeps()]}
    compare(LogsByTwoHooks, "traced", size, data=lambda: loader(batches), **options)
    for expected, found in zip(kept[:4], kept[4:], strict=True):
        assert found == pytest.approx(expected, rel=1e-4)
