"""Lightning's callbacks and the user's at the ends of sinks."""

import linecache
import re

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import (
    EarlyStopping,
    RichProgressBar,
    TQDMProgressBar,
)

from lightning_sink import CompileError, SinkStrategy
from parity import QUIET, Net, assert_parity, both, loader, train

ENGINES = pytest.mark.parametrize("engine", ["eager", "traced"])
SIZES = pytest.mark.parametrize("size", [-1, 4])


def strategy(engine, size=-1):
    return SinkStrategy(size, epoch="dataset", engine=engine)


@ENGINES
def test_early_stopping_on_a_value_of_training(engine):
    def stop():
        return [EarlyStopping("loss_forked_epoch", patience=2, min_delta=10.0)]

    plain, sink = both(Net, loader, strategy(engine, 5), callbacks=stop, max_epochs=9)
    assert_parity(plain, sink, exact=engine == "eager")
    assert plain.trainer.current_epoch == 3


@ENGINES
@SIZES
@pytest.mark.parametrize("bar", [TQDMProgressBar, RichProgressBar])
def test_progress_bars_are_right_at_the_end_of_each_sink(bar, size, engine, capsys):
    seen = []

    class Watched(bar):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
            if bar is TQDMProgressBar:
                position = self.train_progress_bar.n, self.train_progress_bar.total
            else:
                task = self.progress.tasks[self.train_progress_bar_id]
                position = int(task.completed), int(task.total)
            metrics = self.get_metrics(trainer, pl_module)
            seen.append((batch_idx, *position, "loss_forked_step" in metrics, self.total_train_batches))

    trainer = L.Trainer(
        strategy=strategy(engine, size), callbacks=[Watched()], logger=False, max_epochs=2,
        **{**QUIET, "enable_progress_bar": True},
    )  # fmt: skip
    trainer.fit(Net(), loader())
    ends = [16] if size == -1 else [3, 7, 11, 15, 16]
    assert seen == [(end, end + 1, 17, True, 17) for end in ends] * 2


class Looks(L.Callback):
    def __init__(self):
        self.norms = []

    def on_after_backward(self, trainer, pl_module):
        self.norms.append(float(pl_module.net[0].weight.grad.norm()))


class Scales(L.Callback):
    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        for parameter in pl_module.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)


class Clears(L.Callback):
    def on_before_zero_grad(self, trainer, pl_module, optimizer):
        with torch.no_grad():
            pl_module.net[0].weight.mul_(0.99)


class Backs(L.Callback):
    def on_before_backward(self, trainer, pl_module, loss):
        with torch.no_grad():
            pl_module.net[0].weight.mul_(0.999)


@pytest.mark.parametrize("kind", [Looks, Scales, Clears, Backs])
def test_a_callback_inside_the_step_makes_it_eager_with_its_line(kind):
    callbacks = []

    def make():
        callbacks.append(kind())
        return [callbacks[-1]]

    plain, sink = both(Net, loader, strategy("traced"), callbacks=make, max_epochs=2)
    assert_parity(plain, sink, exact=True)
    assert sink.engine == "eager"
    (warning,) = [text for text in sink.warned if "runs eagerly" in text]
    hook = next(name for name in vars(kind) if name.startswith("on_"))
    assert f"callback `{kind.__name__}` overrides `{hook}`" in warning
    path, line = re.search(r"called at every step \((.*?):(\d+)\)", warning).groups()
    assert path == __file__
    assert f"def {hook}" in linecache.getline(path, int(line))
    if kind is Looks:
        assert callbacks[0].norms == callbacks[1].norms
        assert len(callbacks[1].norms) == 34


def test_control_without_that_callback_there_is_no_warning():
    _, sink = both(Net, loader, strategy("traced"), max_epochs=2)
    assert sink.engine == "traced"
    assert not [text for text in sink.warned if "runs eagerly" in text]


def test_the_fallback_can_be_an_error_that_says_the_same():
    with pytest.raises(CompileError, match="callback `Looks` overrides `on_after_backward`"):
        train(Net(), loader(), SinkStrategy(engine="traced", fallback="error"), callbacks=[Looks()], max_epochs=1)


class Notes(L.Callback):
    """Logs from the batch hooks."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.log("started", float(batch_idx), on_step=True, on_epoch=False)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        pl_module.log("ended", outputs["loss"].detach(), on_step=True, on_epoch=False)


@ENGINES
def test_a_callback_that_logs(engine):
    # Epochs and sinks that end where rows are due: the callback's hooks are called there and nowhere else.
    plain, sink = both(Net, lambda: loader(15), strategy(engine, 3), callbacks=lambda: [Notes()], max_epochs=2)
    by_step = {step: row for step, row in plain.rows if "ended" in row}
    rows = [(step, row) for step, row in sink.rows if "ended" in row]
    assert [step for step, _ in rows] == [step for step, row in plain.rows if "ended" in row]
    for step, row in rows:
        assert row["ended"] == pytest.approx(by_step[step]["ended"], rel=1e-4)
    assert sink.trainer.callback_metrics["ended"] == pytest.approx(
        float(plain.trainer.callback_metrics["ended"]), rel=1e-4
    )


class Drops(L.Callback):
    """Changes hyperparameters where a sink ends."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx % 4 == 3:
            for group in trainer.optimizers[0].param_groups:
                group["lr"] *= 0.5
                group["weight_decay"] = 0.1
            pl_module.net[3].p = 0.4


@ENGINES
def test_a_callback_that_changes_hyperparameters(engine):
    plain, sink = both(Net, lambda: loader(16), strategy(engine, 4), callbacks=lambda: [Drops()], max_epochs=3)
    assert_parity(plain, sink, exact=engine == "eager")
    assert sink.engine == engine


def test_hooks_are_called_with_the_first_and_the_last_batch():
    seen = []

    class Batches(L.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            seen.append(("start", batch_idx, batch[0].sum().item()))

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            seen.append(("end", batch_idx, batch[0].sum().item()))

    train(Net(), loader(), strategy("traced", 6), callbacks=[Batches()], max_epochs=1)
    sums = [x.sum().item() for x, _ in loader()]
    bounds = [(0, 5), (6, 11), (12, 16)]
    assert seen == [
        event for first, last in bounds for event in (("start", first, sums[first]), ("end", last, sums[last]))
    ]
