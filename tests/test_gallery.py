"""The gallery: small modules of every kind that users have, each trained plainly and in sinks.

What a case shows is its name; whether its steps are compiled, run eagerly with a warning, or refused with an error is
written beside it. The modules are in `gallery/`, a file for each subject.
"""

import linecache
import random
import re
import warnings
from dataclasses import replace
from importlib import import_module

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden

import positions
from gallery.case import CASES, Small
from gallery.kept import assert_kept
from gallery.recorder import recorded
from lightning_sink import SinkStrategy
from lightning_sink.errors import SinkError
from parity import QUIET, Events, Rows, assert_parity, once

# What plain Lightning and torch themselves warn of in some of the cases.
pytestmark = [
    pytest.mark.filterwarnings("ignore:You passed .* AMP with fp16 is not supported on CPU:UserWarning"),
    pytest.mark.filterwarnings("ignore:A `OneCycleLR` scheduler is using 'interval'. 'epoch':RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning"),
]

WITH_HOOKS = ["hooks", "stepping", "around", "transfer", "steps", "attached", "manual", "several", "options"]
WITH_HOOKS += ["callbacks", "sink_ends"]
OTHERS = [
    "arrays",
    "asked",
    "assumed",
    "drawn",
    "elsewhere",
    "by_hand",
    "collected",
    "constants",
    "epochs",
    "generators",
    "gradients",
    "hidden",
    "masks",
    "measures",
    "optimizers",
]
OTHERS += [
    "own_counts",
    "own_optimizers",
    "parameters",
    "parts",
    "precision",
    "put_out",
    "randomness",
    "rates",
    "reach",
    "schedulers",
]
OTHERS += [
    "held_schedulers",
    "inputs",
    "lookups",
    "recomputed",
    "setting",
    "state",
    "tables",
    "teachers",
    "values",
]
OTHERS += ["wrapped"]
OTHERS += ["carried", "dictionaries", "kept_numbers", "objects"] * positions.KNOWN  # from Python 3.11 on
OTHERS += ["floats", "second_names", "sharpness"]
for subject in WITH_HOOKS:
    import_module(f"gallery.{subject}")  # fills CASES
HOOKED = [case for case in CASES if case.refused is None and case.raises is None and case.ordered]
for subject in OTHERS:
    import_module(f"gallery.{subject}")

TRAINED = [case for case in CASES if case.refused is None and case.raises is None]
SAME = [case for case in TRAINED if case.warns is None]


def names(case):
    return case.name


def test_names_are_there_once():
    assert len({case.name for case in CASES}) == len(CASES)


def trained(case, *engines, sink_size=None):
    """Trains plainly, and in sinks by each engine."""
    runs = []
    for engine in (None, *engines):
        strategy = "auto" if engine is None else SinkStrategy(sink_size or case.size, epoch="dataset", engine=engine)
        options = {**case.trainer_options(), "callbacks": case.options.get("callbacks", list), "loggers": case.loggers}
        runs.append(once(case.make, case.data, strategy, **options))
    return runs


def line_named(text):
    """Returns the line of source that a warning of eager steps names."""
    file, _, number = re.search(r"\(([^()]+:\d+)\)\. To compile", text).group(1).rpartition(":")
    return linecache.getline(file, int(number))


def assert_left_alike(case, plain, sink, exact=False):
    """Beyond what `assert_parity` looks at: Python state of module and optimizers, buffers, random generators."""
    assert_kept(plain, sink, exact, case.tolerance)
    for name, expected, found in zip(("torch", "python", "numpy"), plain.generators, sink.generators, strict=True):
        assert expected == found, f"the final state of the random generator of {name}"


@pytest.mark.narrow(19)
@pytest.mark.parametrize("case", SAME, ids=names)
def test_in_sinks(case):
    """Steps in eager sinks are those that are recorded, so most cases leave them out."""
    engines = ["traced", *["eager"] * bool(case.inductor or case.eager), *["inductor"] * case.inductor]
    plain, *sinks = trained(case, *engines)
    for engine, sink in zip(engines, sinks, strict=True):
        assert_parity(plain, sink, exact=engine == "eager", tolerance=case.tolerance)
        assert_left_alike(case, plain, sink, exact=engine == "eager")
        assert case.few or case.eager is not None or engine == sink.engine
        assert_says_what_runs_eagerly(case if engine != "eager" else replace(case, eager=None), sink)


def assert_says_what_runs_eagerly(case, sink):
    warned = [text for text in sink.warned if "runs eagerly" in text]
    if case.eager is None:
        assert not warned, warned
    elif not case.few:
        fitting = [text for text in warned if case.eager in text]
        assert fitting, warned
        assert case.line is None or any(case.line in line_named(text) for text in fitting), warned


@pytest.mark.narrow(13)
@pytest.mark.parametrize("engine", ["eager", "traced"])
@pytest.mark.parametrize("case", [case for case in TRAINED if case.warns is not None], ids=names)
def test_says_that_it_differs(case, engine):
    plain, sink = trained(case, engine)
    different = any(not torch.equal(plain.tensors[name], found) for name, found in sink.tensors.items())
    assert different, "this case shows nothing"
    assert any(case.warns in text for text in sink.warned), "it differs, and nothing says so"
    plain, sink = trained(case, engine, sink_size=1)
    assert not any(case.warns in text for text in sink.warned)
    assert_parity(plain, sink, exact=engine == "eager")


@pytest.mark.parametrize("case", [case for case in CASES if case.refused is not None], ids=names)
def test_refused(case):
    options = {**case.trainer_options(), "logger": False}
    trained_by = SinkStrategy(4, epoch="dataset", engine="traced")
    module = case.make()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    warnings.simplefilter("ignore", category=UserWarning)
    with pytest.raises(SinkError) as caught:
        L.Trainer(strategy=trained_by, **{**QUIET, **options}).fit(module, case.data())
    assert case.refused in str(caught.value)
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


@pytest.mark.narrow(11)
@pytest.mark.parametrize("engine", ["eager", "traced"])
@pytest.mark.parametrize("case", [case for case in CASES if case.raises is not None], ids=names)
def test_raises_what_plain_lightning_raises(case, engine):
    raised = []
    for strategy in ("auto", SinkStrategy(4, epoch="dataset", engine=engine)):
        torch.manual_seed(7)
        random.seed(7)
        module = case.make()
        warnings.simplefilter("ignore", category=UserWarning)
        trainer = L.Trainer(strategy=strategy, **{**QUIET, **case.trainer_options(), "logger": False})
        with pytest.raises(Exception, match=case.raises) as caught:
            trainer.fit(module, case.data())
        raised.append((caught.type, str(caught.value), module.state_dict()))
    (kind, text, expected), (found_kind, found_text, found) = raised
    assert (kind, text) == (found_kind, found_text)
    assert all(torch.allclose(tensor, found[name], rtol=1e-4) for name, tensor in expected.items())


# -- the order of all hooks --------------------------------------------------------------------------------------------


def sequence(case, strategy):
    """Returns every hook that was called, with the counters that it saw."""
    options = {"limit_train_batches": 5, **case.trainer_options()}
    trainer = L.Trainer(
        strategy=strategy,
        logger=[Rows(), *case.loggers()],
        callbacks=[Events(), *options.pop("callbacks", [])],
        **{**QUIET, "log_every_n_steps": 3, **options},
    )
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    module, data, calls = case.make(), case.data(), []
    inner = getattr(module, "_orig_mod", module)
    validates = inner.val_dataloader if is_overridden("val_dataloader", inner) else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", category=UserWarning)
        with recorded(trainer, module, calls):
            if not isinstance(data, L.LightningDataModule):
                data = Data(data) if validates is None else ValidatedData(data, validates())
            trainer.fit(module, datamodule=data)
    return calls, module.state_dict()


class Data(L.LightningDataModule):
    def __init__(self, train):
        super().__init__()
        self.train = train

    def train_dataloader(self):
        return self.train


class ValidatedData(Data):
    def __init__(self, train, validation):
        super().__init__(train)
        self.validation = validation

    def val_dataloader(self):
        return self.validation


@pytest.mark.narrow(19)
@pytest.mark.parametrize("case", HOOKED, ids=names)
def test_hooks_are_called_in_plain_lightnings_order(case):
    plain, expected = sequence(case, "auto")
    sinks, found = sequence(case, SinkStrategy(1, epoch="dataset", engine="eager"))
    assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items() if tensor.layout is torch.strided)
    for index, (call, same) in enumerate(zip(plain, sinks, strict=False)):
        assert call == same, f"call {index}"
    assert len(plain) == len(sinks)
    assert case.few or {"on_train_batch_start", "on_train_start"} <= {name for _, name, _ in plain}


def test_control_longer_sinks_call_fewer_hooks():
    case = next(case for case in CASES if case.make is Small)
    calls, _ = sequence(case, SinkStrategy(2, epoch="dataset", engine="eager"))
    assert len(calls) < len(sequence(case, "auto")[0])
