"""SinkDataModule: all that the datamodule is, and the options beside it."""

import copy
import gc
import inspect
import os
import pickle
import subprocess
import sys
import warnings
import weakref
from abc import ABC, abstractmethod
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
from lightning_sink.datamodule import SinkDataModule
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
def test_every_hook_is_called_as_without_the_wrapper(strategy, net):
    (plain, plain_model), (wrapped, model) = (recorded(strategy, wrap, net) for wrap in (False, True))
    assert wrapped == plain
    names = {name for name, _, _ in plain}
    assert names == set(HOOKS) - {"on_exception"} if net is Whole else "on_exception" in names
    for expected, found in zip(plain_model.parameters(), model.parameters(), strict=True):
        assert torch.equal(expected, found)


def test_hooks_are_those_of_the_installed_lightning():
    assert {"prepare_data", "setup", "teardown", "state_dict", "load_state_dict", "on_exception"} < set(HOOKS)
    assert set(TRANSFER) < set(HOOKS)


def test_the_wrapper_adds_no_hook():
    wrapper = SinkDataModule(L.LightningDataModule())
    for name in HOOKS:
        assert inspect.getattr_static(type(wrapper), name) is inspect.getattr_static(L.LightningDataModule, name)


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
        wrapper = SinkDataModule(data)
        trainer(strategy, max_epochs=1, limit_val_batches=0).fit(module, datamodule=wrapper)
    assert module.moved == 0
    assert (moves if by_instance else wrapper).moved == 3


# -- what it is -----------------------------------------------------------------------------------------------------


def test_attributes_are_the_datamodules():
    inner = Data(size=7)
    wrapper = SinkDataModule(inner, buffer_size=4, timeout=2.0)
    wrapper.set_epoch(3)
    inner.later, wrapper.sooner = 1, 2
    assert (inner.epochs, inner.total, wrapper.total, wrapper.later, inner.sooner) == ([3], 1, 1, 1, 2)
    assert isinstance(wrapper, Data)
    assert isinstance(wrapper, SinkDataModule)
    assert issubclass(type(wrapper), SinkDataModule)
    assert not isinstance(inner, SinkDataModule)
    assert not issubclass(Data, SinkDataModule)
    assert wrapper.hparams is inner.hparams
    assert wrapper.hparams_initial == {"size": 7, "other": "a"}
    assert wrapper.__class__ is Data
    for name in ("__name__", "__module__", "__doc__"):
        assert getattr(type(wrapper), name) == getattr(Data, name)
    assert repr(wrapper) == "SinkDataModule(Data, buffer_size=4, timeout=2.0)"
    assert repr(SinkDataModule(inner)) == "SinkDataModule(Data)"
    assert str(wrapper) == str(inner)
    assert wrapper.queue_options == QueueOptions(buffer_size=4, timeout=2.0)
    assert type(SinkDataModule(Data())) is type(wrapper)


def test_the_class_makes_what_it_ever_made():
    wrapper = SinkDataModule(Data(size=7))
    for made in (type(wrapper)(size=5), wrapper.__class__(5)):
        assert type(made) is Data
        assert made.hparams.size == 5


def test_two_wrappers_share_the_state_and_not_the_options():
    inner = Data()
    first, second = SinkDataModule(inner, buffer_size=1), SinkDataModule(inner, buffer_size=2)
    first.set_epoch(1)
    assert second.epochs == [1]
    assert (first.queue_options.buffer_size, second.queue_options.buffer_size) == (1, 2)


class Slotted(L.LightningDataModule):
    __slots__ = ("rows",)


class Registering(type):
    known = []

    def __init__(cls, name, bases, names, **options):
        super().__init__(name, bases, names)
        assert name not in cls.known
        cls.known.append(name)


class Registered(L.LightningDataModule, metaclass=Registering):
    def __init_subclass__(cls, needed, **options):
        raise AssertionError("derived from")

    def __new__(cls, needed):
        return super().__new__(cls)

    def __init__(self, needed):
        super().__init__()


class Guarded(ABC, L.LightningDataModule):
    def __setattr__(self, name, value):
        assert not name.startswith("_sink")
        super().__setattr__(name, value)

    @abstractmethod
    def make(self): ...


class Concrete(Guarded):
    def make(self):
        return 3


@dataclass
class Fields(L.LightningDataModule):
    rows: int = 4

    def __post_init__(self):
        super().__init__()


def test_unusual_classes():
    inner = Slotted()
    wrapper = SinkDataModule(inner)
    wrapper.rows = 3
    assert inner.rows == 3
    del inner.rows
    assert not hasattr(wrapper, "rows")
    assert isinstance(SinkDataModule(Registered(1)), Registered)
    assert Registering.known == ["Registered"]
    concrete = SinkDataModule(Concrete())
    assert concrete.make() == 3
    assert isinstance(concrete, Guarded)
    assert not isinstance(Concrete(), type(concrete))
    assert SinkDataModule(Fields(2)) == Fields(2)


class Rows(torch.utils.data.Dataset):
    def __init__(self, get):
        self.get = get


def with_references():
    wrapper = SinkDataModule(Data(size=7), buffer_size=4)
    wrapper.rows = Rows(wrapper.collate)
    return wrapper


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda item: pickle.loads(pickle.dumps(item))])
def test_deep_copies(copied):
    wrapper = with_references()
    found = copied(wrapper)
    assert type(found) is type(wrapper)
    assert found.queue_options == wrapper.queue_options
    assert found.hparams == wrapper.hparams
    assert found.hparams is not wrapper.hparams
    assert found.rows.get.__self__ is found
    rows = copied(wrapper.rows)
    assert rows.get.__self__.rows is rows


def test_a_shallow_copy_is_as_deep_as_the_datamodules():
    wrapper = SinkDataModule(Data(), buffer_size=4)
    found = copy.copy(wrapper)
    found.extra = 1
    assert found.queue_options == wrapper.queue_options
    assert found.epochs is wrapper.epochs
    assert not hasattr(wrapper, "extra")


@both_strategies
def test_nothing_is_kept_alive(strategy):
    class Local(Data):
        pass

    def used():
        inner = Local()
        inner.rows = Rows(None)
        wrapper = SinkDataModule(inner)
        trainer(strategy, max_epochs=1).fit(Net(), datamodule=wrapper)
        return [weakref.ref(item) for item in (inner, inner.rows, wrapper, type(wrapper))]

    before = SinkDataModule(Data())
    kept = used()
    gc.collect()
    assert [ref() for ref in kept] == [None] * 4
    assert before.queue_options == QueueOptions()


def test_a_wrapper_is_freed_at_once():
    inner = Data()
    keep = SinkDataModule(inner)  # the class is one cycle, as any class
    gone = weakref.ref(SinkDataModule(inner))
    assert gone() is None
    assert keep.hparams is inner.hparams


# -- checkpoints ----------------------------------------------------------------------------------------------------


@both_strategies
@pytest.mark.parametrize("wrapped_first", [False, True])
def test_checkpoints_pass_between_with_and_without(strategy, wrapped_first):
    first, second = Data(size=4), Data(size=4)
    first.set_epoch(8)
    used = trainer(strategy, max_epochs=1)
    used.fit(Net(), datamodule=SinkDataModule(first) if wrapped_first else first)
    used.save_checkpoint("kept.ckpt")
    saved = torch.load("kept.ckpt", weights_only=False)
    assert saved["Data"] == {"epochs": [8]}
    assert saved["datamodule_hyper_parameters"] == {"size": 4, "other": "a"}
    again = trainer("plain" if strategy == "sink" else "sink")
    again.fit(Net(), datamodule=second if wrapped_first else SinkDataModule(second), ckpt_path="kept.ckpt")
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
    assert data.queue_options == QueueOptions(timeout=3)
    assert repr(data) == "SinkDataModule(LightningDataModule, timeout=3)"
    used = trainer(max_epochs=1)
    used.fit(Net(), datamodule=data)
    assert used.num_val_batches == [3]
    with pytest.raises(L.pytorch.utilities.exceptions.MisconfigurationException, match="test_dataloader"):
        trainer().test(Whole(), datamodule=data)
    assert len(trainer().predict(Whole(), SinkDataModule.from_loaders(predict=loader(2)))) == 2
    assert pickle.loads(pickle.dumps(data)).queue_options.timeout == 3


@pytest.mark.parametrize(
    "given", [3, "path", [loader(2), None], {"a": loader(2), "b": 1.5}, object(), Net()], ids=lambda v: type(v).__name__
)
def test_what_is_no_loader_is_refused(given):
    with pytest.raises(TypeError, match="`val` takes a DataLoader, any other iterable of batches, or a list or dict"):
        SinkDataModule.from_loaders(loader(2), given)


def test_no_loader_and_a_datamodule_as_a_loader_are_refused():
    with pytest.raises(TypeError, match="at least one of"):
        SinkDataModule.from_loaders(timeout=3)
    with pytest.raises(TypeError, match=r"Wrap it: `SinkDataModule\(datamodule\)`"):
        SinkDataModule.from_loaders(Data())


# -- wrong arguments ------------------------------------------------------------------------------------------------


class Occupied(Data):
    queue_options = 3


@pytest.mark.parametrize(("given", "message"), [
    (lambda: loader(2), r"object of the class `DataLoader`. For loaders use `SinkDataModule.from_loaders\("),
    (lambda: [loader(2)], r"`list`. For loaders use"),
    (lambda: Data, r"the class `Data`. Pass an instance: `SinkDataModule\(Data\(\.\.\.\)\)`"),
    (Net, r"`Net`. The model goes to `Trainer.fit\(model, datamodule=...\)`"),
    (lambda: None, r"`NoneType`. Pass a datamodule"),
    (lambda: SinkDataModule(Data(), timeout=3), r"SinkDataModule\(Data, timeout=3\) is wrapped already. Give all"),
    (Occupied, "`Occupied` has an attribute `queue_options`"),
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
from lightning_sink.datamodule import SinkDataModule


class Data(BoringDataModule):
    def __init__(self, size: int = 3, other: str = "a"):
        super().__init__()
        self.save_hyperparameters({saved})
        assert self.hparams.size == size


class Model(BoringModel):
    def on_train_end(self):
        data = self.trainer.datamodule
        wrapped = repr(data) if isinstance(data, SinkDataModule) else ""
        print("RESULT", data.__class__.__qualname__, dict(sorted(data.hparams.items())), wrapped)


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


def test_a_config_file():
    Path("given.yaml").write_text(CONFIG)
    line = run("--config=given.yaml")
    wrapped = "SinkDataModule(Data, buffer_size=4)"
    assert line == f"{run('--data=Data', '--data.size=7')}{wrapped}"
    (config,) = Path("lightning_logs/version_0").glob("config.yaml")
    asked = yaml.safe_load(config.read_text())["data"]
    assert asked["class_path"].endswith("SinkDataModule")
    assert asked["init_args"]["datamodule"] == {"class_path": "__main__.Data", "init_args": {"size": 7, "other": "a"}}
    assert asked["init_args"]["buffer_size"] == 4
    (kept,) = Path("lightning_logs/version_0").rglob("*.ckpt")
    saved = torch.load(kept, weights_only=False)["datamodule_hyper_parameters"]
    assert (saved["size"], saved["_class_path"]) == (7, "__main__.Data")


def test_the_class_as_an_argument_and_hyperparameters_by_name():
    line = run(
        "--data.datamodule=Data", "--data.datamodule.size=8", "--data.timeout=2.5",
        saved="'size'", kind="SinkDataModule",
    )  # fmt: skip
    assert line == "RESULT Data {'size': 8} SinkDataModule(Data, timeout=2.5)"


def in_this_process(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["train.py"])
    return LightningCLI(
        Net,
        run=False,
        args=["--seed_everything=7", "--data=SinkDataModule", "--data.datamodule=BoringDataModule", *arguments],
    )


def test_a_datamodule_without_arguments_and_dotted_options(monkeypatch):
    data = in_this_process(monkeypatch, "--data.cache=device").datamodule
    assert repr(data) == "SinkDataModule(BoringDataModule, cache='device')"
    assert data.hparams == {}


def test_names_stay_unambiguous_once_a_wrapper_exists(monkeypatch):
    # `lightning.pytorch.demos` re-exports this class: two classes of its name would be two paths.
    wrappers = [SinkDataModule(BoringDataModule()), in_this_process(monkeypatch).datamodule]
    wrappers.append(in_this_process(monkeypatch).datamodule)
    assert len({type(item) for item in wrappers}) == 1


@pytest.mark.parametrize("option", ["--data.buffer_size=-1", "--data.buffer_size=1.5", "--data.prefetch=1"])
def test_a_wrong_option_on_the_command_line(option, monkeypatch, capsys):
    with pytest.raises((SystemExit, ValueError)) as caught:
        in_this_process(monkeypatch, option)
    assert option[7:].split("=")[0] in capsys.readouterr().err + str(caught.value)
