"""Trainings of random options, callbacks, hooks and data are plain Lightning's, with their files, and resumed ones."""

from functools import partial
from pathlib import Path

import pytest
import torch

from lightning_sink import SinkStrategy
from lightning_sink.engine.compiled import CompiledEngine
from parity import are_alike, assert_parity, comparable, once
from random_trainers import DATA, RandomTraining

pytestmark = pytest.mark.filterwarnings("ignore")


def trained(training, folder, strategy, **changes):
    """Trains, in two Trainers where the training resumes; returns the run of the last one, and leaves a folder."""
    options = {"enable_checkpointing": True, "validation": DATA["short"](), **training.options, **changes}
    options["callbacks"] = lambda: training.callbacks("files")
    if training.resumes:
        once(training.make, DATA[training.data], strategy(), max_epochs=2, **options)
        options["checkpoint"] = max(Path("files").glob("end-*.ckpt"))
        options["max_steps"] = -1
    run = once(training.make, DATA[training.data], strategy(), max_epochs=4, **options)
    Path("files").rename(folder)  # the same paths in what is saved
    return run


def in_sinks(training, engine):
    return SinkStrategy(training.size, epoch="dataset", engine=engine)


def both(seed, engine, **changes):
    training = RandomTraining(seed)
    print(training)  # where it fails
    plain = trained(training, "plain", lambda: "auto")
    sink = trained(training, "sink", partial(in_sinks, training, engine), **changes)
    return plain, sink


def content(path):
    """Returns the parts of a checkpoint but for what is ours alone."""
    saved = torch.load(path, weights_only=False)
    return {part: comparable(value) for part, value in saved.items() if part != "lightning_sink"}


def assert_left_the_same(plain, sink):
    assert_parity(plain, sink, tolerance=2e-3)
    assert plain.module.seen == sink.module.seen
    assert plain.generators == sink.generators
    files = [sorted(path.name for path in Path(folder).glob("*.ckpt")) for folder in ("plain", "sink")]
    assert files[0] == files[1]
    for name in files[0]:
        saved = [content(f"{folder}/{name}") for folder in ("plain", "sink")]
        assert saved[0].keys() == saved[1].keys()
        for part in saved[0]:
            assert are_alike(saved[0][part], saved[1][part]), (name, part)


ENGINES = [("traced", seed) for seed in range(80)] + [("inductor", seed) for seed in range(100, 104)]


@pytest.mark.narrow(29)
@pytest.mark.parametrize(("engine", "seed"), ENGINES)
def test_random_trainings_are_plain_lightnings(engine, seed):
    assert_left_the_same(*both(seed, engine))


def test_most_of_them_are_compiled(monkeypatch):
    compiled, original, engines = [], CompiledEngine.run, []
    monkeypatch.setattr(CompiledEngine, "run", lambda self, sink: engines.append(self) or original(self, sink))
    for seed in range(200, 206):
        training = RandomTraining(seed)
        trained(training, str(seed), partial(in_sinks, training, "traced"))
        compiled.append(engines[-1].compiled_steps if engines else 0)
        engines.clear()
    assert sum(steps > 10 for steps in compiled) > 3, compiled


@pytest.mark.parametrize("seed", range(2))
def test_control_another_training_is_told_apart(seed):
    with pytest.raises(AssertionError):
        assert_left_the_same(*both(seed, "traced", gradient_clip_val=0.03))
