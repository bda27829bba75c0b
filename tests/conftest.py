"""Each test starts from the same state and leaves the process as it found it: no thread, no child, no file."""

import functools
import gc
import importlib
import itertools
import os

# Models here are tiny. With more threads than one, beside any other busy process, threads that wait for each other at
# every operation make the suite ten times slower. The variable is for the processes that tests start.
os.environ["OMP_NUM_THREADS"] = "1"

import random
import signal
from itertools import chain
from types import FunctionType, SimpleNamespace
from unittest import mock

import hypothesis
import hypothesis.configuration
import numpy as np
import pytest
import torch
import torch._dynamo
from lightning.fabric.utilities import registry
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultMetric

import leaks
import selection
from lightning_sink.data import lookahead, pace
from lightning_sink.data.turn import NumpyTurns
from lightning_sink.engine import compiled
from lightning_sink.engine.numbers import bound_names
from lightning_sink.engine.programs import chunks as chunks_of_programs
from lightning_sink.engine.programs import maker
from lightning_sink.engine.programs.window import Window
from lightning_sink.engine.state import closures, referrers
from lightning_sink.trainer.loop_sink import LoopSink

# The same examples in each run, so that a failure is a change. `--hypothesis-profile=explore` looks for new ones.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.register_profile("explore", max_examples=10_000, deadline=None)
hypothesis.settings.load_profile("repeatable")

torch.set_num_threads(1)

# Each Trainer reads the names of all that is installed, in search of callbacks: half of the time that it takes to make.
registry.entry_points = functools.cache(registry.entry_points)


def to_device(metric, *args, move=_ResultMetric.to, **kwargs):
    """Moves a logged value, if it lies elsewhere. Lightning does it in each `self.log`, and looks at nothing before.

    It goes through all that is kept beside the value, and copies that: a tenth of the suite's time.
    """
    tensors = [item for item in vars(metric).values() if isinstance(item, torch.Tensor)]
    is_there = metric.is_tensor and not kwargs and all(args == (tensor.device,) for tensor in tensors)
    return metric if is_there else move(metric, *args, **kwargs)


# As Lightning's own: steps whose own code looks at all attributes are not compiled as others are.
as_lightnings = FunctionType(to_device.__code__, {**globals(), "__name__": "lightning.pytorch"})
as_lightnings.__kwdefaults__ = to_device.__kwdefaults__
_ResultMetric.to = as_lightnings

# A seed for devices that are not at work yet is kept for then, with the whole stack as text, by each of these.
for absent in (torch.cuda, torch.xpu, torch.mtia):
    if not absent.is_available():
        absent.manual_seed_all = lambda seed: None

# What trainings leave is collected a tenth as often: they make many objects, and few of these are garbage.
gc.set_threshold(10 * gc.get_threshold()[0], *gc.get_threshold()[1:])

# A shell lets what it runs in the background ignore Ctrl-C, which tests press.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


pytest_addoption, pytest_collection_modifyitems = selection.pytest_addoption, selection.pytest_collection_modifyitems


def pytest_configure(config: pytest.Config) -> None:
    cache = getattr(config, "cache", None)  # absent under `-p no:cacheprovider`
    if cache is not None:
        # What Inductor compiled once serves the whole suite and its next runs; processes that tests start inherit it.
        # (Whether somebody has set it is not known: to read which warnings are no errors, pytest has imported
        # lightning, that torch._dynamo, and that sets it.)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache.mkdir("inductor"))
        hypothesis.configuration.set_hypothesis_home_dir(cache.mkdir("hypothesis"))


FROZEN: dict[int, list[FunctionType]] = {}
"""Functions that the search among all objects does not see any more, by the identity of their code."""

TESTS = itertools.count()


def freeze() -> None:
    """Freezes all that is there; by far the most are libraries and what was collected.

    Each training looks for the functions of its step among all objects. Of each class that a test makes, there are a
    hundred more after it: abstract classes remember what they were asked about it. What is frozen costs the next
    freezing nothing, so there is one every few tests.
    """
    gc.collect()
    for item in gc.get_objects():
        if type(item) is FunctionType:
            FROZEN.setdefault(id(item.__code__), []).append(item)
    gc.freeze()


def pytest_collection_finish() -> None:
    importlib.import_module("torch._inductor.compile_fx")  # else some test does: a hundred thousand objects
    search = closures.functions_of
    closures.functions_of = lambda codes: search(codes) + [f for code in codes for f in FROZEN.get(id(code), ())]
    of_names = bound_names.functions_with
    bound_names.functions_with = lambda names: (
        of_names(names) + [f for f in chain(*FROZEN.values()) if f.__globals__ is names]
    )
    referrers.unfreeze = bound_names.unfreeze = lambda: None
    freeze()


@pytest.fixture
def unhurried(monkeypatch):
    """Lets what is decided by the clock be as on a fast machine, however slow this one is."""
    for module in (chunks_of_programs, lookahead):
        monkeypatch.setattr(module, "_SECONDS", 1e6)
    monkeypatch.setattr(compiled, "_FREE_SECONDS", 1e6)
    monkeypatch.setattr(pace, "_CHEAP", float("inf"))  # no fetch is tried on the queue's thread
    monkeypatch.setattr(maker, "perf_counter", lambda: 0.0)  # no program takes longer than it is worth


@pytest.fixture
def rows(monkeypatch, unhurried):
    """The lengths of rows in windows, in order, each with the number of its turns."""
    made, original = [], Window.in_row

    def in_row(self, columns, numbers, steps):
        made.append((steps, len(self.turns)))
        return original(self, columns, numbers, steps)

    monkeypatch.setattr(Window, "in_row", in_row)
    return made


@pytest.fixture
def chunks(monkeypatch, unhurried):
    """The lengths of rows of steps that programs have run, in order."""
    lengths, original = [], LoopSink.account_chunk

    def account(self, steps, *arguments):
        lengths.append(steps)
        original(self, steps, *arguments)

    monkeypatch.setattr(LoopSink, "account_chunk", account)
    return lengths


@pytest.fixture(autouse=True)
def _few_objects():
    yield
    if next(TESTS) % 4 == 3:
        freeze()


@pytest.fixture(autouse=True)
def _nothing_left_running():
    before = leaks.running()
    yield
    left = leaks.left_behind(before)
    NumpyTurns().remove()  # where a queue's thread ended late; the next training would do it
    assert not left, "the test left these running: " + "; ".join(left)


@pytest.fixture
def fake(request, tmp_path_factory, monkeypatch):
    """The fake device, known to the package; gives the `FakeGraphs` and the `FakeStreams` that were made."""
    import fake_device
    import fake_graphs
    from lightning_sink.data.cuda import STREAMS
    from lightning_sink.engine.make import GRAPHS

    if not fake_device.available():
        pytest.skip("needs g++")
    cache = getattr(request.config, "cache", None)
    fake_device.load(tmp_path_factory.mktemp("fake_device") if cache is None else cache.mkdir("fake_device"))
    made = SimpleNamespace(graphs=[], streams=[])

    def remembered(kind, known):
        def make(device):
            known.append(kind(device))
            return known[-1]

        return make

    monkeypatch.setitem(GRAPHS, "fake", remembered(fake_graphs.FakeGraphs, made.graphs))
    monkeypatch.setitem(STREAMS, "fake", remembered(fake_device.FakeStreams, made.streams))
    # Autograd has threads for the devices that were there at the process's first backward pass.
    with torch.autograd.set_multithreading_enabled(False):
        yield made


@pytest.fixture(autouse=True)
def _own_directory(_nothing_left_running, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _global_state(_nothing_left_running):
    threads, dtype, grad = torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    python_state, numpy_state = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]), mock.patch.dict(os.environ):
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        yield
    random.setstate(python_state)
    np.random.set_state(numpy_state)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
    torch.set_grad_enabled(grad)
    torch.set_default_dtype(dtype)
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
