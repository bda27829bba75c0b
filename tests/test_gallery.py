"""The gallery: small modules of every kind that users have, each trained plainly and in sinks.

What a case shows is its name; whether its steps are compiled, run eagerly with a warning, or refused with an error is
written beside it. The modules are in `gallery/`, a file for each subject.
"""

import importlib
import linecache
import re
import warnings

import lightning as L
import pytest
import torch

from gallery.case import CASES, Small
from gallery.kept import assert_kept
from gallery.recorder import recorded
from lightning_sink import SinkStrategy
from lightning_sink.errors import SinkError
from parity import QUIET, Events, Rows, assert_parity, both

SUBJECTS = ["hooks", "manual", "options"]
SUBJECTS += ["generators", "hidden", "measures", "optimizers", "own_optimizers", "parameters", "precision"]
SUBJECTS += ["randomness", "rates", "reach", "schedulers", "state", "teachers"]
for subject in SUBJECTS:
    importlib.import_module(f"gallery.{subject}")  # fills CASES

# What plain Lightning and torch themselves warn of in some of the cases.
pytestmark = [
    pytest.mark.filterwarnings("ignore:You passed .* AMP with fp16 is not supported on CPU:UserWarning"),
    pytest.mark.filterwarnings("ignore:A `OneCycleLR` scheduler is using 'interval'. 'epoch':RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning"),
]

TRAINED = [case for case in CASES if case.refused is None]


def names(case):
    return case.name


def test_names_are_there_once():
    assert len({case.name for case in CASES}) == len(CASES)


def trained(case, engine, sink_size=4):
    strategy = SinkStrategy(sink_size, epoch="dataset", engine=engine)
    options = case.trainer_options()
    callbacks = case.options.get("callbacks", list)
    options.pop("callbacks", None)
    return both(case.make, case.data, strategy, callbacks=callbacks, **options)


def line_named(text):
    """Returns the line of source that a warning of eager steps names."""
    file, _, number = re.search(r"\(([^()]+:\d+)\)\. To compile", text).group(1).rpartition(":")
    return linecache.getline(file, int(number))


def assert_left_alike(case, plain, sink, exact=False):
    """Beyond what `assert_parity` looks at: Python state of module and optimizers, buffers, random generators."""
    assert_kept(plain, sink, exact, case.tolerance)
    for name, expected, found in zip(("torch", "python", "numpy"), plain.generators, sink.generators, strict=True):
        assert expected == found, f"the final state of the random generator of {name}"


@pytest.mark.parametrize("case", TRAINED, ids=names)
def test_traced(case):
    plain, sink = trained(case, "traced")
    warned = [text for text in sink.warned if "runs eagerly" in text]
    if case.eager is None:
        assert not warned, warned
        assert sink.engine == "traced"
    else:
        fitting = [text for text in warned if case.eager in text]
        assert fitting, warned
        assert case.line is None or any(case.line in line_named(text) for text in fitting), warned
    assert_parity(plain, sink, tolerance=case.tolerance)
    assert_left_alike(case, plain, sink)


@pytest.mark.parametrize("case", TRAINED, ids=names)
def test_eager(case):
    plain, sink = trained(case, "eager")
    assert not [text for text in sink.warned if "runs eagerly" in text]
    assert_parity(plain, sink, exact=True)
    assert_left_alike(case, plain, sink, exact=True)


@pytest.mark.parametrize("case", [case for case in TRAINED if case.inductor], ids=names)
def test_inductor(case):
    plain, sink = trained(case, "inductor")
    assert not [text for text in sink.warned if "runs eagerly" in text]
    assert sink.engine == "inductor"
    assert_parity(plain, sink, tolerance=case.tolerance)
    assert_left_alike(case, plain, sink)


@pytest.mark.parametrize("case", [case for case in CASES if case.refused is not None], ids=names)
def test_refused(case):
    options = {**case.trainer_options(), "logger": False}
    trained_by = SinkStrategy(4, epoch="dataset", engine="traced")
    module = case.make()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with pytest.raises(SinkError) as caught:
        L.Trainer(strategy=trained_by, **{**QUIET, **options}).fit(module, case.data())
    assert case.refused in str(caught.value)
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


# -- the order of all hooks --------------------------------------------------------------------------------------------


def sequence(case, strategy):
    """Returns every hook that was called, with the counters that it saw."""
    options = case.trainer_options()
    trainer = L.Trainer(
        strategy=strategy,
        logger=Rows(),
        callbacks=[Events(), *options.pop("callbacks", [])],
        **{**QUIET, "log_every_n_steps": 3, **options},
    )
    torch.manual_seed(7)
    module, data, calls = case.make(), case.data(), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=UserWarning)
        with recorded(trainer, module, calls):
            trainer.fit(module, datamodule=data if isinstance(data, L.LightningDataModule) else Data(data))
    return calls


class Data(L.LightningDataModule):
    def __init__(self, train):
        super().__init__()
        self.train = train

    def train_dataloader(self):
        return self.train


@pytest.mark.parametrize("case", TRAINED, ids=names)
def test_hooks_are_called_in_plain_lightnings_order(case):
    plain = sequence(case, "auto")
    sinks = sequence(case, SinkStrategy(1, epoch="dataset", engine="eager"))
    for index, (expected, found) in enumerate(zip(plain, sinks, strict=False)):
        assert expected == found, f"call {index}"
    assert len(plain) == len(sinks)
    assert {"on_train_batch_start", "training_step", "on_train_start"} <= {name for _, name, _ in plain}


def test_control_longer_sinks_call_fewer_hooks():
    case = next(case for case in CASES if case.make is Small)
    calls = sequence(case, SinkStrategy(2, epoch="dataset", engine="eager"))
    assert len(calls) < len(sequence(case, "auto"))
