"""What callbacks, the module's own hooks and loaders do around sinks is what they do in plain Lightning."""

import gc
import multiprocessing
import sqlite3
import sys
import weakref
from types import ModuleType

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from lightning_sink import SinkStrategy, StepCallback
from parity import QUIET, Net, Rows, assert_parity, assert_tensors, both, loader, once

ENGINES = pytest.mark.parametrize("engine", ["eager", "traced"])


def in_sinks(engine, size=7):
    return SinkStrategy(size, epoch="dataset", engine=engine)


class Quiet(Net):
    def __init__(self):
        super().__init__()
        self.net[3] = nn.Identity()


class Counts(StepCallback):
    def __init__(self):
        self.saved = 0

    def state_dict(self):
        return {"kept": True}

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        checkpoint["extra"] = len(trainer.callbacks)


@ENGINES
def test_checkpoints_within_a_sinks_end_are_of_every_callback(engine, tmp_path):
    def saved(strategy, folder):
        torch.manual_seed(7)
        keep = ModelCheckpoint(folder, every_n_train_steps=6, save_top_k=-1)
        callbacks = [EMAWeightAveraging(decay=0.5), Counts(), keep]
        options = {**QUIET, "enable_checkpointing": True, "logger": [Rows()], "max_epochs": 1, "max_steps": 6}
        L.Trainer(strategy=strategy, callbacks=callbacks, **options).fit(Quiet(), loader(12, last=8))
        (path,) = folder.glob("*.ckpt")
        return torch.load(path, weights_only=False)

    plain, sink = saved("auto", tmp_path / "plain"), saved(in_sinks(engine), tmp_path / "sink")
    assert set(sink) - {"lightning_sink"} == set(plain) >= {"averaging_state", "extra"}
    assert sink["extra"] == plain["extra"]
    assert set(sink["callbacks"]) == set(plain["callbacks"])
    for part in ("state_dict", "averaging_state"):
        assert_tensors(*({n: t for n, t in one[part].items() if torch.is_tensor(t)} for one in (plain, sink)))


class Teaches(Quiet):
    """Moves a teacher, behind everybody else's turn."""

    def __init__(self):
        super().__init__()
        self.teacher = nn.Linear(3, 3).requires_grad_(False)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        with torch.no_grad():
            self.teacher.weight.lerp_(self.net[4].weight[:, :3], 0.1)


class Looks(L.Callback):
    def __init__(self):
        self.seen = {}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.seen[trainer.global_step] = pl_module.teacher.weight.clone()


@ENGINES
def test_callbacks_meet_a_sinks_last_step_before_the_modules_own_hook(engine):
    plain, sink = both(Teaches, lambda: loader(40), in_sinks(engine, 10), max_epochs=2, callbacks=lambda: [Looks()])
    assert_parity(plain, sink)
    assert sink.engine == engine
    expected, found = (run.trainer.callbacks[-1].seen for run in (plain, sink))
    assert set(found) == {10, 20, 30, 40, 50, 60, 70, 80}
    for step, teacher in found.items():
        torch.testing.assert_close(teacher, expected[step])


def test_steps_are_eager_where_callbacks_are_shown_each_of_them_between_its_parts():
    plain, sink = both(
        Teaches, lambda: loader(20), in_sinks("traced"), max_epochs=1, callbacks=lambda: [EMAWeightAveraging(decay=0.9)]
    )
    assert_parity(plain, sink)
    (text,) = [text for text in sink.warned if "runs eagerly" in text]
    assert "`on_train_batch_end` of the module runs behind that of callbacks" in text
    assert __file__ in text


class FailsAt(Quiet):
    def training_step(self, batch, batch_idx):
        if batch_idx == 13:
            raise LookupError("no such batch")
        return super().training_step(batch, batch_idx)


@ENGINES
def test_metrics_are_those_of_the_last_step_where_the_next_one_fails(engine):
    def left(strategy):
        torch.manual_seed(7)
        trainer = L.Trainer(strategy=strategy, max_epochs=1, logger=[Rows()], log_every_n_steps=3, **QUIET)
        with pytest.raises(LookupError):
            trainer.fit(FailsAt(), loader(20))
        return {name: value.clone() for name, value in trainer.callback_metrics.items()}

    assert_tensors(left("auto"), left(in_sinks(engine, 20)))


class Writes(Quiet):
    """Gives its counter to code in C that takes nothing but whole numbers."""

    def __init__(self):
        super().__init__()
        self.table = sqlite3.connect(":memory:")
        self.table.execute("create table steps (number integer)")

    def training_step(self, batch, batch_idx):
        self.table.execute("insert into steps values (?)", (batch_idx,))
        return super().training_step(batch, batch_idx)

    def on_fit_end(self):
        self.written = [number for (number,) in self.table.execute("select number from steps")]
        self.table.close()


def test_a_counter_that_code_in_c_is_given():
    plain, sink = both(Writes, lambda: loader(20), in_sinks("traced"), max_epochs=1)
    assert_parity(plain, sink)
    assert sink.module.written == plain.module.written == [*range(20)]


def test_a_warning_names_the_users_line_and_not_a_librarys(tmp_path, monkeypatch):
    installed = ModuleType("installed")
    source = "import time\ndef now():\n    return time.time()\n"
    exec(compile(source, str(tmp_path / "site-packages" / "installed.py"), "exec"), vars(installed))
    monkeypatch.setitem(sys.modules, "installed", installed)

    class Asks(Quiet):
        def training_step(self, batch, batch_idx):
            installed.now()
            return super().training_step(batch, batch_idx)

    sink = once(Asks, lambda: loader(12), in_sinks("traced"), max_epochs=1)
    (text,) = [text for text in sink.warned if "runs eagerly" in text]
    assert f"({__file__}:" in text


# -- loaders that are made anew ----------------------------------------------------------------------------------------


class Numbered(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.full((6,), index / 24.0), index % 3


class Made(L.LightningDataModule):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def train_dataloader(self):
        return DataLoader(Numbered(), batch_size=8, **self.options)


class Workers(L.Callback):
    def __init__(self):
        self.counts = []

    def on_train_epoch_end(self, trainer, pl_module):
        self.counts.append(len(multiprocessing.active_children()))


@pytest.mark.narrow(11)
@ENGINES
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_end_when_others_take_their_place(engine, persistent):
    gc.collect()
    gc.disable()
    try:
        watch = Workers()
        trainer = L.Trainer(
            strategy=in_sinks(engine), max_epochs=4, reload_dataloaders_every_n_epochs=1, callbacks=[watch],
            logger=False, **QUIET,
        )  # fmt: skip
        trainer.fit(Quiet(), datamodule=Made(num_workers=1, persistent_workers=persistent))
    finally:
        gc.enable()
    assert len(watch.counts) == 4
    assert max(watch.counts) <= 2
    assert not multiprocessing.active_children()


@ENGINES
@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_that_comes_again_goes_on_with_its_order(engine, persistent):
    def data():
        x, y = loader(6, last=8).dataset.tensors
        options = {"num_workers": 1, "persistent_workers": persistent}
        return DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True, **options)

    options = {"max_epochs": 3, "reload_dataloaders_every_n_epochs": 1}
    plain, sink = both(Quiet, data, in_sinks(engine), **options)
    assert_parity(plain, sink)
    assert plain.generators == sink.generators


def test_data_that_others_replace_is_let_go_of():
    made, alive = [], []

    class Fresh(Quiet):
        def train_dataloader(self):
            x, y = (tensor.clone() for tensor in loader(6, last=8).dataset.tensors)
            made.append(weakref.ref(x))
            return DataLoader(TensorDataset(x, y), batch_size=8)

        def on_train_epoch_end(self):
            alive.append(sum(data() is not None for data in made))

    gc.collect()
    gc.disable()
    try:
        options = {"reload_dataloaders_every_n_epochs": 1, "logger": False, **QUIET}
        L.Trainer(strategy=in_sinks("eager"), max_epochs=3, **options).fit(Fresh())
    finally:
        gc.enable()
    assert alive == [1, 1, 1]


class Raises(L.Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if batch_idx == 13:
            raise LookupError("of a callback")


@ENGINES
@pytest.mark.filterwarnings("ignore:`Raises.on_train_batch_end` decides by:lightning_sink.errors.SinkWarning")
def test_metrics_are_those_of_the_last_step_where_a_callback_fails(engine):
    def left(strategy):
        torch.manual_seed(7)
        trainer = L.Trainer(strategy=strategy, max_epochs=1, callbacks=[Raises()], logger=[Rows()], **QUIET)
        with pytest.raises(LookupError):
            trainer.fit(Quiet(), loader(20))
        return {name: value.clone() for name, value in trainer.callback_metrics.items()}

    assert_tensors(left("auto"), left(in_sinks(engine)))


class StopsAtTheStart(Looks):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        trainer.should_stop = trainer.should_stop or batch_idx == 14


@ENGINES
def test_a_step_at_which_the_training_is_stopped_is_met_before_the_modules_own_hook(engine):
    options = {"callbacks": lambda: [StopsAtTheStart()], "max_epochs": 1}
    plain, sink = both(Teaches, lambda: loader(40), in_sinks(engine), **options)
    assert plain.trainer.global_step == sink.trainer.global_step == 15
    torch.testing.assert_close(sink.trainer.callbacks[-1].seen[15], plain.trainer.callbacks[-1].seen[15])


def test_steps_are_compiled_one_by_one_where_no_callback_meets_them():
    torch.manual_seed(7)
    strategy = SinkStrategy(1, epoch="dataset", engine="traced", fallback="error")
    L.Trainer(strategy=strategy, max_epochs=1, logger=False, **QUIET).fit(Teaches(), loader(20))
    assert strategy.active_engine == "traced"
