"""Callbacks that training scripts are made of, in sinks and in plain Lightning."""

import datetime
import itertools
import time

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateMonitor,
    ModelCheckpoint,
    StochasticWeightAveraging,
    Timer,
    TQDMProgressBar,
)
from torch import nn

from lightning_sink import SinkDataModule, SinkStrategy
from parity import QUIET, ContinuedLoader, Net, assert_parity, both, loader, train

ENGINES = ["eager", "traced"]


def pair(engine, callbacks=list, make=None, data=None, size=7, epoch="dataset", compiled=True, **options):
    """Trains plain and in sinks and asserts that both are one training."""
    make = make or (lambda: Net("adam", "step"))
    strategy = SinkStrategy(size, epoch=epoch, engine=engine)
    options = {"max_epochs": 3, **options}
    plain, sink = both(make, data or (lambda: loader(shuffle=True)), strategy, callbacks=callbacks, **options)
    if compiled:
        assert sink.engine == engine, sink.warned
    assert_parity(plain, sink, exact=engine == "eager")
    return plain, sink


def of(run, kind):
    return next(callback for callback in run.trainer.callbacks if isinstance(callback, kind))


class EpochRates(L.Callback):
    """Sets another weight decay at each epoch's start; a control leaves it as it is in sinks."""

    def __init__(self, only_plain=False):
        self.only_plain = only_plain

    def on_train_epoch_start(self, trainer, pl_module):
        if self.only_plain and isinstance(trainer.strategy, SinkStrategy):
            return
        for group in trainer.optimizers[0].param_groups:
            group["weight_decay"] = 0.3 * (trainer.current_epoch + 1)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_weight_decay_of_each_epochs_own(engine):
    _, sink = pair(engine, lambda: [EpochRates()], lambda: Net("adamw"))
    assert sink.trainer.optimizers[0].param_groups[0]["weight_decay"] == pytest.approx(0.9)


@pytest.mark.parametrize("engine", ENGINES)
def test_control_a_callback_that_did_nothing_is_seen(engine):
    with pytest.raises(AssertionError):
        pair(engine, lambda: [EpochRates(only_plain=True)], lambda: Net("adamw"))


# -- stopping -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "options", [{"monitor": "val_loss"}, {"monitor": "loss_forked_epoch", "check_on_train_epoch_end": True}], ids=str
)
def test_early_stopping(options, engine):
    plain, sink = pair(
        engine, lambda: [EarlyStopping(**options, min_delta=10.0, patience=1)], max_epochs=5, val_check_interval=8,
        validation=loader(2),
    )  # fmt: skip
    stopped = [of(run, EarlyStopping) for run in (plain, sink)]
    assert stopped[0].stopped_epoch == stopped[1].stopped_epoch
    assert stopped[0].wait_count == stopped[1].wait_count
    assert plain.trainer.current_epoch < 5


class StopsAt(L.Callback):
    def __init__(self, batches):
        self.batches = batches

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.fit_loop.total_batch_idx + 1 >= self.batches:
            trainer.should_stop = True


@pytest.mark.parametrize("at", [14, 17, 24])
@pytest.mark.parametrize(("accumulate", "engine"), [(1, "eager"), (2, "traced")])
def test_a_callback_stops_the_training_at_a_sinks_end(accumulate, at, engine):
    _, sink = pair(engine, lambda: [StopsAt(at)], accumulate_grad_batches=accumulate, validation=loader(2))
    assert sink.trainer.fit_loop.total_batch_idx + 1 == at


@pytest.mark.parametrize("engine", ENGINES)
def test_stopping_waits_for_the_least_number_of_steps(engine):
    pair(engine, lambda: [StopsAt(7)], min_steps=21, max_epochs=3)


class StopsItself(Net):
    """Stops from one of its own hooks, in the middle of a sink."""

    def __init__(self, hook, at=10):
        super().__init__("adam", "onecycle")
        self.hook, self.at = hook, at

    def stop(self, hook):
        if hook == self.hook and self.trainer.fit_loop.total_batch_idx + 1 == self.at:
            self.trainer.should_stop = True

    def training_step(self, batch, batch_idx):
        self.stop("training_step")
        return super().training_step(batch, batch_idx)

    def on_train_batch_start(self, batch, batch_idx):
        self.stop("on_train_batch_start")

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.stop("on_train_batch_end")

    def lr_scheduler_step(self, scheduler, metric):
        self.stop("lr_scheduler_step")
        super().lr_scheduler_step(scheduler, metric)


@pytest.mark.narrow(11)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("hook", ["training_step", "on_train_batch_start", "on_train_batch_end", "lr_scheduler_step"])
def test_a_module_stops_the_training_at_once(hook, engine):
    _, sink = pair(engine, make=lambda: StopsItself(hook), size=-1, compiled=False, validation=loader(2))
    assert sink.trainer.global_step == 10
    assert sink.events.ends == [9]


class StopsInTransfer(Net):
    """No hook that takes part in the compiled step stops it."""

    def on_before_batch_transfer(self, batch, dataloader_idx):
        if self.trainer.training and self.trainer.fit_loop.total_batch_idx == 11:
            self.trainer.should_stop = True
        return batch


class SchedulerStops(Net):
    def lr_scheduler_step(self, scheduler, metric):
        super().lr_scheduler_step(scheduler, metric)
        self.trainer.should_stop = scheduler.last_epoch >= 12


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", [StopsInTransfer, SchedulerStops])
def test_hooks_on_the_host_stop_compiled_steps_at_once(kind, engine):
    pair(engine, make=lambda: kind("adam", "onecycle"), size=-1)


# -- the clock ------------------------------------------------------------------------------------------------------


class Clock:
    """A clock that goes on by a second with every training batch, when that is due."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def ticking(self):
        clock = self

        class Ticking:
            inner = loader()

            def __len__(self):
                return len(self.inner)

            def __iter__(self):
                for batch in self.inner:
                    clock.now += 1.0
                    yield batch

        return Ticking()


def at_clock(monkeypatch, strategy, callbacks=(), validation=None, **options):
    clock = Clock(monkeypatch)
    torch.manual_seed(7)
    options = {"max_epochs": 3, **options}
    data = SinkDataModule.from_loaders(clock.ticking(), validation, buffer_size=0)
    return train(Net("adam"), data, strategy, callbacks=list(callbacks), **options)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_time_being_over_ends_sink_and_training(accumulate, engine, monkeypatch):
    options = {"max_time": {"seconds": 25}, "accumulate_grad_batches": accumulate}
    plain = at_clock(monkeypatch, "auto", **options)
    sink = at_clock(monkeypatch, SinkStrategy(engine=engine), **options)
    assert len(sink.events.ends) == 2
    assert_parity(plain, sink, exact=engine == "eager")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_timer_that_looks_at_epoch_ends_shortens_no_sink(engine, monkeypatch):
    def timers():
        return [Timer(datetime.timedelta(seconds=20), interval="epoch")]

    plain = at_clock(monkeypatch, "auto", timers())
    sink = at_clock(monkeypatch, SinkStrategy(engine=engine), timers())
    assert sink.events.ends == [16, 16]
    assert_parity(plain, sink, exact=engine == "eager")


@pytest.mark.parametrize("engine", ENGINES)
def test_checkpoints_by_the_clock(engine, monkeypatch, tmp_path):
    files, runs = [], []
    for name, strategy in (("plain", "auto"), ("sink", SinkStrategy(engine=engine))):
        interval = datetime.timedelta(seconds=6)
        saves = ModelCheckpoint(tmp_path / name, "{step}", save_top_k=-1, train_time_interval=interval)
        runs.append(at_clock(monkeypatch, strategy, [saves], enable_checkpointing=True))
        files.append({path.name for path in (tmp_path / name).iterdir()})
    assert files[0] == files[1]
    assert len(files[0]) >= 8
    assert_parity(*runs, exact=engine == "eager")


class Validations(L.Callback):
    def __init__(self):
        self.steps = []

    def on_validation_start(self, trainer, pl_module):
        self.steps.append(trainer.global_step)


@pytest.mark.narrow(11)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("options", [{}, {"check_val_every_n_epoch": None}], ids=["in epochs", "over epochs"])
def test_validation_by_the_clock(options, engine, monkeypatch):
    runs = [
        at_clock(
            monkeypatch, strategy, [Validations()], val_check_interval={"seconds": 5}, validation=loader(2), **options
        )
        for strategy in ("auto", SinkStrategy(engine=engine))
    ]
    steps = [of(run, Validations).steps for run in runs]
    assert steps[0] == steps[1]
    assert len(steps[0]) > 6
    assert_parity(*runs, exact=engine == "eager")


# -- what changes the training --------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_another_accumulation_in_each_epoch(engine):
    pair(engine, lambda: [GradientAccumulationScheduler({0: 1, 1: 4, 2: 2})], lambda: Net("adam", "onecycle"))


@pytest.mark.parametrize("engine", ENGINES)
def test_validation_in_an_open_window_of_accumulation(engine):
    plain, sink = pair(
        engine, accumulate_grad_batches=2, val_check_interval=3, validation=loader(2), callbacks=lambda: [Validations()]
    )
    assert of(plain, Validations).steps == of(sink, Validations).steps
    assert {2, 5, 8} <= set(sink.events.ends)


class Thaw(BaseFinetuning):
    """Freezes the first layer and its normalization, and lets them go in the second epoch at a rate of their own."""

    def freeze_before_training(self, pl_module):
        self.freeze(pl_module.net[:2])

    def finetune_function(self, pl_module, epoch, optimizer):
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.net[:2], optimizer, lr=0.003)


class Thawed(Net):
    def configure_optimizers(self):
        return torch.optim.Adam([p for p in self.parameters() if p.requires_grad], lr=0.01)


class Switch(L.Callback):
    """Freezes in the second epoch and lets go again in the third."""

    def on_train_epoch_start(self, trainer, pl_module):
        pl_module.net[0].requires_grad_(trainer.current_epoch != 1)


@pytest.mark.parametrize("engine", ENGINES)
def test_finetuning_adds_parameters_between_epochs(engine):
    _, sink = pair(engine, lambda: [Thaw()], Thawed)
    assert len(sink.trainer.optimizers[0].param_groups) == 2


@pytest.mark.narrow(11)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_freezing_and_letting_go_between_epochs(optimizer, engine):
    pair(engine, lambda: [Switch()], lambda: Net(optimizer))


@pytest.mark.narrow(11)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("epoch", ["dataset", "sink"])
def test_stochastic_weight_averaging(epoch, engine):
    def callbacks():
        return [StochasticWeightAveraging(swa_lrs=0.02, swa_epoch_start=2, annealing_epochs=2)]

    with_it = pair(engine, callbacks, lambda: Net("sgd"), max_epochs=5, epoch=epoch)[1]
    torch.manual_seed(7)
    without = train(Net("sgd"), loader(shuffle=True), max_epochs=5)
    assert not torch.equal(with_it.module.net[0].weight, without.module.net[0].weight)
    assert not [text for text in with_it.warned if "eagerly" in text], "of its last pass, which trains nothing"


# -- what looks on --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_learning_rates_are_logged_for_every_step_that_plain_lightning_logs(interval, engine):
    runs = []
    for strategy in ("auto", SinkStrategy(7, epoch="dataset", engine=engine)):
        torch.manual_seed(7)
        callbacks = [LearningRateMonitor(interval, log_momentum=True)]
        runs.append(
            train(Net("adam", "onecycle"), loader(), strategy, callbacks=callbacks, max_epochs=2, log_every_n_steps=2)
        )
    rows = [[(s, row) for s, row in run.rows if "lr-Adam" in row] for run in runs]
    rates = [{step: row["lr-Adam"] for step, row in found} for found in rows]
    momenta = [{step: row["lr-Adam-momentum"] for step, row in found} for found in rows]
    assert rates[1] == rates[0]
    assert momenta[1] == momenta[0]


class Notes(LearningRateMonitor):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        pl_module.log("index", float(batch_idx))


@pytest.mark.parametrize("engine", ENGINES)
def test_one_that_logs_learning_rates_may_log_by_the_module_too(engine):
    strategies = "auto", SinkStrategy(7, epoch="dataset", engine=engine)
    options = {"max_epochs": 2, "log_every_n_steps": 2}
    runs = [train(Net(), loader(), strategy, callbacks=[Notes("step")], **options) for strategy in strategies]
    plain, sink = ({step: row["index"] for step, row in run.rows if "index" in row} for run in runs)
    assert plain
    assert sink == plain


class Bar(TQDMProgressBar):
    def __init__(self):
        super().__init__(refresh_rate=1)
        self.states = []

    def on_train_batch_end(self, trainer, *args):
        super().on_train_batch_end(trainer, *args)
        bar = self.train_progress_bar
        metrics = {key: value for key, value in self.get_metrics(trainer, args[0]).items() if key != "v_num"}
        self.states.append((trainer.current_epoch, bar.n, bar.total, metrics))


@pytest.mark.narrow(11)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("epoch", "size"), [("dataset", 7), ("dataset", -1), ("sink", 5)])
def test_the_progress_bar_is_right_at_each_sinks_end(epoch, size, engine):
    strategy = SinkStrategy(size, epoch=epoch, engine=engine)
    states = []
    for data, chosen in ((ContinuedLoader(loader(), 5) if epoch == "sink" else loader(), "auto"), (loader(), strategy)):
        torch.manual_seed(7)
        bar = Bar()
        train(Net(), data, chosen, callbacks=[bar], max_epochs=3, enable_progress_bar=True)
        states.append({state[:2]: state[2:] for state in bar.states})
    plain, sink = states
    ends = {("dataset", 7): (7, 14, 17), ("dataset", -1): (17,), ("sink", 5): (5,)}[epoch, size]
    assert list(sink) == list(itertools.product(range(3), ends))
    for key, (total, metrics) in sink.items():
        assert total == plain[key][0]
        assert metrics == pytest.approx(plain[key][1], rel=1e-4)
        assert {"loss_forked_step"} <= set(metrics)


# -- trainers and strategies more than once -------------------------------------------------------------------------


@pytest.mark.narrow(11)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("epoch", "size"), [("dataset", 7), ("sink", 7), ("sink", -1)])
def test_two_fits_of_one_trainer(epoch, size, engine):
    plain, sink = pair(engine, size=size, epoch=epoch, max_epochs=2, data=loader)
    for run in (plain, sink):
        endless = run is plain and epoch == "sink" and size > 0
        run.trainer.fit_loop.max_epochs = 4
        torch.manual_seed(1)
        run.trainer.fit(run.module, ContinuedLoader(loader(), size) if endless else loader())
    assert sink.trainer.current_epoch == 4
    assert_parity(plain, sink, exact=engine == "eager")


@pytest.mark.parametrize("engine", ENGINES)
def test_one_strategy_in_two_trainers(engine):
    strategy = SinkStrategy(7, epoch="dataset", engine=engine)
    for optimizer in ("sgd", "adam"):
        torch.manual_seed(7)
        plain = train(Net(optimizer), loader(), max_epochs=2)
        torch.manual_seed(7)
        # Lightning takes a strategy that has its accelerator, as this one has the second time, without `accelerator=`.
        sink = train(Net(optimizer), loader(), strategy, max_epochs=2, accelerator="auto")
        assert strategy.active_engine == engine
        assert strategy.history["loss"].shape == (3,)
        assert_parity(plain, sink, exact=engine == "eager")


class Complete(Net):
    def test_step(self, batch, batch_idx):
        self.log("test_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def predict_step(self, batch, batch_idx):
        return self.net(batch[0])


@pytest.mark.parametrize("engine", ENGINES)
def test_validate_test_and_predict_around_a_fit(engine):
    results = []
    for strategy in ("auto", SinkStrategy(5, engine=engine, epoch="dataset")):
        torch.manual_seed(7)
        trainer, module = L.Trainer(strategy=strategy, max_epochs=2, logger=False, **QUIET), Complete("adam")
        found = [trainer.validate(module, loader(3), verbose=False), trainer.test(module, loader(3), verbose=False)]
        torch.manual_seed(0)
        trainer.fit(module, loader(), loader(3))
        found += [trainer.validate(module, loader(3), verbose=False), trainer.test(module, loader(3), verbose=False)]
        found.append([{str(i): tensor for i, tensor in enumerate(trainer.predict(module, loader(3)))}])
        torch.manual_seed(0)
        trainer.fit_loop.max_epochs = 3
        trainer.fit(module, loader(), loader(3))
        assert trainer.global_step == 51
        results.append([*found, [module.state_dict()]])
    for expected, found in zip(*results, strict=True):
        assert expected[0].keys() == found[0].keys()
        for name, value in expected[0].items():
            a, b = torch.as_tensor(value), torch.as_tensor(found[0][name])
            assert torch.equal(a, b) if engine == "eager" else torch.allclose(a, b, rtol=1e-4, atol=1e-5), name
