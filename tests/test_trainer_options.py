"""Every option of the Trainer: in the gallery, or here."""

import inspect
import warnings
from datetime import timedelta

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback, LearningRateMonitor, ModelCheckpoint, WeightAveraging
from lightning.pytorch.utilities.exceptions import MisconfigurationException

import gallery.options
from gallery.case import CASES, Small
from gallery.options import Logged
from lightning_sink import SinkStrategy, StepCallback
from lightning_sink.errors import SinkError
from lightning_sink.trainer.ends import Ends
from parity import QUIET, Net, assert_parity, both, compare, loader, once, train

HERE = {"accelerator", "strategy", "logger", "limit_test_batches", "limit_predict_batches", "barebones"}
HERE |= {"model_registry", "benchmark"}


def sinks(**options):
    return SinkStrategy(**{"sink_size": 4, "epoch": "dataset", "engine": "traced", **options})


def test_every_option_is_trained_with():
    known = set(inspect.signature(L.Trainer.__init__).parameters) - {"self"}
    in_gallery = {name for case in CASES if case.make.__module__ == gallery.options.__name__ for name in case.options}
    in_gallery |= {name for case in CASES for name in case.options}
    assert known - in_gallery - HERE == set()
    assert known >= HERE


# -- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"devices": 2}, {"devices": 3}, {"num_nodes": 2}], ids=str)
def test_more_than_one_process_is_refused(options):
    with pytest.raises(SinkError, match="on one (device|node) so far"):
        L.Trainer(strategy=sinks(), **{**QUIET, "logger": False, **options})


@pytest.mark.parametrize("options", [{"accelerator": "gpu"}, {"accelerator": "mps"}, {"devices": 0}], ids=str)
def test_a_device_that_is_not_there_is_lightnings_error(options):
    texts = []
    for strategy in ("auto", sinks()):
        with pytest.raises(MisconfigurationException) as caught:
            L.Trainer(strategy=strategy, **{**QUIET, **options})
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


# -- without this suite's logger --------------------------------------------------------------------------------------


def fit(strategy, module=Logged, **options):
    defaults = {**QUIET, "logger": False, "max_epochs": 2}
    if options.get("barebones"):
        defaults = {"accelerator": "cpu", "max_epochs": 2}
    trainer = L.Trainer(strategy=strategy, **{**defaults, **options})
    torch.manual_seed(7)
    module = module()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=UserWarning)
        trainer.fit(module, loader())
    return trainer, module


def assert_same(plain, sink, exact):
    (one, expected), (two, found) = plain, sink
    assert one.global_step == two.global_step
    assert one.fit_loop.state_dict() == two.fit_loop.state_dict()
    assert set(one.callback_metrics) == set(two.callback_metrics)
    tensors = [*zip(expected.parameters(), found.parameters(), strict=True)]
    tensors += [(value, two.callback_metrics[name]) for name, value in one.callback_metrics.items()]
    assert all(torch.equal(a, b) if exact else torch.allclose(a, b, 1e-4, 1e-6) for a, b in tensors)


OTHERS = {
    "no logger": {"logger": False},
    "the default logger": {"logger": True},
    "barebones": {"barebones": True},
    "barebones with steps": {"barebones": True, "max_steps": 9},
    "a registry of models": {"model_registry": "nowhere"},
    "everything that Lightning turns on": {key: None for key in QUIET if key != "accelerator"} | {"logger": None},
    "the device that is there": {"accelerator": "auto"} if not torch.cuda.is_available() else {},
    "benchmark": {"benchmark": False},
}


@pytest.mark.narrow(11)
@pytest.mark.parametrize("engine", ["eager", "traced"])
@pytest.mark.parametrize("name", OTHERS)
def test_what_is_trained_without_this_suites_logger(name, engine):
    plain = fit("auto", **OTHERS[name])
    sink = fit(sinks(engine=engine), **OTHERS[name])
    assert_same(plain, sink, exact=engine == "eager")
    assert sink[0].strategy.active_engine == engine


def test_the_strategy_by_its_name():
    trainer, _ = fit("sink", module=Small, max_epochs=1)
    assert isinstance(trainer.strategy, SinkStrategy)


class OwnTrainer(L.Trainer):
    """As somebody derives one, with what is theirs on it; numbers make it look like a small object of the module's."""

    def __init__(self, **options):
        super().__init__(**options)
        self.weight = 1.0


class Weighs(Callback):
    """Keeps something new in each sink, and weighs the loss anew in the second epoch."""

    def __init__(self):
        self.ends = []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.ends.append(object())

    def on_train_epoch_start(self, trainer, pl_module):
        trainer.weight = 0.5 if trainer.current_epoch else 1.0


class Weighed(Small):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * self.trainer.weight


@pytest.mark.parametrize("module", [Small, Weighed])
@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_a_trainer_of_ones_own_class(module, engine):
    options = {"kind": OwnTrainer, "callbacks": lambda: [Weighs()], "max_epochs": 4}
    compare(module, engine, data=lambda: loader(40, last=8), **options)


@pytest.mark.parametrize("options", [{"limit_test_batches": 2}, {"limit_test_batches": 0.5}, {}], ids=str)
def test_testing_and_predicting_after_a_fit(options):
    given = {**options, **{name.replace("test", "predict"): value for name, value in options.items()}}
    results = []
    for strategy in ("auto", sinks(engine="eager")):
        trainer, module = fit(strategy, **given)
        tested, validated = trainer.test(module, loader(5), verbose=False), trainer.validate(module, verbose=False)
        results.append((tested, validated, trainer.predict(module, loader(5))))
    (tested, validated, predicted), found = results
    assert (tested, validated) == found[:2]
    assert len(predicted) == len(found[2]) == {None: 5, 2: 2, 0.5: 2}[options.get("limit_test_batches")]
    assert all(torch.equal(a, b) for a, b in zip(predicted, found[2], strict=True))


@pytest.mark.parametrize("weights_only", [True, False, None])
def test_weights_only_when_a_checkpoint_is_loaded(weights_only, tmp_path):
    results = []
    for strategy in (lambda: "auto", lambda: sinks(engine="eager")):
        trainer, _ = fit(strategy(), max_epochs=1)
        trainer.save_checkpoint(tmp_path / "one.ckpt")
        torch.manual_seed(3)
        module = Logged()
        second = L.Trainer(strategy=strategy(), max_epochs=2, logger=False, **QUIET)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category=UserWarning)
            second.fit(module, loader(), ckpt_path=tmp_path / "one.ckpt", weights_only=weights_only)
        results.append((second, module))
    assert_same(*results, exact=True)


# -- checkpoints that plain Lightning keeps are kept ------------------------------------------------------------------

KEPT = {
    "steps": {"every_n_train_steps": 5, "save_top_k": -1},
    "steps that accumulate": {"every_n_train_steps": 2, "save_top_k": -1},
    "epochs": {"every_n_epochs": 1, "save_top_k": -1},
    "the best of steps": {"monitor": "loss_step", "every_n_train_steps": 3, "save_top_k": 2},
    "the best of steps that accumulate": {"monitor": "loss_step", "every_n_train_steps": 2, "save_top_k": 1},
    "the best of validation, asked at steps that accumulate": {"monitor": "val_loss", "every_n_train_steps": 100},
    "the best of validation": {"monitor": "val_loss", "save_top_k": 2, "save_last": True},
    "the worst of validation": {"monitor": "val_loss", "save_top_k": 2, "mode": "max"},
    "epochs ends": {"save_on_train_epoch_end": True, "monitor": "loss_epoch", "save_top_k": 1},
    "links": {"save_last": "link", "every_n_train_steps": 4},
    "weights": {"save_weights_only": True, "every_n_train_steps": 4, "save_top_k": -1},
    "every time": {"train_time_interval": timedelta(seconds=0), "save_top_k": -1},
}


@pytest.mark.narrow(11)
@pytest.mark.filterwarnings("ignore:Checkpoint directory")
@pytest.mark.parametrize("size", [4, -1])
@pytest.mark.parametrize("name", KEPT)
def test_the_same_files_with_the_same_weights(name, size, tmp_path):
    folders = iter([tmp_path / "plain", tmp_path / "sink"])

    def callbacks():
        return [ModelCheckpoint(next(folders), filename="{epoch}-{step}", **KEPT[name])]

    accumulate = 3 if "accumulate" in name else 1
    options = {"max_epochs": 2, "enable_checkpointing": True, "val_check_interval": 6, "validation": loader(3)}
    both(
        Logged, loader, sinks(sink_size=size, engine="eager"), callbacks=callbacks,
        accumulate_grad_batches=accumulate, **options,
    )  # fmt: skip
    files = [sorted(path.name for path in (tmp_path / kind).iterdir()) for kind in ("plain", "sink")]
    assert files[0]
    assert files[0] == files[1]
    for file in files[0]:
        plain, sink = (torch.load(tmp_path / kind / file, weights_only=False) for kind in ("plain", "sink"))
        assert plain["global_step"] == sink["global_step"]
        assert plain["epoch"] == sink["epoch"]
        assert set(sink) - set(plain) <= {"lightning_sink"}
        assert plain.get("loops") == sink.get("loops")
        assert plain.get("optimizer_states", [{}])[0].keys() == sink.get("optimizer_states", [{}])[0].keys()
        assert all(torch.equal(value, sink["state_dict"][key]) for key, value in plain["state_dict"].items())


# -- profilers --------------------------------------------------------------------------------------------------------


def test_a_profiler_sees_eager_steps_as_in_plain_lightning():
    seen = []
    for strategy in ("auto", sinks(engine="eager", sink_size=1)):
        run = train(Logged(), loader(), strategy, max_epochs=1, profiler="simple")
        durations = run.trainer.profiler.recorded_durations
        seen.append({name: len(times) for name, times in durations.items() if "[Strategy]" not in name})
    renamed = {name.replace("SinkEpochLoop", "_TrainingEpochLoop"): count for name, count in seen[1].items()}
    renamed = {name.replace("SinkStrategy", "SingleDeviceStrategy"): count for name, count in renamed.items()}
    assert seen[0] == renamed


# -- one trainer, several fits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["eager", "traced"])
def test_a_fit_that_goes_on_with_more_epochs(engine):
    """The limits of a trainer may be raised between two fits."""
    results = []
    for strategy in ("auto", sinks(engine=engine)):
        trainer, module = fit(strategy, max_epochs=1)
        trainer.fit_loop.max_epochs = 3
        torch.manual_seed(11)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category=UserWarning)
            trainer.fit(module, loader(9))
        results.append((trainer, module))
    assert_same(*results, exact=engine == "eager")


@pytest.mark.narrow(11)
@pytest.mark.parametrize("size", [-1, 1, 4, 40])
@pytest.mark.parametrize(
    "options", [{"max_steps": 20}, {"val_check_interval": 5}, {"limit_train_batches": 0.3}], ids=str
)
def test_sizes(options, size):
    plain, sink = both(Logged, loader, sinks(sink_size=size), **{"max_epochs": 3, **options})
    assert_parity(plain, sink)


# -- changed in the middle of a sink ----------------------------------------------------------------------------------


class Replans(Small):
    """Changes something of the Trainer's at its 15th step."""

    where = "on_train_batch_end"

    def __init__(self, change):
        super().__init__()
        self.change, self.validated = change, []

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("loss", loss, on_step=True, on_epoch=False)
        return loss

    def validation_step(self, batch, batch_idx):
        self.validated.append(self.global_step)

    def val_dataloader(self):
        return loader(1)

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def replan(self):
        if self.global_step == 15:
            self.change(self.trainer)


class AtTheEnd(Replans):
    def on_train_batch_end(self, *args):
        self.replan()


class BeforeZeroGrad(Replans):
    def on_before_zero_grad(self, optimizer):
        self.replan()


class WithTheSchedule(Replans):
    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step()
        self.replan()


class WithTheTransfer(Replans):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        if self.trainer.training:
            self.replan()
        return batch


class InACallback(Replans):
    def configure_callbacks(self):
        return [Averages()]


class Averages(WeightAveraging):
    def on_train_batch_end(self, trainer, pl_module, *args):
        super().on_train_batch_end(trainer, pl_module, *args)
        pl_module.replan()


class Comes(LearningRateMonitor):
    """Comes in the midst of a training, and sees batches end from there on."""

    def __init__(self):
        super().__init__("step")
        self.first = None

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.first = batch_idx if self.first is None else self.first


CHANGES = {
    "log_every_n_steps": lambda trainer: setattr(trainer, "log_every_n_steps", 10),
    "val_check_batch": lambda trainer: setattr(trainer, "val_check_batch", 9),
    "accumulate_grad_batches": lambda trainer: setattr(trainer, "accumulate_grad_batches", 3),
    "callbacks": lambda trainer: trainer.callbacks.append(Comes()),
}


# A callback that comes with a batch, when others have been told that it begins, begins with the next one.
HEEDED = [(change, make) for change in CHANGES for make in Replans.__subclasses__()]
HEEDED.remove(("callbacks", WithTheTransfer))


@pytest.mark.narrow(13)
@pytest.mark.parametrize("engine", ["eager", "traced"])
@pytest.mark.parametrize(("change", "make"), HEEDED)
def test_what_a_hook_changes_of_the_trainer_is_heeded_from_there_on(change, make, engine):
    def trained():
        return make(CHANGES[change])

    options = {"log_every_n_steps": 2, "max_epochs": 1, "num_sanity_val_steps": 0}
    plain, sink = both(trained, lambda: loader(40, last=8), sinks(sink_size=-1, engine=engine), **options)
    assert_parity(plain, sink, exact=engine == "eager")
    assert sink.module.validated == plain.module.validated
    firsts = [[item.first for item in run.trainer.callbacks if isinstance(item, Comes)] for run in (plain, sink)]
    assert len(firsts[0]) == (change == "callbacks")
    if firsts[0] and make is AtTheEnd:  # it comes behind the callbacks' turn, and is met where the next sink ends
        firsts[0] = [39]
    assert firsts[0] == firsts[1]


class Changing(Callback):
    """Changes the list of callbacks where a batch begins or ends."""

    def __init__(self, how, where):
        super().__init__()
        self.how, self.where, self.called = how, where, []

    def _acts(self, trainer, where, batch_idx):
        self.called.append((where, batch_idx))
        if where != self.where or batch_idx != 4 or self.called.count((where, batch_idx)) > 1:
            return  # it has its turn again where it has put something before it
        new = Changing("", "")
        if self.how == "append":
            trainer.callbacks.append(new)
        elif self.how == "insert":
            trainer.callbacks.insert(0, new)
        elif self.how == "assign":
            trainer.callbacks = [*trainer.callbacks, new]
        elif self.how == "leave":
            trainer.callbacks.remove(self)
        elif self.how == "drop":
            trainer.callbacks.pop(trainer.callbacks.index(self) + 1)

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self._acts(trainer, "start", batch_idx)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self._acts(trainer, "end", batch_idx)


class ChangingInTheStep(Changing, StepCallback):
    pass


@pytest.mark.narrow(11)
@pytest.mark.parametrize("engine", ["eager", "traced"])
@pytest.mark.parametrize("kind", [Changing, ChangingInTheStep])
@pytest.mark.parametrize("where", ["start", "end"])
@pytest.mark.parametrize("how", ["append", "insert", "assign", "leave", "drop"])
def test_a_list_of_callbacks_that_changes_while_they_have_their_turns(how, where, kind, engine):
    called = []
    for by in ("auto", sinks(sink_size=1, engine=engine)):
        ordered = [kind("", ""), kind(how, where), Changing("", ""), kind("", ""), Changing("", "")]
        run = once(Net, lambda: loader(8, last=8), by, callbacks=ordered.copy, max_epochs=1)
        come = [item for item in run.trainer.callbacks if isinstance(item, Changing) and item not in ordered]
        called.append([item.called for item in (*ordered, *come)])
    assert called[0] == called[1]
    assert len({*map(len, called[0])}) > 1, "nothing has changed"


@pytest.mark.parametrize("change", ["val_check_batch", "callbacks"])
def test_control_a_sink_that_goes_on_as_planned_is_another_training(change, monkeypatch):
    monkeypatch.setattr(Ends, "plan_changed", False)
    options = {"log_every_n_steps": 2, "max_epochs": 1, "num_sanity_val_steps": 0}
    trained = lambda: AtTheEnd(CHANGES[change])  # noqa: E731
    plain, sink = both(trained, lambda: loader(40, last=8), sinks(sink_size=-1), **options)
    as_validated = sink.module.validated == plain.module.validated
    as_logged = [(step, set(row)) for step, row in plain.rows] == [(step, set(row)) for step, row in sink.rows]
    assert as_validated != (change == "val_check_batch")
    assert as_logged != (change == "callbacks")
