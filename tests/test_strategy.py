"""The options of SinkStrategy, what it refuses, and what its refusals say."""

import copy
import enum
import pickle

import lightning as L
import pytest
import pytorch_lightning
import torch
from lightning.pytorch.callbacks import LearningRateFinder
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.plugins import TorchCheckpointIO
from lightning.pytorch.strategies import StrategyRegistry
from torch.utils.data import DataLoader, IterableDataset

from fake_device import FakeAccelerator
from lightning_sink import EmptyDatasetError, SinkStrategy, UnsupportedError
from parity import QUIET, Net, assert_parity, loader, once, train

SIZES = "-1 for the whole dataset, or a number of batches from 1 up"
ENGINES = "'auto', 'eager', 'traced', 'inductor', 'cudagraph'"
WRONG = [
    ({"sink_size": 0}, ValueError, SIZES),
    ({"sink_size": -2}, ValueError, SIZES),
    ({"sink_size": 1.5}, TypeError, SIZES),
    ({"sink_size": 2.0}, TypeError, SIZES),
    ({"sink_size": True}, TypeError, SIZES),
    ({"sink_size": "9"}, TypeError, SIZES),
    ({"sink_size": None}, TypeError, SIZES),
    ({"dataset_sink_mode": 1}, TypeError, "True or False"),
    ({"dataset_sink_mode": "yes"}, TypeError, "True or False"),
    ({"epoch": "data"}, ValueError, "'sink', 'dataset'"),
    ({"epoch": None}, TypeError, "'sink', 'dataset'"),
    ({"engine": "cuda"}, ValueError, ENGINES),
    ({"engine": 3}, TypeError, ENGINES),
    ({"fallback": "ignore"}, ValueError, "'warn', 'error'"),
    ({"fallback": False}, TypeError, "'warn', 'error'"),
    ({"verify": -1}, ValueError, "a number of steps, 0 for none"),
    ({"verify": True}, TypeError, "a number of steps, 0 for none"),
    ({"verify": 1.0}, TypeError, "a number of steps, 0 for none"),
]


def trainer(strategy, **options):
    return L.Trainer(strategy=strategy, logger=False, **{**QUIET, "max_epochs": 1, **options})


@pytest.mark.parametrize(("options", "error", "accepted"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_option_is_refused_when_the_strategy_is_built(options, error, accepted):
    ((name, value),) = options.items()
    with pytest.raises(error) as raised:
        SinkStrategy(**options)
    assert str(raised.value) == f"`SinkStrategy({name}=...)` takes {accepted}; got {value!r}."


def test_accepted_values_of_other_kinds_of_integers():
    numpy = pytest.importorskip("numpy")
    strategy = SinkStrategy(numpy.int64(3), verify=numpy.int32(0))
    assert type(strategy.sink_size) is int
    assert (strategy.sink_size, strategy.verify) == (3, 0)


def test_options_other_than_the_size_are_given_by_name():
    with pytest.raises(TypeError):
        SinkStrategy(3, True)


def test_the_representation_names_the_options_and_the_package():
    assert repr(SinkStrategy(7, epoch="dataset", engine="eager", verify=0)) == (
        "SinkStrategy(sink_size=7, dataset_sink_mode=True, epoch='dataset', engine='eager', fallback='warn', verify=0)"
        " [for the Trainer of the package `lightning`; for `pytorch_lightning`, call"
        " `lightning_sink.alias_pytorch_lightning()` before it is imported]"
    )


def test_the_trainer_of_the_other_package_shows_that_representation():
    with pytest.raises(ValueError, match="package `lightning`") as raised:
        pytorch_lightning.Trainer(strategy=SinkStrategy())
    assert repr(SinkStrategy()) in str(raised.value)


def test_the_registered_name():
    assert "sink" in StrategyRegistry.available_strategies()
    assert type(trainer("sink").strategy) is SinkStrategy
    assert trainer("sink").strategy.sink_size == -1


def test_two_trainers_by_name_have_two_strategies():
    assert trainer("sink").strategy is not trainer("sink").strategy


@pytest.mark.parametrize("devices", [[torch.device("mps", 0)], [0], [torch.device("xpu", 0), torch.device("xpu", 1)]])
def test_another_accelerator_is_refused_when_the_trainer_is_built(devices):
    members = {"get_parallel_devices": staticmethod(lambda asked: devices)}
    accelerator = type("FarAccelerator", (FakeAccelerator,), members)()
    with pytest.raises(UnsupportedError) as raised:
        trainer(SinkStrategy(), accelerator=accelerator, devices=1)
    assert str(raised.value) == (
        "`SinkStrategy` trains on a CPU or a CUDA GPU; got `FarAccelerator`. Pass"
        ' `Trainer(accelerator="cpu", ...)`, or leave the strategy out to train on this device without sinks.'
    )


def test_more_than_one_device_is_refused_when_the_trainer_is_built():
    with pytest.raises(UnsupportedError) as raised:
        trainer(SinkStrategy(), devices=2)
    assert str(raised.value) == "`SinkStrategy` trains on one device so far; got 2. Pass `Trainer(devices=1, ...)`."
    assert trainer(SinkStrategy(), devices=1).num_devices == 1


def test_more_than_one_device_is_refused_for_a_strategy_that_has_served_before():
    strategy = SinkStrategy()
    assert trainer(strategy).num_devices == 1
    with pytest.raises(UnsupportedError, match="one device so far; got 2"):
        trainer(strategy, devices=2, accelerator="auto")


class NoOptimizer(Net):
    def configure_optimizers(self):
        return None


@pytest.mark.filterwarnings("ignore:.*returned `None`, this fit will run with no optimizer")
def test_no_optimizer_is_refused_before_the_first_batch():
    module = NoOptimizer()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with pytest.raises(UnsupportedError) as raised:
        trainer(SinkStrategy(engine="eager")).fit(module, loader())
    text = str(raised.value)
    assert text.startswith("`NoOptimizer.configure_optimizers` returned None (")
    assert f"{__file__}:{NoOptimizer.configure_optimizers.__code__.co_firstlineno})" in text
    assert "Return an optimizer, or train with `SinkStrategy(dataset_sink_mode=False)`." in text
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


@pytest.mark.filterwarnings("ignore:.*returned `None`, this fit will run with no optimizer")
def test_the_way_out_of_no_optimizer():
    done = trainer(SinkStrategy(dataset_sink_mode=False))
    done.fit(NoOptimizer(), loader())
    assert done.fit_loop.epoch_loop.batch_progress.total.completed == 17


class Nothing(IterableDataset):
    def __iter__(self):
        return iter(())


@pytest.mark.filterwarnings("ignore:Total length of `.*Loaders?` across ranks is zero")
@pytest.mark.filterwarnings("ignore:Your `IterableDataset` has `__len__` defined")
@pytest.mark.parametrize("size", [-1, 3])
@pytest.mark.parametrize("data", [[], Nothing()], ids=["sized", "unsized"])
def test_an_empty_dataset_is_an_error(data, size):
    with pytest.raises(EmptyDatasetError, match=r"The training data (has|gave) no batch") as raised:
        trainer(SinkStrategy(size, engine="eager")).fit(BoringModel(), DataLoader(data))
    assert "check the dataset's length" in str(raised.value)
    assert "`batch_size` with `drop_last=True`" in str(raised.value)


def test_no_batches_by_request_is_no_error():
    done = trainer(SinkStrategy(engine="eager"), limit_train_batches=0)
    done.fit(BoringModel(), DataLoader(torch.randn(4, 32)), DataLoader(torch.randn(4, 32)))
    assert done.global_step == 0


class Fetches(Net):
    def training_step(self, dataloader_iter):
        (x, y), _, _ = next(dataloader_iter)
        return torch.nn.functional.cross_entropy(self.net(x), y)


@pytest.mark.filterwarnings("ignore:You are using the `dataloader_iter` step flavor")
@pytest.mark.filterwarnings("ignore:Found `dataloader_iter` argument")
def test_a_step_that_fetches_its_own_batches_is_refused_and_named():
    with pytest.raises(UnsupportedError) as raised:
        trainer(SinkStrategy(engine="eager")).fit(Fetches(), loader())
    line = Fetches.training_step.__code__.co_firstlineno
    assert str(raised.value) == (
        f"`Fetches.training_step` takes `dataloader_iter` ({__file__}:{line}) and fetches its own batches; a sink hands"
        " each step one batch. Take `batch, batch_idx` instead, or train with `SinkStrategy(dataset_sink_mode=False)`."
    )
    done = trainer(SinkStrategy(dataset_sink_mode=False))
    done.fit(Fetches(), loader())
    assert done.global_step == 17


class Rated(Net):
    def __init__(self):
        super().__init__()
        self.lr = 0.01

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


@pytest.mark.narrow(11)
@pytest.mark.parametrize("engine", ["eager", "traced"])
@pytest.mark.parametrize("size", [-1, 4])
def test_the_search_for_a_learning_rate_sees_every_step(size, engine):
    found = []
    for strategy in ("auto", SinkStrategy(size, epoch="dataset", engine=engine)):
        torch.manual_seed(7)
        finder = LearningRateFinder(num_training_steps=25)
        run = train(Rated(), loader(40), strategy, callbacks=[finder], max_epochs=2)
        found.append((run, finder.optimal_lr))
    (plain, expected), (sink, got) = found
    assert len(expected.results["loss"]) == len(got.results["loss"])
    assert got.results["loss"] == pytest.approx(expected.results["loss"], rel=1e-4)
    assert got.suggestion() == expected.suggestion()
    assert plain.module.lr == sink.module.lr
    assert_parity(plain, sink, exact=engine == "eager")


def test_without_sinks_it_is_plain_lightning():
    runs = []
    for strategy in ("auto", SinkStrategy(5, dataset_sink_mode=False)):
        torch.manual_seed(7)
        runs.append(train(Net(), loader(shuffle=True), strategy, max_epochs=2))
    plain, off = runs
    assert_parity(plain, off, exact=True)
    assert off.events.starts == off.events.ends == [*range(17), *range(17)]
    assert type(off.trainer.fit_loop) is type(plain.trainer.fit_loop)
    assert off.trainer.strategy.history == {}
    assert not [text for text in off.warned if "sink" in text.lower()]


def test_control_with_sinks_it_is_not():
    torch.manual_seed(7)
    on = train(Net(), loader(shuffle=True), SinkStrategy(engine="eager"), max_epochs=2)
    assert on.events.starts == [0, 0]
    assert on.events.ends == [16, 16]
    assert set(on.trainer.strategy.history) == {"loss", "loss_forked", "accuracy", "largest"}


def test_the_active_engine_before_and_after():
    strategy = SinkStrategy(engine="traced")
    assert strategy.active_engine == "eager"  # no step has been compiled
    assert strategy.history == {}
    train(Net(), loader(), strategy, max_epochs=1)
    assert strategy.active_engine == "traced"


class Stage(enum.IntEnum):
    FIRST = 1


class Staged(Net):
    def __init__(self):
        super().__init__()
        self.stage = Stage.FIRST


def test_a_module_may_keep_a_number_with_a_name():
    strategies = "auto", SinkStrategy(engine="traced")
    plain, sink = (once(Staged, loader, strategy, max_epochs=2) for strategy in strategies)
    assert sink.engine == "traced"
    assert_parity(plain, sink)


def again(trainer):
    """Trains two more epochs."""
    trainer.fit_loop.max_epochs += 2
    trainer.fit(trainer.lightning_module, loader())
    return {name: tensor.detach().clone() for name, tensor in trainer.lightning_module.state_dict().items()}


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda trainer: pickle.loads(pickle.dumps(trainer))])
@pytest.mark.parametrize("data", [loader, lambda: DataLoader(loader().dataset, 8, num_workers=1)])
def test_a_trainer_that_has_trained_can_be_copied(copied, data):
    found = train(Net(), data(), SinkStrategy(4, engine="traced"), max_epochs=2)
    other = copied(found.trainer)
    assert other.strategy.sink_report() == found.trainer.strategy.sink_report()
    assert torch.equal(other.strategy.history["loss"], found.trainer.strategy.history["loss"])
    torch.manual_seed(5)
    expected = again(found.trainer)
    torch.manual_seed(5)
    for name, tensor in again(other).items():
        assert torch.equal(tensor, expected[name])
    assert other.global_step == found.trainer.global_step


class Keeps(BoringModel):
    """As models of libraries do that build their Trainer themselves (neuralforecast)."""

    def __init__(self, trainer_kwargs):
        super().__init__()
        self.save_hyperparameters()


def test_a_strategy_among_the_hyperparameters_goes_into_checkpoints(tmp_path):
    strategy = SinkStrategy(3, epoch="dataset", engine="eager", verify=0)
    checkpoint = L.pytorch.callbacks.ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=2)
    found = trainer(strategy, max_steps=4, callbacks=[checkpoint], enable_checkpointing=True)
    found.fit(Keeps({"strategy": strategy}))
    saved = torch.load(checkpoint.best_model_path, weights_only=False)["hyper_parameters"]["trainer_kwargs"]["strategy"]
    assert repr(saved) == repr(strategy)
    assert saved.sink_report().batches > 0
    trainer(saved, accelerator="cpu", max_steps=2).fit(BoringModel())


def test_each_trainer_of_a_strategy_has_what_it_asked_for():
    strategy = SinkStrategy(2, epoch="dataset", engine="eager")
    for precision in ("32-true", "bf16-mixed"):
        found = trainer(strategy, accelerator="cpu", precision=precision, plugins=[TorchCheckpointIO()], max_steps=2)
        found.fit(BoringModel())
        assert found.precision == precision
    found = trainer(strategy, precision="64-true", max_steps=2)
    found.fit(BoringModel())
    assert found.precision_plugin.precision == "64-true"
