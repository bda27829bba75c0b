"""Modules of random statements train in sinks as they do plainly: whatever is compiled of them, and whatever is not."""

import random
import sys
from importlib.util import module_from_spec, spec_from_file_location

import pytest

import positions
from lightning_sink import SinkStrategy
from lightning_sink.engine.compiled import CompiledEngine
from parity import are_alike, assert_parity, comparable, loader, once
from random_steps import RandomSteps

pytestmark = [positions.needed, pytest.mark.filterwarnings("ignore")]


def options_of(seed):
    """Returns options of a Trainer, and the size of sinks."""
    choose = random.Random(seed).choice
    options = {"max_epochs": 3, "accumulate_grad_batches": choose([1, 1, 1, 2]), "log_every_n_steps": choose([1, 3])}
    options |= {"gradient_clip_val": choose([None, None, 1.0]), "max_steps": choose([-1, -1, 19])}
    return options, choose([3, 7, -1])


def left(run):
    """Returns what a training has left in the attributes, in each epoch and in the end."""
    return comparable([*run.module.seen, run.module.state()])


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Returns a function that trains the steps of a seed plainly and in sinks, and returns both runs and the source."""

    def made(source, name):
        """Returns the class of a module in a file of its own: what is compiled depends on how it is written."""
        path = tmp_path / f"{name}.py"
        path.write_text(source)
        spec = spec_from_file_location(name, path)
        module = module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module.Steps

    def train(seed, engine, change=("", "")):
        source, name, (options, size) = RandomSteps(seed).source(), f"random_steps_{seed}", options_of(seed)
        kinds = made(source, name), made(source.replace(*change), f"{name}_in_sinks")
        strategies = "auto", SinkStrategy(size, epoch="dataset", engine=engine)
        data = lambda: loader(last=8, shuffle=seed % 3 == 0)  # noqa: E731
        runs = [once(kind, data, strategy, **options) for kind, strategy in zip(kinds, strategies, strict=True)]
        return runs, source

    return train


ENGINES = [("traced", seed) for seed in range(120)] + [("inductor", seed) for seed in range(200, 206)]


@pytest.mark.narrow(31)
@pytest.mark.parametrize(("engine", "seed"), ENGINES)
def test_random_steps_train_as_plainly(engine, seed, trained):
    runs, source = trained(seed, engine)
    print(source)
    assert_parity(*runs, tolerance=1e-3)
    assert are_alike(*map(left, runs))


def test_most_of_them_are_compiled_and_some_in_rows(trained, chunks, monkeypatch):
    compiled, original, engines = [], CompiledEngine.run, []
    monkeypatch.setattr(CompiledEngine, "run", lambda self, sink: engines.append(self) or original(self, sink))
    for seed in range(300, 308):
        trained(seed, "traced")
        compiled.append(engines[-1].compiled_steps)
    assert sum(steps > 10 for steps in compiled) > 4, compiled
    assert sum(chunks) > 10


@pytest.mark.parametrize("seed", range(3))
def test_control_other_steps_are_told_apart(seed, trained):
    runs, _ = trained(seed, "traced", change=("cross_entropy(out, y)", "cross_entropy(1.01 * out, y)"))
    with pytest.raises(AssertionError):
        assert_parity(*runs, tolerance=1e-3)


def test_control_other_attributes_are_told_apart(trained):
    runs, _ = trained(1, "traced", change=("self.calls += 1", "self.calls += 1.0"))
    assert not are_alike(*map(left, runs))
