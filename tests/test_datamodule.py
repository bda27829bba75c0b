"""SinkDataModule: the datamodule as it was, and the options on it."""

import copy
import gc
import inspect
import os
import pickle
import subprocess
import sys
import warnings
import weakref
from dataclasses import dataclass
from pathlib import Path

import lightning as L
import pytest
import torch
import yaml
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.core.hooks import DataHooks
from lightning.pytorch.demos.boring_classes import BoringDataModule
from lightning.pytorch.utilities import CombinedLoader
from torch import nn

from lightning_sink import SinkStrategy
from lightning_sink.data.options import QueueOptions
from lightning_sink.datamodule import SinkDataModule, options_of
from parity import QUIET, Net, loader

STRATEGIES = {"plain": lambda: "auto", "sink": lambda: SinkStrategy(4, engine="eager", epoch="dataset")}
TRANSFER = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
HOOKS = sorted(
    name
    for kind in (L.LightningDataModule, DataHooks)
    for name, item in vars(kind).items()
    if inspect.isfunction(item) and not name.startswith("_")
)

both_strategies = pytest.mark.parametrize("strategy", list(STRATEGIES))


def trainer(strategy="plain", **options):
    return L.Trainer(strategy=STRATEGIES[strategy](), **{**QUIET, "max_epochs": 2, "logger": False, **options})


class Data(L.LightningDataModule):
    """A datamodule that uses most of what there is."""

    def __init__(self, size: int = 3, other: str = "a"):
        super().__init__()
        self.save_hyperparameters("size", "other")
        self.epochs = []
        self.loaded = None

    def train_dataloader(self):
        return loader(self.hparams.size)

    def val_dataloader(self):
        return loader(2)

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    @property
    def total(self):
        return len(self.epochs)

    def collate(self, items):
        return items

    def state_dict(self):
        return {"epochs": list(self.epochs)}

    def load_state_dict(self, state_dict):
        self.loaded = state_dict


def recorder(name):
    def hook(self, *args, **kwargs):
        self.calls.append((name, [*map(described, args)], {key: described(value) for key, value in kwargs.items()}))
        if name.endswith("_dataloader"):
            return loader(5)
        result = getattr(super(Recording, self), name)(*args, **kwargs)
        return {"calls": len(self.calls)} if name == "state_dict" else result

    return hook


def described(value):
    return value if isinstance(value, (int, str)) else type(value).__name__


class Recording(L.LightningDataModule):
    def __init__(self):
        super().__init__()
        self.calls = []


for _name in HOOKS:
    setattr(Recording, _name, recorder(_name))


class Whole(Net):
    def test_step(self, batch, batch_idx):
        self.validation_step(batch, batch_idx)

    def predict_step(self, batch, batch_idx):
        return self.net(batch[0])


class Fails(Whole):
    def training_step(self, batch, batch_idx):
        if self.trainer.global_step == 6:
            raise RuntimeError("given up")
        return super().training_step(batch, batch_idx)


def recorded(strategy, wrap, net=Whole):
    inner = Recording()
    data = SinkDataModule(inner, buffer_size=2) if wrap else inner
    used = trainer(strategy)
    torch.manual_seed(0)
    model = net()
    if net is Fails:
        with pytest.raises(RuntimeError, match="given up"):
            used.fit(model, datamodule=data)
        return inner.calls, model
    used.fit(model, datamodule=data)
    used.save_checkpoint("kept.ckpt")
    trainer(strategy, max_epochs=3).fit(model, data, ckpt_path="kept.ckpt")
    for run in ("validate", "test", "predict"):
        getattr(trainer(strategy), run)(model, datamodule=data)
    return inner.calls, model


@both_strategies
@pytest.mark.parametrize("net", [Whole, Fails])
def test_every_hook_is_called_as_without_options(strategy, net):
    (plain, plain_model), (wrapped, model) = (recorded(strategy, wrap, net) for wrap in (False, True))
    assert wrapped == plain
    names = {name for name, _, _ in plain}
    assert names == set(HOOKS) - {"on_exception"} if net is Whole else "on_exception" in names
    for expected, found in zip(plain_model.parameters(), model.parameters(), strict=True):
        assert torch.equal(expected, found)


def test_hooks_are_those_of_the_installed_lightning():
    assert {"prepare_data", "setup", "teardown", "state_dict", "load_state_dict", "on_exception"} < set(HOOKS)
    assert set(TRANSFER) < set(HOOKS)


class MovesItself(Net):
    def __init__(self):
        super().__init__()
        self.moved = 0

    def on_before_batch_transfer(self, batch, dataloader_idx):
        self.moved += 1
        return batch


class DataMoves(Data):
    moved = 0

    def on_before_batch_transfer(self, batch, dataloader_idx):
        self.moved += 1
        return batch


@both_strategies
@pytest.mark.parametrize("by_instance", [False, True])
def test_transfer_hooks_are_the_datamodules_or_else_the_modules(strategy, by_instance):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Lightning says which of the two it takes
        module = MovesItself()
        trainer(strategy, max_epochs=1, limit_val_batches=0).fit(module, datamodule=SinkDataModule(Data()))
        assert module.moved == 3
        module, data = MovesItself(), DataMoves()
        if by_instance:
            data, moves = Data(), data
            data.on_before_batch_transfer = moves.on_before_batch_transfer
        given = SinkDataModule(data)
        trainer(strategy, max_epochs=1, limit_val_batches=0).fit(module, datamodule=given)
    assert module.moved == 0
    assert (moves if by_instance else given).moved == 3


# -- what it is -----------------------------------------------------------------------------------------------------


def test_it_stays_the_object_that_it_was():
    inner = Data(size=7)
    before = {**vars(inner)}
    given = SinkDataModule(inner, buffer_size=4, timeout=2.0)
    assert given is inner
    assert type(given) is Data
    assert options_of(given) == QueueOptions(buffer_size=4, timeout=2.0)
    assert {name: item for name, item in vars(given).items() if name in before} == before
    assert [name for name in vars(given) if not name.startswith("_")] == [n for n in before if not n.startswith("_")]
    assert given.hparams_initial == {"size": 7, "other": "a"}


def test_the_last_options_count():
    inner = SinkDataModule(Data(), buffer_size=1, timeout=3)
    assert options_of(SinkDataModule(inner, buffer_size=2)) == QueueOptions(buffer_size=2)


@pytest.mark.parametrize(
    "strategy", [SinkStrategy(4, engine="eager"), SinkStrategy(4, dataset_sink_mode=False)], ids=repr
)
def test_the_strategy_reads_them(strategy):
    used = L.Trainer(strategy=strategy, **{**QUIET, "max_epochs": 1, "logger": False})
    used.fit(Net(), datamodule=SinkDataModule(Data(), buffer_size=3))
    assert strategy.queue_options.buffer_size == 3
    used.fit(Net(), datamodule=Data())
    assert strategy.queue_options == QueueOptions()


class Strict(L.LightningDataModule):
    """Says of no name that it is not there."""

    def __getattr__(self, name):
        return {}[name]

    def train_dataloader(self):
        return loader(3)


class Agreeing(Strict):
    """Answers for every name but Python's own."""

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)


@pytest.mark.parametrize("kind", [Strict, Agreeing])
def test_the_datamodule_is_asked_nothing(kind):
    used = trainer("sink", max_epochs=1, limit_val_batches=0)
    used.fit(Net(), datamodule=kind())
    assert used.strategy.queue_options == QueueOptions()
    used.fit(Net(), datamodule=SinkDataModule(kind(), timeout=30))
    assert used.strategy.queue_options == QueueOptions(timeout=30)


class Public(Data):
    """Keeps its public attributes in checkpoints."""

    def state_dict(self):
        return {name: item for name, item in vars(self).items() if name[0] != "_" and name != "trainer"}


def test_what_it_keeps_of_its_public_attributes_is_the_same():
    assert SinkDataModule(Public(), timeout=3).state_dict().keys() == Public().state_dict().keys()


class Slotted(L.LightningDataModule):
    __slots__ = ("rows",)


class Guarded(L.LightningDataModule):
    def __setattr__(self, name, value):
        assert not name.startswith("_lightning_sink")
        super().__setattr__(name, value)


@dataclass
class Fields(L.LightningDataModule):
    rows: int = 4

    def __post_init__(self):
        super().__init__()


@pytest.mark.parametrize("make", [Slotted, Guarded, lambda: Fields(2)])
def test_unusual_classes(make):
    assert options_of(SinkDataModule(make(), timeout=3)).timeout == 3
    assert Fields(2) == SinkDataModule(Fields(2))


class Rows(torch.utils.data.Dataset):
    def __init__(self, get):
        self.get = get


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda item: pickle.loads(pickle.dumps(item))])
def test_copies_have_the_options(copied):
    given = SinkDataModule(Data(size=7), buffer_size=4)
    found = copied(given)
    assert type(found) is Data
    assert options_of(found) == options_of(given) == QueueOptions(buffer_size=4)
    assert found.hparams == given.hparams


@both_strategies
def test_nothing_is_kept_alive(strategy):
    def used():
        inner = Data()
        inner.rows = Rows(None)
        trainer(strategy, max_epochs=1).fit(Net(), datamodule=SinkDataModule(inner))
        return [weakref.ref(item) for item in (inner, inner.rows)]

    kept = used()
    gc.collect()
    assert [ref() for ref in kept] == [None] * 2


# -- checkpoints ----------------------------------------------------------------------------------------------------


@both_strategies
@pytest.mark.parametrize("first_has_options", [False, True])
def test_checkpoints_pass_between_with_and_without(strategy, first_has_options):
    first, second = Data(size=4), Data(size=4)
    first.set_epoch(8)
    used = trainer(strategy, max_epochs=1)
    used.fit(Net(), datamodule=SinkDataModule(first) if first_has_options else first)
    used.save_checkpoint("kept.ckpt")
    saved = torch.load("kept.ckpt", weights_only=False)
    assert saved["Data"] == {"epochs": [8]}
    assert saved["datamodule_hyper_parameters"] == {"size": 4, "other": "a"}
    again = trainer("plain" if strategy == "sink" else "sink")
    again.fit(Net(), datamodule=second if first_has_options else SinkDataModule(second), ckpt_path="kept.ckpt")
    assert second.loaded == {"epochs": [8]}
    assert again.global_step == 8
    assert Data.load_from_checkpoint("kept.ckpt", weights_only=False).hparams.size == 4
    for refused in (SinkDataModule.load_from_checkpoint, SinkDataModule.from_datasets):
        with pytest.raises(TypeError, match=r"`SinkDataModule\(\w+\.\w+\(\.\.\.\)\)`"):
            refused("kept.ckpt")


# -- loaders --------------------------------------------------------------------------------------------------------


class Several(Net):
    def training_step(self, batch, batch_idx):
        parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch[0], (list, tuple)) else [batch]
        return sum(nn.functional.cross_entropy(self.net(x), y) for x, y in parts)


FORMS = {
    "single": lambda: loader(6),
    "iterable": lambda: Batches(),
    "list": lambda: [loader(6), loader(5)],
    "dict": lambda: {"a": loader(6), "b": [loader(5)][0]},
    "combined": lambda: CombinedLoader({"a": loader(6), "b": loader(5)}, "max_size_cycle"),
}


class Batches:
    def __iter__(self):
        return iter(loader(6))


@both_strategies
@pytest.mark.parametrize("form", FORMS)
def test_loaders_train_as_they_do_alone(form, strategy):
    models = []
    for wrap in (False, True):
        torch.manual_seed(0)
        model, data = Several(), FORMS[form]()
        used = trainer(strategy)
        if wrap:
            used.fit(model, datamodule=SinkDataModule.from_loaders(data, buffer_size=3))
        else:
            used.fit(model, data)
        assert used.num_val_batches == []
        models.append((used.global_step, model))
    assert models[0][0] == models[1][0] > 0
    for expected, found in zip(models[0][1].parameters(), models[1][1].parameters(), strict=True):
        assert torch.equal(expected, found)


def test_only_the_loaders_given_are_defined():
    data = SinkDataModule.from_loaders(loader(2), loader(3), timeout=3)
    assert options_of(data) == QueueOptions(timeout=3)
    used = trainer(max_epochs=1)
    used.fit(Net(), datamodule=data)
    assert used.num_val_batches == [3]
    with pytest.raises(L.pytorch.utilities.exceptions.MisconfigurationException, match="test_dataloader"):
        trainer().test(Whole(), datamodule=data)
    assert len(trainer().predict(Whole(), SinkDataModule.from_loaders(predict=loader(2)))) == 2
    assert options_of(pickle.loads(pickle.dumps(data))).timeout == 3


@pytest.mark.parametrize(
    "given", [3, "path", [loader(2), None], {"a": loader(2), "b": 1.5}, object(), Net()], ids=lambda v: type(v).__name__
)
def test_what_is_no_loader_is_refused(given):
    with pytest.raises(TypeError, match="`val` takes a DataLoader, any other iterable of batches, or a list or dict"):
        SinkDataModule.from_loaders(loader(2), given)


def test_no_loader_and_a_datamodule_as_a_loader_are_refused():
    with pytest.raises(TypeError, match="at least one of"):
        SinkDataModule.from_loaders(timeout=3)
    with pytest.raises(TypeError, match=r"For that: `SinkDataModule\(datamodule\)`"):
        SinkDataModule.from_loaders(Data())


# -- wrong arguments ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "message"), [
    (lambda: loader(2), r"object of the class `DataLoader`. For loaders use `SinkDataModule.from_loaders\("),
    (lambda: [loader(2)], r"`list`. For loaders use"),
    (lambda: Data, r"the class `Data`. Pass an instance: `SinkDataModule\(Data\(\.\.\.\)\)`"),
    (Net, r"`Net`. The model goes to `Trainer.fit\(model, datamodule=...\)`"),
    (lambda: None, r"`NoneType`. Pass a datamodule"),
    (lambda: __import__("pytorch_lightning").LightningDataModule(), "of the package `pytorch_lightning`"),
])  # fmt: skip
def test_what_is_no_datamodule_is_refused_with_what_to_do(given, message):
    with pytest.raises(TypeError, match=message):
        SinkDataModule(given())


def test_wrong_options_are_refused():
    with pytest.raises(TypeError, match="unexpected keyword argument 'prefetch'"):
        SinkDataModule(Data(), prefetch=3)
    with pytest.raises(TypeError, match="`buffer_size` takes a number of batches"):
        SinkDataModule(Data(), buffer_size=1.5)
    with pytest.raises(ValueError, match="`cache` takes"):
        SinkDataModule.from_loaders(loader(2), cache="host")
    with pytest.raises(TypeError, match="cannot be subclassed"):
        type("Mine", (SinkDataModule,), {})


def test_the_options_are_those_of_the_queue():
    options = inspect.signature(SinkDataModule).parameters
    assert {name: item.default for name, item in options.items() if name != "datamodule"} == vars(QueueOptions())


# -- the command line -----------------------------------------------------------------------------------------------

SCRIPT = """
import sys
from lightning.pytorch import LightningDataModule
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel
from lightning_sink.datamodule import SinkDataModule, options_of


class Data(BoringDataModule):
    def __init__(self, size: int = 3, other: str = "a"):
        super().__init__()
        self.save_hyperparameters({saved})
        assert self.hparams.size == size


class Model(BoringModel):
    def on_train_end(self):
        data = self.trainer.datamodule
        print("RESULT", type(data).__qualname__, dict(sorted(data.hparams.items())), options_of(data) or "")


if __name__ == "__main__":
    LightningCLI(Model, *[{kind}], trainer_defaults=dict(
        max_epochs=1, logger=True, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu",
        limit_val_batches=0, limit_train_batches=2, default_root_dir="."))
"""

CONFIG = """
data:
  class_path: lightning_sink.datamodule.SinkDataModule
  init_args:
    datamodule:
      class_path: __main__.Data
      init_args: {size: 7}
    buffer_size: 4
"""


def run(*arguments, saved="", kind=""):
    Path("train.py").write_text(SCRIPT.format(saved=saved, kind=kind))
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "train.py", "fit", *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return next(line for line in done.stdout.splitlines() if line.startswith("RESULT"))


@pytest.mark.narrow
def test_a_config_file():
    Path("given.yaml").write_text(CONFIG)
    line = run("--config=given.yaml")
    assert line == f"{run('--data=Data', '--data.size=7')}{QueueOptions(buffer_size=4)}"
    (config,) = Path("lightning_logs/version_0").glob("config.yaml")
    asked = yaml.safe_load(config.read_text())["data"]
    assert asked["class_path"].endswith("SinkDataModule")
    assert asked["init_args"]["datamodule"] == {"class_path": "__main__.Data", "init_args": {"size": 7, "other": "a"}}
    assert asked["init_args"]["buffer_size"] == 4
    (kept,) = Path("lightning_logs/version_0").rglob("*.ckpt")
    saved = torch.load(kept, weights_only=False)["datamodule_hyper_parameters"]
    assert (saved["size"], saved["_class_path"]) == (7, "__main__.Data")


@pytest.mark.narrow
def test_the_class_as_an_argument_and_hyperparameters_by_name():
    line = run(
        "--data.datamodule=Data", "--data.datamodule.size=8", "--data.timeout=2.5",
        saved="'size'", kind="SinkDataModule",
    )  # fmt: skip
    assert line == f"RESULT Data {{'size': 8}} {QueueOptions(timeout=2.5)}"


def in_this_process(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["train.py"])
    return LightningCLI(
        Net,
        run=False,
        args=["--seed_everything=7", "--data=SinkDataModule", "--data.datamodule=BoringDataModule", *arguments],
    )


def test_a_datamodule_without_arguments_and_dotted_options(monkeypatch):
    data = in_this_process(monkeypatch, "--data.cache=device").datamodule
    assert type(data) is BoringDataModule
    assert options_of(data) == QueueOptions(cache="device")
    assert data.hparams == {}


@pytest.mark.parametrize("option", ["--data.buffer_size=-1", "--data.buffer_size=1.5", "--data.prefetch=1"])
def test_a_wrong_option_on_the_command_line(option, monkeypatch, capsys):
    with pytest.raises((SystemExit, ValueError)) as caught:
        in_this_process(monkeypatch, option)
    assert option[7:].split("=")[0] in capsys.readouterr().err + str(caught.value)
