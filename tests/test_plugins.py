"""Precision plugins and strategies of the user's own take part in each step: what they hold counts."""

import lightning as L
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.strategies import SingleDeviceStrategy

import positions
from lightning_sink import SinkStrategy
from parity import Net, assert_parity, loader, once

ENGINES = pytest.mark.parametrize("engine", ["eager", "traced"])


class Counts(Precision):
    """Halves the loss from some step on."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def pre_backward(self, tensor, module):
        self.seen += 1
        return super().pre_backward(tensor * (1.0 if self.seen <= 10 else 0.5), module)


class Scales(Precision):
    """Scales gradients by a number that a callback sets."""

    factor = 1.0

    def clip_gradients(self, optimizer, clip_val=0.0, gradient_clip_algorithm=None):
        for parameter in self.main_params(optimizer):
            if parameter.grad is not None:
                parameter.grad.mul_(self.factor)


class Averages(Precision):
    """Keeps an average of the loss."""

    def __init__(self):
        super().__init__()
        self.average = torch.zeros(())

    def pre_backward(self, tensor, module):
        self.average.mul_(0.9).add_(tensor.detach(), alpha=0.1)
        return super().pre_backward(tensor * (1 + self.average), module)


class Enters(Precision):
    """Counts how often its context is entered."""

    entered = 0

    def forward_context(self):
        self.entered += 1
        return torch.autocast("cpu", torch.bfloat16, enabled=self.entered > 10)


class Mixed(MixedPrecision):
    def __init__(self):
        super().__init__("bf16-mixed", "cpu")
        self.seen = 0

    def post_backward(self, tensor, module):
        self.seen += 1
        for parameter in module.parameters():
            if parameter.grad is not None and self.seen > 10:
                parameter.grad.mul_(0.5)
        return super().post_backward(tensor, module)


class Sets(L.Callback):
    """Sets the plugin's number between epochs, or in the midst of one."""

    def __init__(self, at=None):
        self.at = at

    def on_train_epoch_end(self, trainer, pl_module):
        trainer.precision_plugin.factor *= 0.3

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == self.at:
            trainer.precision_plugin.factor *= 0.3


def compared(plugin, engine, callbacks=list, sink_size=-1, tolerance=1e-4, **options):
    runs = [
        once(Net, lambda: loader(60), strategy, plugins=[plugin()], callbacks=callbacks, max_epochs=3, **options)
        for strategy in ("auto", SinkStrategy(sink_size, epoch="dataset", engine=engine))
    ]
    assert_parity(*runs, exact=engine == "eager", tolerance=tolerance)
    return runs


@pytest.mark.narrow(11)
@ENGINES
@pytest.mark.parametrize("plugin", [Counts, Averages, Enters, Mixed], ids=lambda plugin: plugin.__name__)
def test_state_of_a_plugins_own(plugin, engine):
    plain, sink = compared(plugin, engine, tolerance=2e-2 if plugin in (Mixed, Enters) else 1e-4)
    for name, value in vars(plain.trainer.precision_plugin).items():
        found = getattr(sink.trainer.precision_plugin, name)
        if isinstance(value, (int, torch.Tensor)):
            torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-6)
    if plugin is Averages or positions.KNOWN:  # from Python 3.11 on
        assert not [text for text in sink.warned if "runs eagerly" in text]


@ENGINES
def test_numbers_that_are_set_between_epochs(engine):
    compared(Scales, engine, callbacks=lambda: [Sets()], gradient_clip_val=0.5)


@ENGINES
def test_numbers_that_are_set_behind_a_sink(engine):
    compared(Scales, engine, callbacks=lambda: [Sets(at=29)], sink_size=30, gradient_clip_val=0.5)


class OnItsOwn:
    """Halves the loss from some step on, and scales it by a number that others may set."""

    factor = 1.0

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen, self.active = 0, 1.0

    def backward(self, closure_loss, *args, **kwargs):
        self.seen += self.counts
        scale = (lambda: self.factor * self.active)()
        return super().backward(closure_loss * (1.0 if self.seen <= 10 else 0.5) * scale, *args, **kwargs)


class Plain(OnItsOwn, SingleDeviceStrategy):
    counts = 1


class Sinks(OnItsOwn, SinkStrategy):
    counts = 1


class SetsFactor(L.Callback):
    """Sets what the strategy looks at, under a name of its own or one that ours use for something else."""

    def __init__(self, name):
        self.name = name

    def on_train_epoch_end(self, trainer, pl_module):
        setattr(trainer.strategy, self.name, 0.3 * getattr(trainer.strategy, self.name))


@pytest.mark.narrow(11)
@ENGINES
@pytest.mark.parametrize("name", ["factor", "active"])
@pytest.mark.parametrize("counts", [0, 1])
def test_a_strategy_of_the_users_own(engine, counts, name, monkeypatch):
    for kind in (Plain, Sinks):
        monkeypatch.setattr(kind, "counts", counts)
    strategies = Plain("cpu"), Sinks(-1, epoch="dataset", engine=engine)
    runs = [
        once(Net, lambda: loader(60), strategy, callbacks=lambda: [SetsFactor(name)], max_epochs=3)
        for strategy in strategies
    ]
    assert_parity(*runs, exact=engine == "eager")
    assert strategies[0].seen == strategies[1].seen
    assert runs[1].engine == ("eager" if counts else engine)


class InFullFromTheSecondEpoch(L.Callback):
    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 1:
            trainer.strategy.precision_plugin = Precision()


class Typed(Net):
    def training_step(self, batch, batch_idx):
        self.kind = str(self.net[0](batch[0]).dtype)
        return super().training_step(batch, batch_idx)


def test_another_precision_plugin_in_the_middle_of_a_training():
    strategies = "auto", SinkStrategy(-1, epoch="dataset", engine="traced")
    options = {"precision": "bf16-mixed", "callbacks": lambda: [InFullFromTheSecondEpoch()], "max_epochs": 3}
    plain, sink = (once(Typed, lambda: loader(9, last=8), strategy, **options) for strategy in strategies)
    assert_parity(plain, sink, tolerance=2e-2)
    assert plain.module.kind == sink.module.kind == "torch.float32"
