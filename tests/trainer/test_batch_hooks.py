"""Who looks at the batch that it is shown behind a sink, as its code says."""

from functools import partial, wraps

import lightning as L
import pytest
from lightning.pytorch.callbacks import LambdaCallback, ModelCheckpoint, ThroughputMonitor, TQDMProgressBar

from lightning_sink.trainer.batch_hooks import BatchHooks

HOOK = "on_train_batch_end"


def end_without(trainer, module, outputs, batch, batch_idx):
    return outputs, batch_idx


def end_with(trainer, module, outputs, batch, batch_idx):
    found = outputs
    return found, batch


def callback(function):
    """Returns a callback with a method, which is called with the callback itself, too."""
    return type("Callback", (L.Callback,), {HOOK: function})()


def passed_on(function):
    @wraps(function)
    def wrapped(*arguments):
        return function(*arguments)

    return wrapped


class Without(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.last = outputs["loss"], batch_idx


class With(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        last = outputs["loss"]
        batch, other = batch["x"], last
        self.last = batch, other


class ByAnotherName(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, data, number):
        self.last = len(data)


class InAFunction(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.last = lambda: batch


class ByLocals(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.last = locals()


class AtTheStart(L.Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.first = batch


class AtTheStartWithout(L.Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.first = batch_idx


class Throughput(ThroughputMonitor):
    """Is shown every batch."""

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.last = len(batch)


class OfAll(L.Callback):
    def on_train_batch_end(self, *arguments):
        self.last = arguments


CALLBACKS = [
    (Without(), False),
    (With(), True),
    (ByAnotherName(), True),
    (InAFunction(), True),
    (ByLocals(), True),
    (OfAll(), True),
    (AtTheStart(), True),
    (AtTheStartWithout(), False),
    (Throughput(len), True),
    (LambdaCallback(on_train_batch_end=end_without), False),
    (LambdaCallback(on_train_batch_end=end_with), True),
    (LambdaCallback(on_train_batch_end=partial(end_without)), True),
    (callback(staticmethod(end_without)), False),
    (callback(staticmethod(end_with)), True),
    (callback(passed_on(Without.on_train_batch_end)), True),
    (L.Callback(), False),
    (ModelCheckpoint(), False),
    (TQDMProgressBar(), False),
]


@pytest.mark.parametrize(("callback", "looks"), CALLBACKS, ids=lambda item: type(item).__name__)
def test_who_looks_at_the_batch(callback, looks):
    trainer = L.Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.callbacks = [callback]
    assert BatchHooks(trainer, False, False, None).look_at_batch is looks
